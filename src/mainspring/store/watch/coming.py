"""Coming: the next fires of all schedules together, and those that were missed of late.

A planner makes tasks some seconds ahead of their plan time and moves the cursor of the schedule behind it. So what
comes next is in two places: the tasks of plan times that are decided, and the cursors of those that are not.
Each is a short range of an index, however many schedules there are and whatever is stored.
Reads   mainspring.task, mainspring.schedule, mainspring.fire, mainspring.ledger_hole
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from mainspring.model.schedules.planning import AHEAD, LOOK_BEFORE
from mainspring.model.tasks.pools import PARKED
from mainspring.model.tasks.states import ASSIGNED, PENDING
from mainspring.store.postgres.connection import Connection

Why = Literal["misfire", "coalesced", "overdue", "passed_over"]

OVERDUE = timedelta(seconds=30)  # past its time, that a plan time is decided at the latest
_REACH = AHEAD + LOOK_BEFORE  # how far ahead of their plan time there may be tasks, but for agents with a long lead


class Coming(NamedTuple):
    schedule: str
    job: str
    timezone: str
    plan_time: datetime
    due: datetime  # with its delay and jitter; of one that is not decided, without jitter
    task: int | None


# By pool and priority, as claims read them; `coalesce` keeps PostgreSQL from another index, as in missed_starts.py.
_DECIDED = f"""
    select found.schedule_id, found.plan_time, found.run_at, found.id
      from (select id from mainspring.pool union all select {PARKED}) p
     cross join generate_series(0, 9) as level(priority)
     cross join lateral (
         select t.schedule_id, t.plan_time, t.run_at, t.id from mainspring.task t
          where t.pool = p.id and t.priority = level.priority
            and t.run_at > now.at and t.run_at <= now.at + $1::interval
            and coalesce(t.schedule_id, 0) <> 0 and t.origin = 'plan' and t.state in ({PENDING:d}, {ASSIGNED:d})
          order by t.run_at limit $2
     ) found
"""
_COMING = f"""
    with now as materialized (select mainspring.now() as at)
    select s.name, j.name, s.timezone, one.plan_time, one.due, one.task
      from (
          (select d.schedule_id as id, d.plan_time, d.run_at as due, d.id as task
             from now cross join lateral ({_DECIDED}) d order by d.run_at limit $2)
           union all
          (select s.id, s.next_plan_at, s.look_at + $3::interval, null::bigint
             from mainspring.schedule s
            where s.look_at is not null and s.next_plan_at > (select at from now) order by s.look_at limit $2)
      ) one
      join mainspring.schedule s on s.id = one.id
      join mainspring.job j on j.id = s.job_id
     where s.enabled and s.namespace = 'default' and ($4::text[] is null or j.name like any ($4))
     order by one.due, s.name
"""


async def coming(conn: Connection, jobs: Sequence[str] | None, limit: int) -> list[Coming]:
    """The next fires, those due first; of jobs that match patterns of LIKE. There may be more than `limit`.

    Where few jobs match, few are found: it looks at the next of all schedules.
    """
    rows = await conn.fetch(_COMING, _REACH, limit, LOOK_BEFORE, jobs)
    return [Coming(*row) for row in rows]


_AHEAD = f"""
    with now as materialized (select mainspring.now() as at)
    select d.schedule_id from now cross join lateral ({_DECIDED}) d
     group by d.schedule_id order by min(d.run_at), d.schedule_id limit $2
"""


async def ahead(conn: Connection, limit: int) -> list[int]:
    """The schedules whose next plan time is decided, those due first: their cursors are at the one after it."""
    return [row["schedule_id"] for row in await conn.fetch(_AHEAD, _REACH, limit)]


class MissedFire(NamedTuple):
    schedule: str
    job: str
    timezone: str
    plan_time: datetime
    scope: str
    why: Why


# Those that were decided too late have a small index; what is overdue is looked at by no planner; holes are few.
_MISSED = """
    with now as materialized (select mainspring.now() as at), found as (
        (select f.schedule_id as id, f.plan_time, f.scope, f.reason as why from mainspring.fire f
          where f.reason in ('misfire', 'coalesced') and f.plan_time > (select at from now) - $1::interval
          order by f.plan_time desc limit $2)
         union all
        (select s.id, s.next_plan_at, '', 'overdue' from mainspring.schedule s
          where s.look_at <= (select at from now) - $3::interval and s.enabled
            and s.next_plan_at <= (select at from now) - $3::interval
          order by s.look_at limit $2)
         union all
        (select s.id, s.next_plan_at, '', 'overdue' from mainspring.schedule s
          where s.problem is not null and s.enabled and s.look_at > (select at from now) - $3::interval
            and s.next_plan_at <= (select at from now) - $3::interval
          order by s.name limit $2)
         union all
        (select h.schedule_id, h.plan_time, h.scope, 'passed_over' from mainspring.ledger_hole h
          where h.found_at > (select at from now) - $1::interval
          order by h.found_at desc limit $2)
    )
    select s.name, j.name, s.timezone, found.plan_time, found.scope, found.why
      from found join mainspring.schedule s on s.id = found.id join mainspring.job j on j.id = s.job_id
     where s.namespace = 'default' and ($4::text[] is null or j.name like any ($4))
     order by found.plan_time desc, s.name, found.scope
"""


async def missed(conn: Connection, jobs: Sequence[str] | None, within: timedelta, limit: int) -> list[MissedFire]:
    """Plan times of late that did not run in time, the latest first. There may be more than `limit`."""
    rows = await conn.fetch(_MISSED, within, limit, OVERDUE, jobs)
    return [MissedFire(*row) for row in rows]


_BESIDE = """
    select (select s.name from mainspring.schedule s join mainspring.job j on j.id = s.job_id
             where s.namespace = 'default' and s.name < $1 and ($2::text[] is null or j.name like any ($2))
             order by s.name desc limit 1) as before,
           (select s.name from mainspring.schedule s join mainspring.job j on j.id = s.job_id
             where s.namespace = 'default' and s.name > $1 and ($2::text[] is null or j.name like any ($2))
             order by s.name limit 1) as after
"""


async def beside(conn: Connection, name: str, jobs: Sequence[str] | None) -> tuple[str | None, str | None]:
    """The schedules before and after one, by name."""
    before, after = await conn.fetchrow(_BESIDE, name, jobs)
    return before, after
