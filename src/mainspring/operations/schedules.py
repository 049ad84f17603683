"""Schedules: create, list, show, edit, enable, disable, delete, run now; explain and check their plan times.

Next: store/schedules/schedules.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Literal

import msgspec

from mainspring.errors import NameTaken, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.edit_schedule import Edit, differences, edited
from mainspring.model.schedules.planning import Reason
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.story import Origin, Story
from mainspring.model.schedules.timing import timing
from mainspring.model.words.names import check_name
from mainspring.model.words.zones import zone_or_utc
from mainspring.store.access import audit
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import explain as stories
from mainspring.store.schedules import fires, missed, schedules
from mainspring.store.schedules.fires import Run
from mainspring.store.schedules.missed import Checked
from mainspring.store.schedules.revoke import Recalled
from mainspring.store.schedules.schedules import Stored
from mainspring.store.tasks import jobs

FIRES_SHOWN = 3
TASKS_NOTED = 20  # in the audit, of those that one call makes

_AS_STORED = ("enabled", "runs", "app", "version", "is_orphan")

State = Literal["enabled", "disabled", "ended", "problem"]


class LastFire(msgspec.Struct, frozen=True):
    """A plan time that was decided, and the outcome of its task."""

    plan_time: datetime
    scope: str
    origin: Origin
    task_id: int | None
    state: str | None  # of the task; None as well when retention dropped it
    reason: Reason | None  # why there is no task
    decided_at: datetime
    finished_at: datetime | None  # of the task
    age: float  # seconds since then, else since the plan time, by the database's clock


class ScheduleView(msgspec.Struct, frozen=True):
    """All instants are by the clocks of the schedule's timezone; by UTC if this host does not know it."""

    name: str
    job: str
    words: str
    kind: str
    expression: str
    timezone: str
    enabled: bool
    state: State
    next: datetime | None  # plan time
    last: LastFire | None  # the last fire whose task ended; while none has, the latest; None where not looked for
    runs: int
    app: str | None
    drift: list[dict[str, Any]]
    problem: str | None
    version: int
    since: datetime
    created_at: datetime
    updated_at: datetime
    is_orphan: bool  # its application has started without it
    policies: dict[str, Any]


class ScheduleDetail(msgspec.Struct, frozen=True):
    schedule: ScheduleView
    next: list[datetime]
    last: list[LastFire]


class ScheduleChange(msgspec.Struct, frozen=True):
    schedule: ScheduleView
    recalled: Recalled | None  # what became of planned tasks; None: nothing changed


class Explanation(msgspec.Struct, frozen=True):
    schedule: Schedule
    plan_times: list[Story]


async def create(conn: Connection, actor: Actor, schedule: Schedule, *, enabled: bool = False) -> ScheduleView:
    name = schedule.name
    async with conn.transaction():
        if not await schedules.create(conn, schedule, enabled=enabled):
            raise NameTaken(
                f"there is a schedule named {name!r}; change it with `mainspring schedule edit {name}`", field="name"
            )
        stored = await schedules.find(conn, name)
        await audit.changed(conn, actor, "schedule.create", f"schedule:{name}", None, stored.defined)
    return _view(stored)


async def listing(conn: Connection, actor: Actor, *, job: str | None = None) -> list[ScheduleView]:
    """All of them, or those of a job. A job that does not exist is an error, not an empty list."""
    if job is not None:
        await jobs.find(conn, check_name(job, field="job"))
    found = await schedules.listing(conn, job=job)
    last = await _last_fires(conn, found)
    return [_view(stored, last[stored.id]) for stored in found]


async def show(conn: Connection, actor: Actor, name: str) -> ScheduleDetail:
    stored = await _find(conn, name)
    last = (await _last_fires(conn, [stored]))[stored.id]
    view = _view(stored, last)
    return ScheduleDetail(view, [] if view.next is None else _coming(stored, FIRES_SHOWN), last)


async def edit(conn: Connection, actor: Actor, name: str, edit: Edit) -> ScheduleChange:
    return await _change(conn, actor, "schedule.edit", name, lambda schedule: edited(schedule, edit))


async def enable(conn: Connection, actor: Actor, name: str) -> ScheduleChange:
    return await _change(conn, actor, "schedule.enable", name, lambda schedule: schedule, enabled=True)


async def disable(conn: Connection, actor: Actor, name: str) -> ScheduleChange:
    """Revoke what was planned and has not started."""
    return await _change(conn, actor, "schedule.disable", name, lambda schedule: schedule, enabled=False)


async def delete(conn: Connection, actor: Actor, name: str) -> ScheduleChange:
    async with conn.transaction():
        stored = await _find(conn, name)
        recalled = await schedules.delete(conn, name)
        await audit.changed(conn, actor, "schedule.delete", f"schedule:{name}", stored.defined, None)
    return ScheduleChange(_view(stored), recalled)


async def run_now(conn: Connection, actor: Actor, name: str, scopes: Sequence[str] = ()) -> list[int]:
    """One task at once for each scope, beside the plan."""
    checked = tuple(dict.fromkeys(check_name(scope, field="scope") for scope in scopes))
    async with conn.transaction():
        made = await schedules.run_now(conn, check_name(name, field="schedule"), checked)
        detail = {"tasks": made[:TASKS_NOTED], "count": len(made)}
        await audit.record(conn, actor, "schedule.run", f"schedule:{name}", detail)
    return made


