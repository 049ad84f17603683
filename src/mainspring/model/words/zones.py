"""Timezones: their names and their clock changes.

Local times here are naive datetimes; instants are in UTC.
Next: model/schedules/expressions/cron.py
"""

from __future__ import annotations

import difflib
from datetime import UTC, date, datetime, time, timedelta, timezone
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from mainspring.errors import ValidationError, shown

_SECOND = timedelta(seconds=1)
_STRIDE = timedelta(hours=6)


class Change(NamedTuple):
    """A change from one offset to another: local times are skipped (a gap), or repeated (a fold)."""

    at: datetime  # the first instant of the new offset
    before: timedelta
    after: timedelta

    @property
    def is_gap(self) -> bool:
        return self.after > self.before

    @property
    def start(self) -> datetime:
        """The first local time that is skipped or repeated."""
        return self.at.replace(tzinfo=None) + min(self.before, self.after)

    @property
    def end(self) -> datetime:
        """The first local time after `start` that occurs once."""
        return self.at.replace(tzinfo=None) + max(self.before, self.after)


def check_zone(name: object, *, field: str = "tz") -> ZoneInfo:
    """The timezone of an IANA name, in its exact spelling."""
    if not isinstance(name, str):
        raise ValidationError(
            f"{field}: {shown(name)} is not an IANA timezone; write a name such as Europe/Paris or UTC", field=field
        )
    if (known := _zones.get(name)) is not None:
        return known
    if name in _names():
        return _zones.setdefault(name, ZoneInfo(name))
    if name == "localtime":
        raise ValidationError(f"{field}: localtime differs by host; write a name such as Europe/Paris", field=field)
    close = _close(name)
    advice = f"did you mean {' or '.join(close)}?" if close else "write a name such as Europe/Paris or UTC"
    raise ValidationError(f"{field}: {shown(name)} is not an IANA timezone; {advice}", field=field)


def zone_or_utc(name: str | None) -> ZoneInfo:
    """The timezone of a name, to display times in; UTC if this host does not know the name."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo("UTC")


_zones: dict[str, ZoneInfo] = {}  # by name, those that were asked for


@cache
def _names() -> frozenset[str]:
    return frozenset(available_timezones() - {"localtime"})


def _close(name: str) -> list[str]:
    """Names similar to this one, or with this city: Paris suggests Europe/Paris."""
    wanted = name[:100].strip().replace(" ", "_").lower()
    by_lower = {known.lower(): known for known in sorted(_names())}
    cities = [known for lower, known in by_lower.items() if wanted and lower.rsplit("/", 1)[-1] == wanted]
    close = difflib.get_close_matches(wanted, by_lower, n=3, cutoff=0.75)
    return cities[:3] or [by_lower[lower] for lower in close]


def by_its_clocks(instant: datetime, zone: ZoneInfo) -> datetime:
    """The instant with the offset that the timezone has then: as it is after a passage through JSON."""
    local = instant.astimezone(zone)
    return local.replace(tzinfo=timezone(local.utcoffset() or timedelta()), fold=0)


def offset_at(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None  # every aware datetime in a ZoneInfo has one
    return offset


def offsets_of(zone: ZoneInfo, local: datetime) -> tuple[timedelta, timedelta]:
    """The offsets of a local time before and after a change: equal except in a gap or a fold."""
    before = local.replace(tzinfo=zone, fold=0).utcoffset()
    after = local.replace(tzinfo=zone, fold=1).utcoffset()
    assert before is not None
    assert after is not None
    return before, after


def change_around(zone: ZoneInfo, local: datetime) -> Change | None:
    """The change that skips or repeats this local time; None for a time that occurs once."""
    before, after = offsets_of(zone, local)
    if before == after:
        return None
    local = local.replace(tzinfo=UTC, microsecond=0)
    early = local - max(before, after)  # still the old offset
    late = local - min(before, after)  # the new one
    return Change(_first_with(zone, early, late, before), before, after)


def change_at(zone: ZoneInfo, instant: datetime) -> Change | None:
    """The change that happens at this very instant."""
    before, after = offset_at(zone, instant - _SECOND), offset_at(zone, instant)
    return None if before == after else Change(instant.astimezone(UTC), before, after)


def changes_between(zone: ZoneInfo, start: datetime, end: datetime) -> list[Change]:
    """The changes after `start` and up to `end`, in order; two within a few hours may be taken for one, or for none."""
    found: list[Change] = []
    early, before = start.astimezone(UTC), offset_at(zone, start)
    while early < end:
        late = min(early + _STRIDE, end.astimezone(UTC))
        after = offset_at(zone, late)
        if after != before:
            found.append(Change(_first_with(zone, early, late, before), before, after))
        early, before = late, after
    return found


def _first_with(zone: ZoneInfo, early: datetime, late: datetime, before: timedelta) -> datetime:
    """The first whole second between two instants whose offset is not `before`."""
    early, late = early.replace(microsecond=0), late.replace(microsecond=0)
    while late - early > _SECOND:
        middle = early + timedelta(seconds=(late - early) // _SECOND // 2)
        if offset_at(zone, middle) == before:
            early = middle
        else:
            late = middle
    return late


def start_of_day(zone: ZoneInfo, day: date, *, after: datetime) -> datetime:
    """The first instant of a local day; if the zone skips that day, of the next.

    A day whose midnight is repeated begins twice: `after`, an instant before its end, selects the start.
    """
    midnight = datetime.combine(day, time())
    change = change_around(zone, midnight)
    if change is not None and change.is_gap:
        return change.at
    first, second = ((midnight - offset).replace(tzinfo=UTC) for offset in offsets_of(zone, midnight))
    return first if first > after else second
