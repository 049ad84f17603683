"""Sizes: 1048576, "512MB", "1.5 GB", "2GiB". As in PostgreSQL, a kB is 1024 bytes.

Next: model/limits/process_limits.py
"""

from __future__ import annotations

import re

from mainspring.errors import ValidationError, shown

Size = int | str

MAX_BYTES = 1 << 60

_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"(\d{1,20})(?:\.(\d{1,6}))? ?([a-zA-Z]{0,3})", re.ASCII)


def size(value: Size, *, field: str, at_least: int = 1) -> int:
    """The amount in bytes; a ValidationError that names `field` if it makes no sense."""
    parsed = _parse(value)
    if parsed is None:
        raise ValidationError(
            f'{field}: {shown(value)} is not a size; write bytes (1048576), or text such as "512MB", "1.5GB"',
            field=field,
        )
    if not at_least <= parsed <= MAX_BYTES:
        least, most = size_in_words(at_least), size_in_words(MAX_BYTES)
        raise ValidationError(f"{field}: {shown(value)} is out of range; give between {least} and {most}", field=field)
    return parsed


def size_in_words(amount: int) -> str:
    """A size in the largest unit that gives a whole number."""
    for unit in ("TB", "GB", "MB", "kB"):
        if amount >= _UNITS[unit.lower()] and amount % _UNITS[unit.lower()] == 0:
            return f"{amount // _UNITS[unit.lower()]} {unit}"
    return f"{amount} bytes"


def _parse(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())) and match[3].lower() in _UNITS:
        unit = _UNITS[match[3].lower()]
        millionths = int((match[2] or "").ljust(6, "0"))
        return int(match[1]) * unit + millionths * unit // 1_000_000
    return None