async def explain(conn: Connection, actor: Actor, name: str, at: datetime | None = None) -> Explanation:
    """The story of one plan time; without one, of the last and the next."""
    stored = await _find(conn, name)
    return Explanation(stored.schedule, await stories.explain(conn, stored, at))


async def check(
    conn: Connection, actor: Actor, name: str | None, since: timedelta, *, keep: timedelta
) -> list[Checked]:
    """Compare the expected plan times with the decided ones, of one schedule or all.

    `keep` is how long fires are kept: before that, a dropped one looks like a missing one.
    """
    found = await schedules.listing(conn) if name is None else [await _find(conn, name)]
    return [await _check(conn, stored, min(since, keep)) for stored in found]


async def _check(conn: Connection, stored: Stored, back: timedelta) -> Checked:
    try:
        return await missed.missing(conn, stored, stored.now - back, stored.now)
    except ValidationError as error:  # a timezone that this host does not know
        return missed.unknown(stored, error.message)


async def _find(conn: Connection, name: str) -> Stored:
    return await schedules.find(conn, check_name(name, field="schedule"))


async def _last_fires(conn: Connection, found: Sequence[Stored]) -> dict[int, list[LastFire]]:
    """Schedule id → its last fires, the latest first."""
    if not found:
        return {}
    runs = await fires.last_runs(conn, [stored.id for stored in found], found[0].now, FIRES_SHOWN)
    return {stored.id: [_last_fire(stored, run) for run in runs.get(stored.id, ())] for stored in found}


def _last_fire(stored: Stored, run: Run) -> LastFire:
    zone, fire = zone_or_utc(stored.schedule.timezone), run.fire
    return LastFire(
        plan_time=fire.plan_time.astimezone(zone),
        scope=fire.scope,
        origin=fire.origin,
        task_id=fire.task_id,
        state=None if run.state is None else run.state.label,
        reason=fire.reason,
        decided_at=fire.decided_at.astimezone(zone),
        finished_at=None if run.finished_at is None else run.finished_at.astimezone(zone),
        age=(stored.now - (run.finished_at or fire.plan_time)).total_seconds(),
    )


def _last_ended(last: Sequence[LastFire]) -> LastFire | None:
    ended = [(fire.finished_at, fire) for fire in last if fire.finished_at is not None]
    return max(ended, key=itemgetter(0))[1] if ended else next(iter(last), None)


def _coming(stored: Stored, count: int) -> list[datetime]:
    """The next plan times; none if it is disabled or has used up its runs."""
    most = stored.schedule.policies.max_runs
    if not stored.enabled or (most is not None and stored.runs >= most):
        return []
    times = timing(stored.schedule)
    end = datetime.max.replace(tzinfo=stored.now.tzinfo)
    return [at.astimezone(times.zone) for at in times.between(stored.now, end, count)]


async def _change(
    conn: Connection,
    actor: Actor,
    action: str,
    name: str,
    edit: Callable[[Schedule], Schedule],
    *,
    enabled: bool | None = None,
) -> ScheduleChange:
    async with conn.transaction():
        stored = await schedules.find(conn, check_name(name, field="schedule"), lock=True)
        changed = await schedules.change_held(conn, stored, edit(stored.schedule), enabled=enabled)
        await audit.changed(conn, actor, action, f"schedule:{name}", stored.defined, changed.stored.defined)
    return ScheduleChange(_view(changed.stored), changed.recalled)


def _view(stored: Stored, last: Sequence[LastFire] = ()) -> ScheduleView:
    schedule = stored.schedule
    words, problem = schedule.expression, stored.problem
    following: list[datetime] = []
    try:
        words = timing(schedule).words
        following = _coming(stored, 1)
    except ValidationError as error:  # a timezone that this host does not know
        problem = error.message
    zone = zone_or_utc(schedule.timezone)
    return ScheduleView(
        name=schedule.name,
        job=schedule.job,
        words=words,
        kind=schedule.kind,
        expression=schedule.expression,
        timezone=schedule.timezone,
        state=_state(stored, problem, has_next=bool(following)),
        next=following[0] if following else None,
        last=_last_ended(last),
        drift=[] if stored.code is None else [one._asdict() for one in differences(stored.code, schedule)],
        problem=problem,
        policies=msgspec.structs.asdict(schedule.policies),
        **{name: getattr(stored, name).astimezone(zone) for name in ("since", "created_at", "updated_at")},
        **{name: getattr(stored, name) for name in _AS_STORED},
    )


def _state(stored: Stored, problem: str | None, *, has_next: bool) -> State:
    """`ended`: no plan time will come, by its end, its max_runs, or because it was a single one."""
    if not stored.enabled:
        return "disabled"
    if problem is not None:
        return "problem"
    is_over = not has_next and stored.next_plan_at is None and stored.schedule.kind != "daemon"
    return "ended" if is_over else "enabled"
