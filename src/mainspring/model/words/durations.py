"""Durations: 90, 1.5, "250ms", "1h30m", "5 minutes", "1 hour 30 minutes", timedelta.

Next: model/tasks/jobs.py
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from mainspring.errors import ValidationError, shown

Duration = float | int | str | timedelta

MAX_SECONDS = 10 * 365 * 86400.0

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_WORDS = {
    "ms": ("millisecond", "milliseconds"),
    "s": ("sec", "secs", "second", "seconds"),
    "m": ("min", "mins", "minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
    "w": ("week", "weeks"),
}
_UNITS = {name: _SECONDS[unit] for unit, words in _WORDS.items() for name in (unit, *words)}
_ONE = {"second": 1.0, "minute": 60.0, "hour": 3600.0}  # "every day" has a time of day: `daily`
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?([A-Za-z]+)(?: and |, ?| ?)", re.ASCII)
_PLAIN = re.compile(r"\d{1,12}(?:\.\d{1,6})?", re.ASCII)


def seconds(value: Duration, *, field: str, at_least: float = 0.0) -> float:
    """The duration in seconds; a ValidationError that names `field` if it makes no sense."""
    parsed = _parse(value, field)
    if not math.isfinite(parsed) or parsed < at_least or parsed > MAX_SECONDS:
        raise ValidationError(
            f"{field}: {parsed:g} s is out of range; give between {at_least:g} s and 10 years", field=field
        )
    return parsed


def _parse(value: Duration, field: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        if _PLAIN.fullmatch(plain := value.strip()):
            return float(plain)  # `float` strips less than `strip` does
        if (parsed := with_units(value)) is not None:
            return parsed
    raise ValidationError(
        f'{field}: {shown(value)} is not a duration; write seconds (90), or text such as "250ms", "1h30m", "5 minutes"',
        field=field,
    )


def with_units(text: str) -> float | None:
    """The seconds of "1h30m" or "1 hour and 30 minutes"; None for other text."""
    words = " ".join(text.split())
    if words in _ONE:
        return _ONE[words]
    parts = list(_PART.finditer(words))
    units = [_UNITS.get(part[2] if len(part[2]) == 1 else part[2].lower()) for part in parts]  # 5M is ambiguous
    if not parts or "".join(part[0] for part in parts) != words or words[-1] == ",":
        return None
    if None in units:
        return None
    return math.fsum(float(part[1]) * unit for part, unit in zip(parts, units, strict=True) if unit is not None)


def compact(value: float) -> str:
    """Seconds as people write them, to the microsecond: 1d, 1h30m, 250ms."""
    left, fraction = divmod(round(value * 1_000_000), 1_000_000)
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(_SECONDS[unit]))
        if count:
            parts.append(f"{count}{unit}")
    if fraction:
        parts.append(f"{fraction / 1000:g}ms")
    return "".join(parts) or "0s"
