"""Waits: why tasks have not been claimed: no agent or server for them, a limit of their job, the time of a retry, or
other tasks, another schedule.

Reads   mainspring.task, mainspring.attempt, the live agents (store/cluster/registry.py)
Next:   model/tasks/waits.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mainspring.model.limits.holds import Hold
from mainspring.model.placement.placement import Requirements, decode
from mainspring.model.placement.segments import SEGMENTS
from mainspring.model.tasks.jobs import PRIORITY_LEVELS
from mainspring.model.tasks.pools import DAEMON, IS_DAEMON, IS_NOT_DAEMON, IS_PARKED
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import ASSIGNED, BLOCKED, PENDING
from mainspring.model.tasks.waits import (
    NAMED,
    Limited,
    Retried,
    Wait,
    after_others,
    no_owner,
    until_retry,
    why,
    why_held,
    why_limited,
)
from mainspring.store.cluster.cluster_views import unserved
from mainspring.store.cluster.registry import loaded
from mainspring.store.followed import after
from mainspring.store.limits.release import LIMITS
from mainspring.store.postgres.connection import is_producer
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import views

COUNTED = 1000  # waiting tasks of one pool at most

# What a task that no agent has started may wait for: an agent (`requirements`), its limits, the time of a retry.
_WAITING = f"""
    select t.id, case when t.is_due and not t.is_limited then t.requirements end as requirements,
           t.{IS_NOT_DAEMON} and not t.requirements ? '@broadcast' as needs_owner,     -- any server places the others
           t.is_due and t.is_limited as is_limited, t.is_retried,
           exists (select from mainspring.hold) as has_holds                           -- of anything
      from (select t.id, t.pool, p.requirements, t.{IS_PARKED} or p.target is not null as is_limited,
                   t.state = {PENDING:d} and t.run_at <= (select mainspring.now()) as is_due,
                   t.token is not null and t.run_at > (select mainspring.now()) as is_retried
              from mainspring.task t left join mainspring.job j on j.id = t.job_id
              left join mainspring.pool p on p.id = case t.pool when {DAEMON} then j.pool else t.pool end
             where t.id = any($1::bigint[]) and t.state in ({PENDING:d}, {ASSIGNED:d})) t
"""
_LIMITED = f"""
    select t.id, t.key, t.key_limit, t.max_running, t.rate,
           (select count(*) from mainspring.task r where r.job_id = t.job_id and r.job_slot is not null) as running,
           array(select r.id from mainspring.task r
                  where r.concurrency_key = t.key and r.key_slot is not null order by r.id) as holders,
           (select date_part('epoch', th.until - mainspring.now()) - t.spacing * (t.burst - 1)
              from mainspring.throttle th
             where th.job_id = t.job_id and th.key = case when t.per_key then t.key else '' end) as next_in
      from (select t.id, t.job_id, l.limits->'rate' as rate, {LIMITS},
                   case when t.key_given then t.concurrency_key
                        else mainspring.key_within(j.namespace, mainspring.fill_key(
                            l.limits->>'key', t.args, coalesce(l.limits->'defaults', '{{}}'))) end as key
              from mainspring.task t join mainspring.job j on j.id = t.job_id
             cross join lateral (select coalesce(j.definition->'gate', '{{}}') as limits) l
             where t.id = any($1::bigint[]) and t.state = {PENDING:d}) t
