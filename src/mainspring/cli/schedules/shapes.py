"""Schedules as people see them: made of what is stored, by the clocks of their own timezones.

Next: cli/schedule_client.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from operator import itemgetter
from typing import Any, Literal

import msgspec

from mainspring.errors import ValidationError
from mainspring.model.schedules.edit_schedule import differences
from mainspring.model.schedules.planning import Reason
from mainspring.model.schedules.story import Origin
from mainspring.model.schedules.timing import timing
from mainspring.model.words.zones import zone_or_utc
from mainspring.store.schedules.fires import Run
from mainspring.store.schedules.schedules import Stored

_AS_STORED = ("enabled", "runs", "app", "version", "is_orphan")


State = Literal["enabled", "disabled", "ended", "problem"]


class LastFire(msgspec.Struct, frozen=True):
    """What became of a plan time."""

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
    """A schedule as people see it."""

    name: str
    job: str
    words: str
    kind: str
    expression: str
    timezone: str
    enabled: bool
    state: State
    next: datetime | None  # plan time, by the clocks of its timezone
    last: LastFire | None  # the last run that ended; while none has, the latest; where it was looked for
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


class Shown(msgspec.Struct, frozen=True):
    """One schedule with what comes next and what came last. All instants are by the clocks of its timezone."""

    schedule: ScheduleView
    next: list[datetime]
    last: list[LastFire]


def zone_of(stored: Stored) -> tzinfo:
    """Its timezone; UTC if this host does not know it."""
    return zone_or_utc(stored.schedule.timezone)


def coming(stored: Stored, count: int) -> list[datetime]:
    """The next plan times by the clocks of its timezone; none if it is disabled, or has used up its runs."""
    most = stored.schedule.policies.max_runs
    if not stored.enabled or (most is not None and stored.runs >= most):
        return []
    times = timing(stored.schedule)
    end = datetime.max.replace(tzinfo=stored.now.tzinfo)
    return [at.astimezone(times.zone) for at in times.between(stored.now, end, count)]


def last_fire(stored: Stored, run: Run) -> LastFire:
    zone, fire = zone_of(stored), run.fire
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


def last_ended(fires: Sequence[LastFire]) -> LastFire | None:
    """The one whose task ended last; while none has, the latest."""
    ended = [(fire.finished_at, fire) for fire in fires if fire.finished_at is not None]
    return max(ended, key=itemgetter(0))[1] if ended else next(iter(fires), None)


def view(stored: Stored, last: LastFire | None = None) -> ScheduleView:
    schedule = stored.schedule
    words, problem = schedule.expression, stored.problem
    following: list[datetime] = []
    try:
        words = timing(schedule).words
        following = coming(stored, 1)
    except ValidationError as error:  # a timezone that this host does not know
        problem = error.message
    zone = zone_of(stored)
    code = () if stored.code is None else differences(stored.code, schedule)
    return ScheduleView(
        name=schedule.name,
        job=schedule.job,
        words=words,
        kind=schedule.kind,
        expression=schedule.expression,
        timezone=schedule.timezone,
        state=_state(stored, problem, has_next=bool(following)),
        next=following[0] if following else None,
        last=last,
        drift=[difference._asdict() for difference in code],
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
