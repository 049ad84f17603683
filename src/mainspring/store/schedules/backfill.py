"""Backfill: runs for plan times in the past, a limited number at a time; and a single run at once, by hand.

A backfill skips plan times that have a task, so it can be repeated, resumed, and run twice at once. The tasks are apart
from the plan: no overlap policy counts them (store/schedules/overlap.py), and no change of the schedule revokes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import asyncpg

from mainspring.errors import Conflict, InvalidTransition, ScheduleNotFound, ValidationError
from mainspring.model.schedules.planning import INSTANT, arguments
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.states import PENDING
from mainspring.store.flows.checked import CHECKED, CHECKED_COLUMNS, PRIORITY, checking
from mainspring.store.followed import runs
from mainspring.store.postgres import hints
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules.schedules import Stored, find

MOST = 100_000  # plan times × scopes in one backfill
AT_ONCE = 1_000  # submitted in one statement

FireKey = tuple[datetime, str]  # plan time and scope: the key of a fire within its schedule


def check_range(start: datetime, end: datetime) -> None:
    """Refuse an empty range."""
    if end <= start:
        raise ValidationError(f"to: {end.isoformat()} is not after {start.isoformat()}, the --from", field="to")


def check_backfill(
    schedule: Schedule, start: datetime, end: datetime, now: datetime, scopes: Sequence[str] = ()
) -> tuple[str, ...]:
    """Refuse what cannot be filled; returns the scopes to fill."""
    check_range(start, end)
    if schedule.kind == "daemon":
        raise InvalidTransition(
            f"schedule {schedule.name!r} keeps replicas running; it has no plan times to fill", field="schedule"
        )
    latest = now - timedelta(seconds=schedule.policies.delay)
    if end > latest:
        raise ValidationError(
            f"to: plan times up to {end.isoformat()} have not all come; give {latest.isoformat(timespec='seconds')}"
            " or earlier",
            field="to",
        )
    if not scopes and schedule.policies.provider is not None:
        raise ValidationError(
            f"scope: the scopes of {schedule.name!r} are told by its application; name those to fill with --scope",
            field="scopes",
        )
    wanted = chosen_scopes(schedule, scopes)
    if len(wanted) > MOST:
        raise ValidationError(f"from: more than {MOST:,} scopes; name some of them with --scope", field="from")
    return wanted


def too_many(end: datetime, scopes: int, last: datetime) -> ValidationError:
    """`last` is the last plan time of those that may be filled in one go."""
    return ValidationError(
        f"from: more than {MOST:,} runs up to {end.isoformat()} ({scopes} for each plan time); give a later"
        f" --from or an earlier --to: the first {MOST // scopes:,} plan times end at {last.isoformat()}",
        field="from",
    )


_WITH_TASK = """
    select plan_time, scope, reason from mainspring.fire
     where schedule_id = $1 and plan_time >= $2 and plan_time <= $3 and (task_id is not null or reason = 'skipped')
"""


class Open(NamedTuple):
    fires: list[FireKey]  # those without a task
    skipped: int  # of them, those that a person skipped


async def still_open(conn: Connection, stored: Stored, fires: Sequence[FireKey]) -> Open:
    """Those without a task."""
    if not fires:
        return Open([], 0)
    rows = await conn.fetch(_WITH_TASK, stored.id, fires[0][0], fires[-1][0])
    known = {(row["plan_time"], row["scope"]): row["reason"] for row in rows}
    open_ones = [fire for fire in fires if known.get(fire, "") is not None]
    return Open(open_ones, sum(fire in known for fire in open_ones))


# In the order of the plan times, so that two backfills cannot deadlock. The second of the two finds the task of the
# first and creates none.
_BACKFILL = f"""
    with given as materialized (
        select g.*, nextval('mainspring.task_id') as task_id
          from unnest($2::timestamptz[], $3::text[], $4::text[]) with ordinality
            as g(plan_time, scope, args, position)
         order by position
    ), decided as (
        insert into mainspring.fire as f (schedule_id, plan_time, scope, task_id, origin, decided_at)
        select $1, plan_time, scope, task_id, 'backfill', (select mainspring.now()) from given order by position
        on conflict (schedule_id, plan_time, scope) do update
           set task_id = excluded.task_id, reason = null, origin = 'backfill', decided_at = excluded.decided_at
         where f.task_id is null
        returning f.task_id
    ), made as (
        insert into mainspring.task
            (id, run_at, created_at, job_id, pool, state, priority, args, schedule_id, plan_time, scope, origin,
             {CHECKED_COLUMNS})
        select given.task_id, (select mainspring.now()), (select mainspring.now()), j.id, j.pool, {PENDING:d},
               {PRIORITY}, given.args::jsonb, s.id, given.plan_time, given.scope, 'backfill', {CHECKED}
          from decided join given using (task_id) cross join mainspring.schedule s
          join mainspring.job j on j.id = s.job_id {checking("given.args::jsonb", "mainspring.now()", "s.policies")}
         where s.id = $1
        returning id, pool, priority, run_at
    )
    select id, ({hints.due("made")}) as hints from made
