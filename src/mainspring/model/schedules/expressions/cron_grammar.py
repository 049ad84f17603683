"""Cron grammar: check a cron expression and rewrite it for `cronsim`.

`resolve` expands macros and replaces `H` by numbers. It is stricter than `cronsim` and crontab, so that a typo does not
become another schedule.
Next: model/schedules/expressions/cron.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from mainspring.errors import ValidationError, shown
from mainspring.model.schedules.schedules import stable_hash

MAX_LENGTH = 500
MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")

_ATOM = r"[0-9]+|[A-Z]+"
_TERM = re.compile(rf"(?P<first>\*|{_ATOM})(?:-(?P<last>{_ATOM}))?(?:/(?P<step>[0-9]+))?")
_SPREAD = re.compile(rf"H(?:\((?P<first>{_ATOM})-(?P<last>{_ATOM})\))?(?:/(?P<step>[0-9]+))?")
NEAREST = re.compile("([0-9]+)W")  # the weekday nearest a day of the month
_FORM = "five fields: minute hour day-of-month month day-of-week, or six with seconds first"


class _Refused(Exception):
    """What is wrong with an expression, and what to write instead."""


@dataclass(frozen=True)
class _Field:
    name: str
    low: int
    high: int
    unit: str | None = None  # of `every`, the alternative to a step too large for the field
    names: tuple[str, ...] = ()

    @property
    def values(self) -> int:
        return 7 if self.name == "day of week" else self.high - self.low + 1  # Sunday is 0 and 7

    @property
    def spread_high(self) -> int:
        """The last value that H may take: up to it, the schedule fires in every month and week."""
        return {"day of month": 28, "day of week": 6}.get(self.name, self.high)

    def refuse(self, message: str) -> NoReturn:
        raise _Refused(f"{self.name}: {message}")

    def number(self, atom: str) -> int:
        if atom in self.names:
            return self.names.index(atom) + self.low
        if not atom.isdigit():
            if atom[:3] in self.names:
                self.refuse(f"{atom} is too long a name; write {atom[:3]}")
            known = f", or {self.names[0]} to {self.names[-1]}" if self.names else ""
            self.refuse(f"{atom} is not known here; write {self.low} to {self.high}{known}")
        if not self.low <= int(atom) <= self.high:
            self.refuse(f"{atom} is out of range; write {self.low} to {self.high}")
        return int(atom)


SECOND = _Field("second", 0, 59, "s")
MINUTE = _Field("minute", 0, 59, "m")
HOUR = _Field("hour", 0, 23, "h")
DAY = _Field("day of month", 1, 31, "d")
MONTH = _Field("month", 1, 12, names=MONTHS)
WEEKDAY = _Field("day of week", 0, 7, names=WEEKDAYS)
_FIELDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


def resolve(expression: object, *, seed: str, field: str = "cron") -> tuple[str, bool]:
    """Five or six fields, and whether H was used; `seed` determines the values of H.

    cronsim reads them, but for the terms NEAREST of the day of the month.
    """
    try:
        parts = _split(expression)
        fields = _FIELDS[-len(parts) :]
        text = " ".join(_resolve_field(kind, part, seed) for kind, part in zip(fields, parts, strict=True))
    except _Refused as refused:
        raise ValidationError(f"{field}: {refused}", field=field) from None
    return text, any(term.startswith("H") for part in parts for term in part.split(","))


class Resolver:
    """`resolve` of one expression for many seeds: the fields without H are read once. ValidationError as there."""

    def __init__(self, expression: str) -> None:
        self._text, self.is_spread = resolve(expression, seed="")
        parts = _split(expression)
        self._fields = [
            (kind, part, _moduli(kind, part), dict[tuple[int, ...], str]())
            for kind, part in zip(_FIELDS[-len(parts) :], parts, strict=True)
            if self.is_spread
        ]

    def text(self, seed: str) -> str:
        """Five or six fields without H."""
        if not self.is_spread:
            return self._text
        found = []
        for kind, part, moduli, known in self._fields:
            key: tuple[int, ...] = ()
            if moduli:
                number = stable_hash(seed, kind.name)
                key = tuple([number % modulus for modulus in moduli])
            if key not in known:
                known[key] = _resolve_field(kind, part, seed)
            found.append(known[key])
        return " ".join(found)


def _moduli(kind: _Field, part: str) -> tuple[int, ...]:
    """The remainders of the hash that decide what the terms with H become."""
    found = []
    for term in part.split(","):
        if match := _SPREAD.fullmatch(term):
            low = kind.number(match["first"]) if match["first"] else kind.low
            high = kind.number(match["last"]) if match["last"] else kind.spread_high
            found.append(int(match["step"]) if match["step"] else high - low + 1)
    return tuple(found)


def _split(expression: object) -> list[str]:
    if not isinstance(expression, str):
        raise _Refused(f"{shown(expression)} is not text; write {_FORM}")
    if len(expression) > MAX_LENGTH:
        raise _Refused(f"{len(expression):,} characters; write at most {MAX_LENGTH}")
    for character in expression:
        if not (" " <= character <= "~" or character == "\t"):
            raise _Refused(
                f"U+{ord(character):04X} is not allowed; write plain digits, letters, spaces and * , - / # ?"
            )
    text = expression.strip()
    if text.startswith("@"):
        text = _macro(text)
    parts = text.upper().split()
    if not parts:
        raise _Refused(f"empty; write {_FORM}")
    if len(parts) == 7:
        raise _Refused("seven fields: the last is Quartz's year, which does not exist here; leave it out")
    if len(parts) not in (5, 6):
        raise _Refused(f"{len(parts)} field{'s' if len(parts) > 1 else ''}; write {_FORM}")
    if len(parts) == 6 and re.fullmatch("(19|20|21)[0-9][0-9]", parts[5]):
        raise _Refused(f"{parts[5]} looks like a year, which does not exist here; write {_FORM}")
    return parts


def _macro(text: str) -> str:
    if text.lower() in MACROS:
        return MACROS[text.lower()]
    name, _, period = text.partition(" ")
    if name.lower() == "@every":
        raise _Refused(f'@every is not cron; use every="{period.strip() or "5m"}"')
    if name.lower() == "@reboot":
        raise _Refused('@reboot has no time; use every="5m" for something repeated, or a daemon for what always runs')
    raise _Refused(f"{name} is not known; write one of {', '.join(MACROS)}")


def _resolve_field(kind: _Field, part: str, seed: str) -> str:
    if "?" in part:  # Quartz's word for any day
        if part == "?" and kind in (DAY, WEEKDAY):
            return "*"
        kind.refuse("? stands alone, for any day of the month or any day of the week; write * here")
    return ",".join(_resolve_term(kind, term, seed) for term in part.split(","))


def _resolve_term(kind: _Field, term: str, seed: str) -> str:
    if spread := _SPREAD.fullmatch(term):
        return _spread(kind, term, spread, seed)
    if (special := _special(kind, term)) is not None:
        return special
    match = _TERM.fullmatch(term)
    if match is None or (match["first"] == "*" and match["last"]):
        kind.refuse(f"{term or 'an empty value'} is not understood; write such as 5, 1-5, */5 or 1,2")
    step = _step(kind, term, match["step"])
    if match["first"] == "*":
        return term
    first = kind.number(match["first"])
    if match["last"] is None:
        return term
    last = kind.number(match["last"])
    if last < first:
        _refuse_backwards(kind, match["first"], match["last"], step)
    return match["first"] if first == last else term  # cronsim reads 5-5/10 as 5/10


def _special(kind: _Field, term: str) -> str | None:
    """Terms of one field only, and terms of other schedulers, which are refused."""
    if kind is DAY:
        if term in ("L", "LW"):
            return term
        if nearest := NEAREST.fullmatch(term):
            return f"{kind.number(nearest[1])}W"
        if "W" in term:
            kind.refuse(f"{term} is not a day and W; write 15W for the weekday nearest the 15th, or LW for the last")
        if term.startswith("L"):
            kind.refuse(f"{term}: days counted from the last are not supported; write L, or a day such as 28")
    if kind is WEEKDAY:
        if term == "L":
            kind.refuse("L needs a day here; write 5L for the last Friday of the month")
        if last := re.fullmatch(r"([0-9]|[A-Z]{3})L", term):
            return f"{kind.number(last[1])}L"
        if "#" in term:
            return _nth(kind, term)
    elif "#" in term:
        kind.refuse(f"{term}: # belongs to the day of week; write 0 9 * * MON#2 for the second Monday")
    return None


def _nth(kind: _Field, term: str) -> str:
    day, _, nth = term.partition("#")
    if not re.fullmatch(_ATOM, day) or nth not in ("1", "2", "3", "4", "5"):
        kind.refuse(f"{term} is not a day and its number; write MON#1 to MON#5")
    return f"{kind.number(day)}#{nth}"


def _step(kind: _Field, term: str, written: str | None) -> int:
    if written is None:
        return 1
    step = int(written)
    if step == 0:
        kind.refuse(f"{term} has a step of 0; write a step of 1 or more")
    if step > kind.values:
        advice = f'use every="{step}{kind.unit}"' if kind.unit else "list the values, such as 1,4"
        kind.refuse(f"{term}: a step of {step} is more than the {kind.values} values there are; {advice}")
    return step


def _refuse_backwards(kind: _Field, first: str, last: str, step: int) -> NoReturn:
    if step > 1:
        kind.refuse(f"{first}-{last} runs backwards; list the values with commas")
    high = WEEKDAYS.index("SAT") if kind is WEEKDAY else kind.high
    top = kind.names[high - kind.low] if first in kind.names else str(high)
    bottom = kind.names[0] if last in kind.names else str(kind.low)
    head = first if first == top else f"{first}-{top}"
    tail = last if last == bottom else f"{bottom}-{last}"
    kind.refuse(f"{first}-{last} runs backwards; write {head},{tail}")


def _spread(kind: _Field, term: str, match: re.Match[str], seed: str) -> str:
    """H: one value of the field, or the start of its steps, the same on every machine for one seed."""
    low = kind.number(match["first"]) if match["first"] else kind.low
    high = kind.number(match["last"]) if match["last"] else kind.spread_high
    if high < low:
        kind.refuse(f"{term} runs backwards; write the smaller value first")
    if high > kind.spread_high:
        kind.refuse(f"{term}: H takes {kind.low} to {kind.spread_high}; write H({low}-{kind.spread_high})")
    step = _step(kind, term, match["step"])
    if step > high - low + 1:
        kind.refuse(f"{term}: a step of {step} is more than the {high - low + 1} values there are; write a smaller one")
    number = stable_hash(seed, kind.name)
    if match["step"] is None:
        return str(low + number % (high - low + 1))
    return ",".join(str(value) for value in range(low + number % step, high + 1, step))
