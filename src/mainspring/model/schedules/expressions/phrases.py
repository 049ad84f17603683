"""Phrases: schedules in plain words, such as "mon, thu 09:00" or "monthly on the last day at 18:00".

`daily`, `weekly` and `monthly` give a cron expression; `parse` accepts any form of schedule in one text.
Next: model/schedules/timing.py
"""

from __future__ import annotations

import re
from datetime import UTC
from typing import NoReturn
from zoneinfo import ZoneInfo

from mainspring.errors import ValidationError, shown
from mainspring.model.schedules.expressions.cron import Cron
from mainspring.model.schedules.expressions.cron_grammar import MACROS, MAX_LENGTH, WEEKDAYS
from mainspring.model.schedules.schedules import Kind
from mainspring.model.words import durations
from mainspring.model.words.instants import parse_instant

MIN_PERIOD = 0.1

_UTC = ZoneInfo("UTC")

_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2}))?)?(am|pm)?", re.ASCII)
_HALF_OF_DAY = re.compile(r"([0-9])\s*(am|pm)\b", re.ASCII)
_DAY = re.compile(r"([0-9]{1,4})(?:st|nd|rd|th)?", re.ASCII)
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_NTH = {"first": 1, "second": 2, "third": 3, "fourth": 4, "1st": 1, "2nd": 2, "3rd": 3, "4th": 4}
_SMALL_WORDS = {"on", "the", "and", "day"}
_FULL_NAMES = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_WEEKDAY = {
    name: short for full, short in zip(_FULL_NAMES, WEEKDAYS, strict=True) for name in (full, f"{full}s", short.lower())
}
_GROUPS = {"weekday": "MON-FRI", "weekdays": "MON-FRI", "weekend": "SAT,SUN", "weekends": "SAT,SUN"}

_EXAMPLES = {
    "daily": '"09:00" or "09:00, 17:00"',
    "weekly": '"mon, thu 09:00" or "mon-fri 09:00"',
    "monthly": '"1, 15 09:00", "last 18:00" or "first monday 09:00"',
}


def daily(text: str) -> str:
    """ "09:00", or several times, as a cron expression."""
    days, clock = _split(text, "daily")
    if days:
        _refuse("daily", f"{' '.join(days)} is not a time")
    return f"{_clock(clock, 'daily')} * * *"


def weekly(text: str) -> str:
    """ "mon, thu 09:00" as a cron expression."""
    days, clock = _split(text, "weekly")
    if not days:
        _refuse("weekly", "no day of the week is given")
    return f"{_clock(clock, 'weekly')} * * {_joined([_weekdays(word, 'weekly') for word in days])}"


def monthly(text: str) -> str:
    """ "1, 15 09:00", "last 18:00", "first monday 09:00" or "last friday 17:00" as a cron expression."""
    days, clock = _split(text, "monthly")
    dates: list[str] = []
    weekdays: list[str] = []
    rest = days[::-1]
    while rest:
        word = rest.pop()
        if rest and (word in _NTH or word == "last") and rest[-1] in _WEEKDAY:
            number = WEEKDAYS.index(_WEEKDAY[rest[-1]])
            weekdays.append(f"{number}L" if word == "last" else f"{_WEEKDAY[rest[-1]]}#{_NTH[word]}")
            rest.pop()
        elif word == "last" and rest and rest[-1] == "weekday":
            dates.append("LW")
            rest.pop()
        else:
            dates.append("L" if word == "last" else _date(word, "monthly"))
    if not dates and not weekdays:
        _refuse("monthly", "no day of the month is given")
    # With both, cron matches the days that are either: what the words mean.
    return f"{_clock(clock, 'monthly')} {_joined(dates)} * {_joined(weekdays)}"


PHRASES = {"daily": daily, "weekly": weekly, "monthly": monthly}


def parse(text: str, *, field: str = "expression", zone: ZoneInfo = _UTC) -> tuple[Kind, str]:
    """Any schedule in one text: its kind, and the expression as `Schedule` holds it.

    An instant without an offset is a local time of `zone`.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_LENGTH:
        raise ValidationError(f"{field}: {shown(text)} is not a schedule; {_forms()}", field=field)
    text = text.strip()
    head, _, rest = text.partition(" ")
    match head.lower():
        case "every" if (days := _days_of(rest)) is not None:
            return "cron", days
        case "every":
            return "every", _period(rest)
        case "once":
            return "once", _instant(rest.strip(), zone)
        case "daily" | "weekly" | "monthly" as phrase:
            return "cron", PHRASES[phrase](rest)
        case "hourly" if not rest:
            return "cron", MACROS["@hourly"]
        case word if _is_weekday(word.rstrip(",")):
            return "cron", weekly(text)
    if durations.with_units(text) is not None:
        raise ValidationError(f'{field}: {shown(text)} alone is a duration; write "every {text}"', field=field)
    if _INSTANT.match(text):
        return "once", _instant(text, zone)
    if head.startswith("@") or re.match(r"[0-9*?]|[Hh](?![A-Za-z])", head):
        Cron(text, "UTC", field=field)
        return "cron", " ".join(text.split())
    raise ValidationError(f"{field}: {shown(text[:50])} is not a schedule; {_forms()}", field=field)


def _period(rest: str) -> str:
    try:
        return period_text(durations.seconds(rest, field="every", at_least=MIN_PERIOD))
    except ValidationError as error:
        if re.search(r"\bat\b", rest) is None:
            raise
        raise ValidationError(f'{error.message}; or days: "every weekday at 9"', field="every") from None


def _days_of(rest: str) -> str | None:
    """ "weekday at 9", "day at 09:00" or "month on the 1st at 9am" behind `every`; None for a duration."""
    word, _, more = rest.strip().partition(" ")
    phrase = {"day": "daily", "week": "weekly", "month": "monthly"}.get(word.lower())
    if phrase is None and not _is_weekday(word.lower().rstrip(",")):
        return None
    if not more.strip():
        on = {"week": " on mon", "month": " on the 1st"}.get(word.lower(), "")
        raise ValidationError(
            f'every: {shown(word)} has no time of day; write "every {word}{on} at 09:00"', field="every"
        )
    return weekly(rest) if phrase is None else PHRASES[phrase](more)


def _is_weekday(word: str) -> bool:
    first, dash, last = word.partition("-")
    return word in _GROUPS or (first in _WEEKDAY and (not dash or last in _WEEKDAY))


def period_text(seconds: float) -> str:
    """Seconds as `Schedule.expression` holds them: 5400, 0.1."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _instant(text: str, zone: ZoneInfo) -> str:
    return parse_instant(text, field="once", zone=zone).astimezone(UTC).isoformat()