"""


async def backfill(conn: Connection, stored: Stored, fires: Sequence[FireKey]) -> list[int]:
    """Create tasks that are due now for those of `fires` that have none; returns the tasks."""
    rows = await conn.fetch(
        _BACKFILL,
        stored.id,
        [at for at, _ in fires],
        [scope for _, scope in fires],
        [arguments(stored.schedule.policies, stored.schedule.timezone, at, scope) for at, scope in fires],
    )
    return [row["id"] for row in rows]


_HOLD = "select version from mainspring.schedule where id = $1 for no key update"

_LIVE = "select count(*) from mainspring.task where schedule_id = $1 and origin = 'backfill'"


class Filled(NamedTuple):
    """The result of one step."""

    tried: int  # fires that have a task now, from this step or another backfill
    tasks: list[int]
    live: int  # tasks of the schedule's backfills that have not ended


async def fill(conn: Connection, stored: Stored, fires: Sequence[FireKey], max_parallel: int) -> Filled:
    """Create tasks for the first of `fires`, so that at most `max_parallel` of this schedule's backfills are live.

    Locks the schedule's row, so that concurrent backfills of one schedule share the limit.
    """
    async with conn.transaction():
        if await conn.fetchval(_HOLD, stored.id) is None:
            raise ScheduleNotFound(f"schedule {stored.schedule.name!r} was deleted meanwhile", field="schedule")
        live: int = await conn.fetchval(_LIVE, stored.id)
        room = min(max(0, max_parallel - live), AT_ONCE)
        chosen = fires[:room]
        tasks = await backfill(conn, stored, chosen) if chosen else []
    return Filled(len(chosen), tasks, live + len(tasks))


async def run_now(conn: Connection, name: str, scopes: Sequence[str] = ()) -> list[int]:
    """Run it once now, all its scopes or those given, apart from its plan; returns the tasks."""
    stored = await find(conn, name)
    policies = stored.schedule.policies
    if stored.schedule.kind == "daemon":
        raise InvalidTransition(f"schedule {name!r} keeps replicas running; there is no single run", field="schedule")
    if not scopes and policies.provider is not None:
        raise Conflict(
            f"the scopes of {name!r} are told by its application; name those to run with --scope", field="scopes"
        )
    wanted = chosen_scopes(stored.schedule, scopes)
    plan_time, times = stored.now, timing(stored.schedule)
    while True:
        # Only planners decide plan times; and another manual run may have taken this instant.
        if times.after(plan_time - INSTANT) != plan_time:
            args = [arguments(policies, stored.schedule.timezone, plan_time, scope) for scope in wanted]
            try:
                async with conn.transaction():  # a savepoint, where the caller has a transaction
                    return await runs.make(conn, stored.id, wanted, plan_time, args, stored.now, origin="manual")
            except asyncpg.UniqueViolationError:
                pass
        plan_time += INSTANT


def chosen_scopes(schedule: Schedule, given: Sequence[str]) -> tuple[str, ...]:
    """The scopes that a person names, each once, or all; Conflict if the schedule does not have one of them."""
    known = schedule.policies.scopes
    for scope in given if schedule.policies.provider is None else ():
        if scope not in known:
            there = ", ".join(known[:10]) or "none"
            raise Conflict(f"schedule {schedule.name!r} has no scope {scope!r}; it has: {there}", field="scopes")
    return tuple(dict.fromkeys(given)) or known or ("",)
