"""Preview: a schedule in words, its next plan times, and the clock changes that affect them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice

from msgspec import Struct

from mainspring.model.schedules.cron import Cron
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.timing import Timing, timing
from mainspring.model.words.zones import change_around, offset_at


class PreviewFire(Struct, frozen=True):
    at: datetime  # with the offset that the timezone has then
    utc: datetime
    note: str | None = None  # about a clock change


class Preview(Struct, frozen=True):
    words: str
    fires: list[PreviewFire]


def preview(schedule: Schedule, after: datetime, count: int) -> Preview:
    """The next `count` plan times strictly after an instant."""
    return Preview(timing(schedule).words, list(islice(foreseen(schedule, after), count)))


def foreseen(schedule: Schedule, after: datetime) -> Iterator[PreviewFire]:
    """All plan times strictly after an instant, each computed when it is asked for."""
    times = timing(schedule)
    before: timedelta | None = None
    instant = times.after(after)
    while instant is not None:
        offset = offset_at(times.zone, instant)
        notes = [_changed(before, offset), transition(times, instant)]
        yield PreviewFire(
            at=instant.astimezone(timezone(offset)),
            utc=instant,
            note="; ".join(note for note in notes if note) or None,
        )
        before, instant = offset, times.after(instant)


def transition(times: Timing, instant: datetime) -> str | None:
    """How a clock change affects this plan time."""
    local = instant.astimezone(times.zone)
    shown = _clock(local)
    skipped = times.rule.skipped_time(instant) if isinstance(times.rule, Cron) else None
    if skipped is not None:
        return f"{_clock(skipped)} does not exist that day: moved to {shown}"
    change = change_around(times.zone, local.replace(tzinfo=None))
    if change is None:
        return None
    return f"{shown} comes twice that day: this is the {'second' if local.fold else 'first'}"


def _changed(before: timedelta | None, after: timedelta) -> str | None:
    if before is None or before == after:
        return None
    way = "forward" if after > before else "back"
    return f"clocks go {way}: {_offset(before)} → {_offset(after)}"


def _clock(local: datetime) -> str:
    return f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"


def _offset(offset: timedelta) -> str:
    return datetime(2000, 1, 1, tzinfo=timezone(offset)).isoformat()[19:]
