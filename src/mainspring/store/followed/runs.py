"""Runs: tasks for one plan time that are made at once, beside the planner: by hand, or when a schedule begins.

Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mainspring.model.schedules.planning import INSTANT, arguments
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.story import Origin, last_before
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.states import PENDING
from mainspring.store.flows.checked import CHECKED, CHECKED_COLUMNS, PRIORITY, checking
from mainspring.store.postgres import hints
from mainspring.store.postgres.connection import Connection

_MAKE = f"""
    with scope as (
        select scope, args, nextval('mainspring.task_id') as task_id
          from unnest($2::text[], $4::text[]) as given(scope, args)
         where exists (select from mainspring.schedule where id = $1)
    ), decided as (
        insert into mainspring.fire (schedule_id, plan_time, scope, task_id, origin)
        select $1, $3, scope, task_id, $6 from scope
    ), made as (
        insert into mainspring.task
            (id, run_at, created_at, job_id, pool, state, priority, args, schedule_id, plan_time, scope, origin,
             {CHECKED_COLUMNS})
        select scope.task_id, $5, $5, j.id, j.pool, {PENDING:d}, {PRIORITY},
               scope.args::jsonb, s.id, $3, scope.scope, $6, {CHECKED}
          from scope cross join mainspring.schedule s
          join mainspring.job j on j.id = s.job_id {checking("scope.args::jsonb", "$5::timestamptz", "s.policies")}
         where s.id = $1
        returning id, pool, priority, run_at
    )
    select id, ({hints.due("made")}) as hints from made
"""


async def make(
    conn: Connection,
    schedule: int,
    scopes: Sequence[str],
    plan_time: datetime,
    args: Sequence[str],
    now: datetime,
    *,
    origin: Origin,
) -> list[int]:
    """A task for each scope, due now; returns them. UniqueViolationError: the plan time is decided already."""
    rows = await conn.fetch(_MAKE, schedule, scopes, plan_time, args, now, origin)
    return [row["id"] for row in rows]


async def make_latest(conn: Connection, id: int, schedule: Schedule, now: datetime) -> None:
    """Run the last plan time before a schedule begins to run: `first="latest"`."""
    policies = schedule.policies
    plan_time = last_before(timing(schedule), now + INSTANT)
    if plan_time is None:
        return
    scopes = policies.scopes or ("",)
    args = [arguments(policies, schedule.timezone, plan_time, scope) for scope in scopes]
    if await make(conn, id, scopes, plan_time, args, now, origin="plan"):
        await conn.execute("update mainspring.schedule set runs = runs + 1 where id = $1", id)
