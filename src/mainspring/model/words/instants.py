"""Instants: with an offset, or as a local time of a timezone; between 1970 and 2200.

Next: sdk/job.py
"""

from __future__ import annotations

from datetime import datetime, timezone
from zoneinfo import ZoneInfo

from mainspring.errors import ValidationError, shown
from mainspring.model.words.zones import change_around


def instant_text(at: datetime, timespec: str = "auto") -> str:
    """For people: 2026-11-15 09:00:00+01:00, and with Z for UTC, as in JSON."""
    text = at.isoformat(" ", timespec)
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


def check_instant(instant: datetime, *, field: str) -> datetime:
    """Refuse a datetime without an offset, or out of range."""
    if not isinstance(instant, datetime):
        raise ValidationError(f"{field}: {shown(instant)} is not a datetime", field=field)
    if instant.tzinfo is None:
        text = instant.isoformat()
        raise ValidationError(
            f"{field}: {text} has no offset; write {text}Z or {text}+01:00, in Python tzinfo=UTC", field=field
        )
    return _check_year(instant, field)


def _check_year(instant: datetime, field: str) -> datetime:
    if not 1970 <= instant.year < 2200:
        raise ValidationError(f"{field}: {instant} is outside 1970 to 2200", field=field)
    return instant


def parse_instant(text: str, *, field: str, zone: ZoneInfo | None = None) -> datetime:
    """An instant as ISO 8601 writes it: 2026-11-15T09:00:00.250+01:00, or with Z; without an offset, in `zone`."""
    instant = parse_time(text, field=field)
    if instant.tzinfo is None:
        if zone is None:
            raise ValidationError(
                f"{field}: {shown(text[:100])} has no offset; write 2026-11-15T09:00:00+01:00 or …Z", field=field
            )
        instant = in_zone(instant, zone, field=field)
    return instant


def parse_time(text: str, *, field: str) -> datetime:
    """The same; without an offset, a naive local time of a timezone that the caller knows."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValidationError(
            f"{field}: {shown(text[:100])} is not an instant; write 2026-11-15T09:00:00+01:00 or …Z", field=field
        ) from None
    return _check_year(instant, field)


def in_zone(local: datetime, zone: ZoneInfo, *, field: str) -> datetime:
    """The instant of a local time in a timezone; refuses one that a clock change skips or repeats."""
    change = change_around(zone, local)
    if change is None:
        return local.replace(tzinfo=zone)
    before, after = (local.replace(tzinfo=timezone(offset)).isoformat() for offset in (change.before, change.after))
    if change.is_gap:
        raise ValidationError(
            f"{field}: {local.isoformat()} does not exist in {zone}: the clocks go from {change.start:%H:%M:%S} to "
            f"{change.end:%H:%M:%S} that day; write another time, or one with an offset",
            field=field,
        )
    raise ValidationError(f"{field}: {local.isoformat()} comes twice in {zone}; write {before} or {after}", field=field)
