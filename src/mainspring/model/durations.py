"""Durations as people write them: 90, 1.5, "250ms", "10m", "1h30m", timedelta.

Next: model/jobs.py
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from mainspring.errors import ValidationError

Duration = float | int | str | timedelta

MAX_SECONDS = 10 * 365 * 86400.0

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d|w)", re.ASCII)
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
        text = value.strip()
        if _PLAIN.fullmatch(text):
            return float(text)
        parts = _PART.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            return math.fsum(float(number) * _UNITS[unit] for number, unit in parts)
    raise ValidationError(
        f'{field}: {value!r} is not a duration; write seconds (90), or text such as "250ms", "10m", "1h30m"',
        field=field,
    )
