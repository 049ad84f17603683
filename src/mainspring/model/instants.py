"""Instants as people give them: with an offset, between 1970 and 2200.

Next: sdk/job.py
"""

from __future__ import annotations

from datetime import datetime

from mainspring.errors import ValidationError


def check_instant(instant: datetime, *, field: str) -> datetime:
    """An instant that means the same everywhere."""
    if not isinstance(instant, datetime):
        raise ValidationError(f"{field}: {instant!r} is not a datetime", field=field)
    if instant.tzinfo is None:
        raise ValidationError(
            f"{field}: {instant!r} has no offset; write datetime(…, tzinfo=UTC) or datetime.now(UTC)", field=field
        )
    if not 1970 <= instant.year < 2200:
        raise ValidationError(f"{field}: {instant} is outside 1970 to 2200", field=field)
    return instant


def parse_instant(text: str, *, field: str) -> datetime:
    """An instant as ISO 8601 writes it: 2026-11-15T09:00:00.250+01:00, or with Z."""
    instant: datetime | None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise ValidationError(
            f"{field}: {text[:100]!r} is not an instant with an offset; write 2026-11-15T09:00:00+01:00 or …Z",
            field=field,
        )
    return check_instant(instant, field=field)
