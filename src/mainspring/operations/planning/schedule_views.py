"""Schedule views: schedules and their fires as people and programs see them.

All instants are by the clocks of the schedule's timezone; by UTC if this host does not know it.
Next: operations/definitions/schedules.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec

from mainspring.errors import ValidationError
from mainspring.model.access.masking import masked
from mainspring.model.schedules.edit_schedule import differences
from mainspring.model.schedules.planning import Reason
from mainspring.model.schedules.schedule_spec import ScheduleSpec, spec_of
from mainspring.model.schedules.schedules import Kind, Policies
from mainspring.model.schedules.skips import Skip, unskipped
from mainspring.model.schedules.story import Origin
from mainspring.model.schedules.timing import Timing, timing
from mainspring.model.words.zones import by_its_clocks, zone_or_utc
from mainspring.store.followed.slo import SloState
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import fires
from mainspring.store.schedules.fires import Run
from mainspring.store.schedules.revoke import Recalled
from mainspring.store.schedules.schedules import Changed, Stored

FIRES_SHOWN = 3

State = Literal["enabled", "disabled", "ended", "problem"]


class FireView(msgspec.Struct, frozen=True):
    """A plan time that was decided, and the outcome of its task."""

    plan_time: datetime
    scope: str
    origin: Origin
    task_id: int | None
    state: str | None  # of the task; None as well when retention dropped it
    reason: Reason | None  # why there is no task
    skipped_by: str | None  # the actor, and why, where the reason is `skipped`
    decided_at: datetime
    finished_at: datetime | None  # of the task
    age: float  # seconds since then, else since the plan time, by the database's clock


class AllPolicies(Policies, frozen=True, omit_defaults=False):
    """The policies of a schedule, those with default values too."""


class Drift(msgspec.Struct, frozen=True):
    """A field in which a schedule differs from the code of its application."""

    field: str
    code: Any
    in_force: Any


class SkipView(msgspec.Struct, frozen=True):
    """Plan times that a person has skipped; `start` and `until` are the same for a single one."""

    start: datetime
    until: datetime  # it is skipped as well
    by: str
    note: str
    made_at: datetime


class ScheduleView(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    job: str
    words: str
    kind: Kind
    expression: str
    timezone: str
    enabled: bool
    state: State
    next: datetime | None  # plan time that is not skipped
    last: FireView | None  # the last fire whose task ended; while none has, the latest; None where not looked for
    runs: int
    app: str | None
    drift: list[Drift]
    problem: str | None
    version: int
    since: datetime
    created_at: datetime
    updated_at: datetime
    is_orphan: bool  # its application has started without it
    policies: AllPolicies
    spec: ScheduleSpec  # as it can be written again
    skips: list[SkipView]  # by hand, those that are not over
    manifest: str | None = None  # the set of manifests that owns it


class ScheduleDetail(msgspec.Struct, frozen=True):
    schedule: ScheduleView
    next: list[datetime]
    last: list[FireView]
    slo: SloState | None  # how it does by its objective; null: it has none
    before: str | None = None  # the schedule before it, by name
    after: str | None = None


class ScheduleChange(msgspec.Struct, frozen=True):
    schedule: ScheduleView
    recalled: Recalled | None  # what became of planned tasks; None: nothing changed, or it is new
    created: bool
    changed: bool


def changed(done: Changed) -> ScheduleChange:
    return ScheduleChange(view(done.stored), done.recalled, created=False, changed=done.recalled is not None)


def view(stored: Stored, last: Sequence[FireView] = (), *, reveal: bool = False) -> ScheduleView:
    """The one place where schedules become visible."""
    schedule = stored.schedule
    words, problem = schedule.expression, stored.problem
    following: list[datetime] = []
    try:
        words = timing(schedule).words
        following = coming(stored, 1)
    except ValidationError as error:  # a timezone that this host does not know
        problem = error.message
    zone = zone_or_utc(schedule.timezone)
    policies, spec = schedule.policies, spec_of(schedule, enabled=stored.enabled)
    return ScheduleView(
        name=schedule.name,
        namespace="default",
        job=schedule.job,
        words=words,
        kind=schedule.kind,
        expression=schedule.expression,
        timezone=schedule.timezone,
        state=_state(stored, problem, has_next=bool(following)),
        next=following[0] if following else None,
        last=last_ended(last),
        drift=[]
        if stored.code is None
        else [_drift(*one, reveal=reveal) for one in differences(stored.code, schedule)],
        problem=problem,
        policies=AllPolicies(**msgspec.structs.asdict(policies if reveal else masked(policies))),
        spec=spec if reveal else masked(spec),
        skips=[skip_view(skip, zone) for skip in stored.skips],
        enabled=stored.enabled,
        runs=stored.runs,
        app=stored.app,
        manifest=stored.manifest,
        version=stored.version,
        is_orphan=stored.is_orphan,
        since=by_its_clocks(stored.since, zone),
        created_at=by_its_clocks(stored.created_at, zone),
        updated_at=by_its_clocks(stored.updated_at, zone),
    )


def skip_view(skip: Skip, zone: ZoneInfo) -> SkipView:
    """By the clocks of a timezone."""
    start, until, made_at = (by_its_clocks(at, zone) for at in (skip.start, skip.stop, skip.made_at))
    return SkipView(start, until, skip.by, skip.note, made_at)


def _drift(field: str, code: Any, in_force: Any, *, reveal: bool) -> Drift:
    told = [msgspec.to_builtins(one) for one in (code, in_force)]
    return Drift(field, *(told if reveal else [masked({field: one})[field] for one in told]))


def _state(stored: Stored, problem: str | None, *, has_next: bool) -> State:
    """`ended`: no plan time will come, by its end, its max_runs, or because it was a single one."""
    if not stored.enabled:
        return "disabled"
    if problem is not None:
        return "problem"
    is_over = not has_next and stored.next_plan_at is None and stored.schedule.kind != "daemon"
    return "ended" if is_over else "enabled"


def coming(stored: Stored, count: int, times: Timing | None = None) -> list[datetime]:
    """The next plan times that are not skipped; none if it is disabled or has used up its runs."""
    most = stored.schedule.policies.max_runs
    if not stored.enabled or (most is not None and stored.runs >= most):
        return []
    times = times or timing(stored.schedule)
    return [by_its_clocks(at, times.zone) for at in islice(unskipped(times, stored.skips, stored.now), count)]


async def last_fires(conn: Connection, found: Sequence[Stored]) -> dict[int, list[FireView]]:
    """Schedule id → its last fires, the latest first."""
    if not found:
        return {}
    runs = await fires.last_runs(conn, [stored.id for stored in found], found[0].now, FIRES_SHOWN)
    return {stored.id: [fire_view(stored, run) for run in runs.get(stored.id, ())] for stored in found}


def fire_view(stored: Stored, run: Run) -> FireView:
    zone, fire = zone_or_utc(stored.schedule.timezone), run.fire
    return FireView(
        plan_time=by_its_clocks(fire.plan_time, zone),
        scope=fire.scope,
        origin=fire.origin,
        task_id=fire.task_id,
        state=None if run.state is None else run.state.label,
        reason=fire.reason,
        skipped_by=fire.skipped_by,
        decided_at=by_its_clocks(fire.decided_at, zone),
        finished_at=None if run.finished_at is None else by_its_clocks(run.finished_at, zone),
        age=(stored.now - (run.finished_at or fire.plan_time)).total_seconds(),
    )


def last_ended(last: Sequence[FireView]) -> FireView | None:
    ended = [(fire.finished_at, fire) for fire in last if fire.finished_at is not None]
    return max(ended, key=itemgetter(0))[1] if ended else next(iter(last), None)
