"""Coming: what fires next and what was missed, of all schedules together; how some of them did of late.

Next: store/watch/coming.py, store/schedules/fires.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.planning import Reason
from mainspring.model.schedules.schedules import Policies
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.globs import covering
from mainspring.model.words.names import check_name
from mainspring.model.words.zones import by_its_clocks, zone_or_utc
from mainspring.operations import pages
from mainspring.operations.parts.slices import Slices
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import fires, schedules
from mainspring.store.schedules.schedules import Stored
from mainspring.store.watch import coming as store
from mainspring.store.watch.coming import Why

MOST_COMING = 100
MOST_STRIPS = 50  # schedules of one answer
MARKS = 30  # plan times of a strip
COUNTED = 100  # plan times of which the lateness is shown
LATE = 1.0  # seconds after which a start is late, of a schedule without an SLO

Came = Literal["on_time", "late", "failed", "skipped", "missed", "running", "waiting", "unknown"]

_FAILED = (TaskState.FAILED, TaskState.TIMED_OUT, TaskState.LOST)
_MISSED = ("misfire", "coalesced")


class ComingFire(msgspec.Struct, frozen=True):
    """A plan time to come, by the clocks of its schedule."""

    schedule: str
    job: str
    timezone: str
    plan_time: datetime
    due: datetime  # with its delay; with its jitter once it has a task
    task_id: int | None  # None: it is not decided yet


class MissedFire(msgspec.Struct, frozen=True):
    """A plan time that did not run in time, by the clocks of its schedule."""

    schedule: str
    job: str
    timezone: str
    plan_time: datetime
    scope: str
    why: Why  # overdue: no server has decided it yet; passed_over: it is not in the ledger


class StripMark(msgspec.Struct, frozen=True):
    """A plan time, and what came of it."""

    at: datetime
    came: Came  # unknown: retention dropped its task
    reason: Reason | None  # why there is no task
    task_id: int | None
    lateness_ms: float | None


class Strip(msgspec.Struct, frozen=True):
    """A schedule of late: its last plan times in order, and how late it was."""

    schedule: str
    marks: list[StripMark]
    late_after: float  # seconds from which a start is called late: those of its SLO, or one
    p99_ms: float | None  # lateness of its last starts, the most that 99 of 100 had
    starts: int  # that are listed, up to 100


async def next_fires(conn: Connection, actor: Actor, *, n: int = 10) -> list[ComingFire]:
    """What fires next, of all schedules; in the same time however many there are."""
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MOST_COMING:
        raise ValidationError(f"n: {shown(n)}; give 1 to {MOST_COMING}", field="n")
    found = await store.coming(conn, covering(actor.jobs), n)
    return [
        ComingFire(
            one.schedule,
            one.job,
            one.timezone,
            _local(one.plan_time, one.timezone),
            _local(one.due, one.timezone),
            one.task,
        )
        for one in found
        if actor.reaches(one.job)
    ][:n]


async def missed(
    conn: Connection, actor: Actor, *, since: timedelta = timedelta(days=1), limit: int = pages.LIMIT
) -> list[MissedFire]:
    """Plan times since so long ago that did not run in time, the latest first."""
    if not timedelta(0) < since <= timedelta(days=31):
        raise ValidationError(f"since: {since} is no time to look back; give up to 31 days", field="since")
    found = await store.missed(conn, covering(actor.jobs), since, pages.check_limit(limit))
    return [
        MissedFire(one.schedule, one.job, one.timezone, _local(one.plan_time, one.timezone), one.scope, one.why)
        for one in found
        if actor.reaches(one.job)
    ][:limit]


def _local(at: datetime, timezone: str) -> datetime:
    return by_its_clocks(at, zone_or_utc(timezone))


async def strips(conn: Connection, actor: Actor, *, schedule: Sequence[str]) -> list[Strip]:
    """The last 30 plan times of some schedules with what came of them, and the lateness of their last 100 starts."""
    names = list(dict.fromkeys(check_name(name, field="schedule") for name in schedule))
    if not 1 <= len(names) <= MOST_STRIPS:
        raise ValidationError(f"schedule: {len(names)} of them; name 1 to {MOST_STRIPS}", field="schedule")
    found = {one.schedule.name: one for one in await schedules.listing(conn, names=names)}
    if missing := [name for name in names if name not in found or not actor.reaches(found[name].schedule.job)]:
        raise schedules.not_found(missing[0])
    marks: dict[int, list[Any]] = {}
    slices = Slices()
    for row in await fires.last_marks(conn, [found[name].id for name in names], COUNTED):
        marks.setdefault(row["schedule_id"], []).append(row)
        await slices.rest()
    told = []
    for name in names:
        told.append(_strip(found[name], marks.get(found[name].id, [])))
        await slices.rest()
    return told


def _strip(stored: Stored, rows: Sequence[Any]) -> Strip:
    """`rows` are the latest first."""
    zone, after = zone_or_utc(stored.schedule.timezone), _late_after(stored.schedule.policies)
    lateness = sorted(late for row in rows if (late := _lateness(row)) is not None)
    marks = [
        StripMark(
            by_its_clocks(row["plan_time"], zone),
            _came(row, after),
            row["reason"],
            row["task_id"],
            _lateness(row),
        )
        for row in rows[:MARKS]
    ]
    overdue = stored.next_plan_at
    if overdue is not None and stored.enabled and overdue <= stored.now - store.OVERDUE:
        marks = [StripMark(by_its_clocks(overdue, zone), "missed", None, None, None), *marks][:MARKS]
    p99 = lateness[min(len(lateness) - 1, int(len(lateness) * 0.99))] if lateness else None
    return Strip(stored.schedule.name, marks[::-1], after, p99, len(lateness))


def _late_after(policies: Policies) -> float:
    return LATE if policies.slo is None else policies.slo.lateness


def _lateness(row: Any) -> float | None:
    started = row["started_at"]
    return None if started is None else max(0.0, round((started - row["run_at"]).total_seconds() * 1000, 3))


def _came(row: Any, after: float) -> Came:
    if row["reason"] is not None:
        return "missed" if row["reason"] in _MISSED else "skipped"
    if row["state"] is None:
        return "unknown"
    state, late = TaskState(row["state"]), _lateness(row)
    if state in _FAILED:
        return "failed"
    if state in (TaskState.SKIPPED, TaskState.CANCELLED):
        return "skipped"
    if late is None:
        return "waiting"
    return "late" if late > after * 1000 else "running" if state is TaskState.RUNNING else "on_time"