def _forms() -> str:
    return (
        'write cron such as "0 9 * * MON-FRI", @daily, "every 30s", hourly, "daily at 09:00", "every weekday at 9", '
        '"weekly on mon at 09:00", "monthly on the 1st at 09:00" or "once 2026-12-24T18:00:00+01:00"'
    )


def _refuse(field: str, message: str) -> NoReturn:
    raise ValidationError(f"{field}: {message}; write {_EXAMPLES[field]}", field=field)


def _split(text: str, field: str) -> tuple[list[str], list[str]]:
    """The words for days, which come first, and those for times of day."""
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        _refuse(field, f"{shown(text)} is not understood")
    words = [word for word in re.split(r"[\s,]+", _HALF_OF_DAY.sub(r"\1\2", text.lower())) if word]
    days: list[str] = []
    clock: list[str] = []
    behind_at = False  # a bare number is an hour there, and a day before it
    for word in words:
        if word == "at":
            behind_at = True
        elif ":" in word or word[-2:] in ("am", "pm") or (behind_at and word.isdigit()):
            clock.append(word)
        elif word not in _SMALL_WORDS:
            if clock:
                _refuse(field, f"{shown(text)} has something after its time")
            days.append(word)
    if not clock:
        _refuse(field, f"{shown(text)} has no time of day")
    return days, clock


def _clock(words: list[str], field: str) -> str:
    """The second (if any), minute and hour fields. Cron pairs every minute with every hour, so the times must too."""
    times = {_time(word, field) for word in words}
    hours, minutes, seconds = ({time[part] for time in times} for part in range(3))
    if len(times) != len(hours) * len(minutes) * len(seconds):
        raise ValidationError(
            f"{field}: one schedule cannot say {' and '.join(words)} alone, for cron pairs each minute with each hour; "
            "make two schedules",
            field=field,
        )
    parts = [minutes, hours] if seconds == {0} else [seconds, minutes, hours]
    return " ".join(",".join(str(value) for value in sorted(part)) for part in parts)


def _time(word: str, field: str) -> tuple[int, int, int]:
    match = _TIME.fullmatch(word)
    if match is None:
        _refuse(field, f"{word} is not a time of day")
    hour, minute, second, half = int(match[1]), int(match[2] or 0), int(match[3] or 0), match[4]
    if hour > 23 or minute > 59 or second > 59:
        _refuse(field, f"{word} is not a time between 00:00 and 23:59:59")
    if half is None:
        return hour, minute, second
    if not 1 <= hour <= 12:
        _refuse(field, f"{word} is not a time between 12am and 11:59pm")
    return hour % 12 + (12 if half == "pm" else 0), minute, second


def _weekdays(word: str, field: str) -> str:
    if word in _GROUPS:
        return _GROUPS[word]
    first, dash, last = word.partition("-")
    if first not in _WEEKDAY or (dash and last not in _WEEKDAY):
        _refuse(field, f"{word} is not a day of the week")
    if not dash:
        return _WEEKDAY[first]
    start, stop = WEEKDAYS.index(_WEEKDAY[first]), WEEKDAYS.index(_WEEKDAY[last])
    if start <= stop:
        return f"{WEEKDAYS[start]}-{WEEKDAYS[stop]}"
    return ",".join([*WEEKDAYS[start:], *WEEKDAYS[: stop + 1]])  # fri-mon: cron's week begins on Sunday


def _date(word: str, field: str) -> str:
    match = _DAY.fullmatch(word)
    if match is None:
        _refuse(field, f"{word} is not a day of the month")
    day = int(match[1])
    if day in (29, 30, 31):
        raise ValidationError(
            f"{field}: not every month has a {day}{'st' if day == 31 else 'th'}: write last, "
            f"or cron='0 9 {day} * *' if months without it are left out",
            field=field,
        )
    if not 1 <= day <= 28:
        _refuse(field, f"{word} is not a day from 1 to 28")
    return str(day)


def _joined(values: list[str]) -> str:
    return ",".join(dict.fromkeys(values)) or "*"
