"""Preview: a schedule in words, its next plan times, and the clock changes that affect them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice

from msgspec import Struct

from mainspring.model.schedules.expressions.cron import Cron
from mainspring.model.schedules.schedules import Kind, Schedule
from mainspring.model.schedules.skips import Skip, covering
from mainspring.model.schedules.timing import Timing, timing
from mainspring.model.words.zones import change_around, offset_at


class PreviewFire(Struct, frozen=True):
    at: datetime  # with the offset that the timezone has then
    utc: datetime
    note: str | None = None  # about a clock change
    skipped_by: str | None = None  # the actor, and why, where a person has skipped it


class Preview(Struct, frozen=True):
    words: str
    fires: list[PreviewFire]
    kind: Kind
    expression: str  # as cron, or seconds, whatever words it was written in
    a_day: int | None = None  # plan times in the 24 hours that follow; None: too many to count in a moment


def preview(schedule: Schedule, after: datetime, count: int) -> Preview:
    """The next `count` plan times strictly after an instant."""
    found = list(islice(foreseen(schedule, after), count))
    return Preview(timing(schedule).words, found, schedule.kind, schedule.expression)


def foreseen(schedule: Schedule, after: datetime, skips: Sequence[Skip] = ()) -> Iterator[PreviewFire]:
    """All plan times strictly after an instant, each computed when it is asked for."""
    times = timing(schedule)
    before: timedelta | None = None
    instant = times.after(after)
    while instant is not None:
        offset = offset_at(times.zone, instant)
        notes = [_changed(before, offset), transition(times, instant)]
        skip = covering(skips, instant)
        yield PreviewFire(
            at=instant.astimezone(timezone(offset)),
            utc=instant,
            note="; ".join(note for note in notes if note) or None,
            skipped_by=None if skip is None else skip.who,
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
