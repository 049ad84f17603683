"""Timeline: plan times of some schedules between two instants, with what was decided and what came of it.

Next: store/schedules/timeline.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from mainspring.errors import ScheduleNotFound, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.story import Origin
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.names import check_name
from mainspring.operations.parts.slices import Slices
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import schedules, timeline

MOST_SCHEDULES = 50
MOST_MARKS = 2000  # of one schedule; beyond that they are told in bins
MOST_IN_ALL = 5000  # marks of an answer: more would hold the event loop
BINS = 500
LONGEST = timedelta(days=366)


class Mark(msgspec.Struct, frozen=True):
    """A decided plan time."""

    plan_time: datetime
    scope: str
    origin: Origin
    decision: str  # planned, or why there is no task
    task_id: int | None
    state: str | None  # of the task; None as well when retention dropped it
    started_at: datetime | None
    lateness_ms: float | None
    finished_at: datetime | None


class Bin(msgspec.Struct, frozen=True):
    """Plan times of one stretch of time, counted."""

    start: datetime
    plan_times: int
    tasks: int  # the others have none: skipped


class Line(msgspec.Struct, frozen=True):
    """One schedule: its marks in order, or bins where there are too many."""

    schedule: str
    marks: list[Mark]
    bins: list[Bin]
    bin_seconds: float | None


class Timeline(msgspec.Struct, frozen=True):
    start: datetime
    end: datetime
    lines: list[Line]


async def show(conn: Connection, actor: Actor, *, schedule: Sequence[str], start: datetime, end: datetime) -> Timeline:
    """What was planned of these schedules from `from` up to `to`, and what came of it."""
    names = list(dict.fromkeys(check_name(name, field="schedule") for name in schedule))
    _check(names, start, end)
    found = {one.schedule.name: one for one in await schedules.listing(conn, names=names)}
    for name in names:
        if name not in found or not actor.reaches(found[name].schedule.job):
            raise ScheduleNotFound(
                f"no schedule named {name!r}; `mainspring schedule list` shows what there is", field="schedule"
            )
    ids = {found[name].id: name for name in names}
    counted = await timeline.counts(conn, list(ids), start, end, MOST_MARKS + 1)
    crowded = _crowded(counted)
    marks: dict[int, list[Mark]] = {}
    slices = Slices()
    for row in await timeline.marks(conn, [id for id in ids if id not in crowded], start, end, MOST_MARKS):
        marks.setdefault(row["schedule_id"], []).append(_mark(row))
        await slices.rest()
    width = max((end - start) / BINS, timedelta(seconds=1))
    bins: dict[int, list[Bin]] = {}
    for row in await timeline.bins(conn, crowded, start, end, width) if crowded else ():
        bins.setdefault(row["schedule_id"], []).append(Bin(row["at"], row["plan_times"], row["tasks"]))
    return Timeline(
        start,
        end,
        [
            Line(
                name,
                marks.get(id, [])[::-1],
                bins.get(id, []),
                width.total_seconds() if id in crowded else None,
            )
            for id, name in ids.items()
        ],
    )


def _crowded(counted: dict[int, int]) -> list[int]:
    """The schedules that are told in bins: those with too many plan times, and the fullest until the rest fits."""
    left, crowded = sum(counted.values()), []
    for id, count in sorted(counted.items(), key=lambda one: -one[1]):
        if count > MOST_MARKS or left > MOST_IN_ALL:
            crowded.append(id)
            left -= count
    return crowded


def _check(names: Sequence[str], start: datetime, end: datetime) -> None:
    if not 1 <= len(names) <= MOST_SCHEDULES:
        raise ValidationError(f"schedule: {len(names)} of them; name 1 to {MOST_SCHEDULES}", field="schedule")
    if not timedelta(0) < end - start <= LONGEST:
        raise ValidationError("to: give an instant after `from`, and at most a year after it", field="to")


def _mark(row: Any) -> Mark:
    started, due = row["started_at"], row["run_at"]
    return Mark(
        plan_time=row["plan_time"],
        scope=row["scope"],
        origin=row["origin"],
        decision="planned" if row["reason"] is None else row["reason"],
        task_id=row["task_id"],
        state=None if row["state"] is None else TaskState(row["state"]).label,
        started_at=started,
        lateness_ms=None if started is None else round((started - due).total_seconds() * 1000, 3),
        finished_at=row["finished_at"],
    )