"""


# A broadcast's run in a blocked pool waits alike.
_RETRIED = f"""
    select t.id, date_part('epoch', t.run_at - mainspring.now()) as next_in,
           t.attempt - (t.state = {ASSIGNED:d})::integer as attempts,         -- one that is armed counts as begun
           coalesce((t.options->>'retries')::integer,
                    case when (j.definition->>'retries_by_default')::boolean
                         then (select (s.value#>>'{{}}')::integer
                                 from mainspring.setting s where s.name = 'default_retries') end,
                    (j.definition->'retry'->>'retries')::integer, {Retry().retries}) as retries,
           t.{IS_DAEMON} as daemon, last.error
      from mainspring.task t left join mainspring.job j on j.id = t.job_id
     cross join lateral (
         select coalesce(a.error, a.error_code) as error from mainspring.attempt a
          where a.task_id = t.id and a.error_code is distinct from 'stale_attempt'
            and a.recorded_at >= t.created_at - interval '1 hour'      -- the clock may have been set back
          order by a.token desc limit 1
     ) last
     where t.id = any($1::bigint[]) and t.state in ({PENDING:d}, {ASSIGNED:d}) and t.run_at > mainspring.now()
"""


# Of those that are blocked for other tasks; some wait for their turn instead.
_BLOCKED = f"""
    select t.id, t.waiting_for as count, first.parents
      from mainspring.task t
     cross join lateral (
         select array_agg(array[edge.parent, edge.state] order by edge.parent) as parents
           from (select d.parent, p.state from mainspring.dependency d
                   left join mainspring.task p on p.id = d.parent
                  where d.child = t.id order by d.parent limit {NAMED}) edge
     ) first
     where t.id = any($1::bigint[]) and t.state = {BLOCKED:d} and t.waiting_for > 0
"""


async def waits(conn: Connection, tasks: Sequence[int]) -> dict[int, Wait]:
    """What those of `tasks` that are due and not claimed wait for; and when failed ones are due again.

    A producer may not know it.
    """
    if is_producer(conn):
        return {}
    rows = await conn.fetch(_WAITING, tasks)
    held = await _held(conn, tasks) if any(row["has_holds"] for row in rows) else {}
    rest = [task for task in tasks if task not in held]
    return {**await _unheld(conn, rest, [row for row in rows if row["id"] not in held]), **held}


# A hold of everything says less than one of the job itself.
_HELD = f"""
    select distinct on (t.id) t.id, j.name, h.job_id as job, h.held_at, h.held_by, h.note, h.skips, h.released_at,
           h.spread_until, h.waiting
      from mainspring.task t join mainspring.job j on j.id = t.job_id
      join mainspring.hold h on h.job_id = j.id or h.job_id is null
     where t.id = any($1::bigint[]) and t.state = {PENDING:d} and t.run_at <= mainspring.now()
       and (h.released_at is null or h.spread_until > mainspring.now())
     order by t.id, h.released_at nulls first, h.job_id nulls last
"""


async def _held(conn: Connection, tasks: Sequence[int]) -> dict[int, Wait]:
    """Those of `tasks` that wait for the end of a hold."""
    rows = await conn.fetch(_HELD, tasks)
    return {row["id"]: why_held(hold, row["name"]) for row, hold in zip(rows, views(Hold, rows), strict=True)}


async def _unheld(conn: Connection, tasks: Sequence[int], rows: Sequence[Any]) -> dict[int, Wait]:
    unclaimed = [row for row in rows if row["requirements"] is not None]
    agents = await loaded(conn) if unclaimed else []
    by_pool = {text: why(decode(text), agents) for text in {row["requirements"] for row in unclaimed}}
    found = {row["id"]: by_pool[row["requirements"]] for row in unclaimed}
    gated = [row["id"] for row in rows if row["is_limited"]]
    limited = await conn.fetch(_LIMITED, gated) if gated else []
    for row, task in zip(limited, views(Limited, limited, json=("rate",)), strict=True):
        found[row["id"]] = why_limited(task)
    by_owner = {row["id"] for row in unclaimed if row["needs_owner"]} | {row["id"] for row in limited}
    found |= await _unserved(conn, [id for id in by_owner if found[id] is None])
    rest = [task for task in tasks if task not in found]
    tried = [row["id"] for row in rows if row["is_retried"]]
    retried = await conn.fetch(_RETRIED, tried) if tried else []
    found |= {row["id"]: until_retry(task) for row, task in zip(retried, views(Retried, retried), strict=True)}
    rest = [task for task in rest if task not in found]
    following = await after.waiting(conn, len(rest), rest) if rest else []
    found |= {one.task: Wait("after", one.words) for one in following if one.other.name is not None}
    rest = [task for task in rest if task not in found]
    blocked = await conn.fetch(_BLOCKED, rest) if rest else []
    found |= {row["id"]: after_others(row["parents"] or [], row["count"]) for row in blocked}
    return {task: wait for task, wait in found.items() if wait is not None}


async def _unserved(conn: Connection, tasks: Sequence[int]) -> dict[int, Wait]:
    """Those of `tasks` that no server dispatches: they could start, but for that."""
    problems = await unserved(conn, {task % SEGMENTS for task in tasks}) if tasks else {}
    return {task: no_owner(segment, problems[segment]) for task in tasks if (segment := task % SEGMENTS) in problems}


class WaitingPool(NamedTuple):
    """A served pool with due tasks that no agent has claimed."""

    pool: int
    requirements: Requirements
    tasks: int  # counted up to COUNTED
    jobs: list[str]


# By priority: then the index leads to the due tasks of a pool, however many others wait there for their time.
_LEVELS = f"unnest(array[{', '.join(map(str, PRIORITY_LEVELS))}]::smallint[]) as level(priority)"
_WAITING_POOLS = f"""
    select p.id, p.requirements, found.tasks, found.jobs
      from mainspring.pool p
     cross join lateral (
         select count(*)::integer as tasks,
                array(select j.name from mainspring.job j
                       where j.id = any (array_agg(t.job_id)) order by j.name limit 5) as jobs
           from (select due.job_id from {_LEVELS}
                  cross join lateral (
                      select job_id from mainspring.task
                       where pool = p.id and priority = level.priority and state = {PENDING:d}
                         and run_at <= (select mainspring.now()) and ($2::integer[] is null or job_id = any ($2))
                       order by run_at, id
                       limit {COUNTED}) due
                  limit {COUNTED}) t
     ) found
     where p.target is null and found.tasks > 0 and ($1::integer[] is null or p.id = any ($1))
     order by p.id
"""


async def waiting_pools(
    conn: Connection, pools: Sequence[int] | None = None, jobs: Sequence[int] | None = None
) -> list[WaitingPool]:
    """Pools with due tasks that no agent has claimed, all or these; of these jobs, if they are given."""
    rows = await conn.fetch(_WAITING_POOLS, pools, jobs)
    return [WaitingPool(row["id"], decode(row["requirements"]), row["tasks"], row["jobs"]) for row in rows]
