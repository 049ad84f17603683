"""Excluded days: days without plan times, such as 2026-12-25, 12-25 of every year, or sat.

Next: model/schedules/timing.py
"""

from __future__ import annotations

import re
from datetime import date, timedelta

from mainspring.errors import ValidationError, shown

MAX_DAYS = 5_000  # in a row; a schedule that is excluded for longer never fires
MOST_DAYS = 5_000  # of a calendar

_WEEKDAYS = {
    name: number
    for number, full in enumerate(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"))
    for name in (full, full[:3])
}
_DATE = re.compile(r"(?:([0-9]{4})-)?([0-9]{2})-([0-9]{2})", re.ASCII)
_LEAP_YEAR = 2000  # has every day that any year has

# A date, the month and day of every year, or a weekday from Monday = 0.
_Entry = date | tuple[int, int] | int


def check_excluded(entry: object, *, field: str = "excluded") -> str:
    """Refuse an entry that names no existing day."""
    _parse(entry, field)
    assert isinstance(entry, str)
    return entry


def check_days(given: object) -> tuple[str, ...]:
    """The days of a calendar, each once; refuses what names no day."""
    if not isinstance(given, (list, tuple)):
        raise ValidationError(f"days: {shown(given)}; give a list of days such as ['2026-12-25', 'sun']", field="days")
    if len(given) > MOST_DAYS:
        raise ValidationError(
            f"days: {len(given):,}; at most {MOST_DAYS:,}: a rule such as `sat` is for many", field="days"
        )
    return tuple(dict.fromkeys(check_excluded(str(day).lower(), field="day") for day in given))


class ExcludedDays:
    """A set of such entries."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._entries = frozenset(_parse(entry, "excluded") for entry in entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __contains__(self, day: date) -> bool:
        entries = self._entries
        return day in entries or (day.month, day.day) in entries or day.weekday() in entries

    def next_day(self, day: date) -> date | None:
        """The first day after `day` that is not excluded; None if that is too far away."""
        for _ in range(MAX_DAYS):
            day += timedelta(days=1)
            if day not in self:
                return day
        return None


def _parse(entry: object, field: str) -> _Entry:
    if isinstance(entry, str):
        if entry.lower() in _WEEKDAYS:
            return _WEEKDAYS[entry.lower()]
        if match := _DATE.fullmatch(entry):
            try:
                day = date(int(match[1] or _LEAP_YEAR), int(match[2]), int(match[3]))
            except ValueError:
                raise ValidationError(f"{field}: there is no {entry}; write a day that exists", field=field) from None
            return day if match[1] else (day.month, day.day)
    raise ValidationError(
        f"{field}: {shown(entry)} is not a day; write 2026-12-25, 12-25 for every year, or a weekday such as sat",
        field=field,
    )
