"""Waits: why tasks have not been claimed: no agent or server for them, a limit of their job, or the time of a retry.

Reads   mainspring.task, mainspring.attempt, the live agents (store/cluster/registry.py)
Next:   model/tasks/waits.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mainspring.model.placement.placement import Requirements, decode
from mainspring.model.placement.segments import SEGMENTS
from mainspring.model.tasks.jobs import PRIORITY_LEVELS
from mainspring.model.tasks.pools import DAEMON, IS_DAEMON, IS_NOT_DAEMON, IS_PARKED
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import ASSIGNED, PENDING
from mainspring.model.tasks.waits import Limited, Retried, Wait, no_owner, until_retry, why, why_limited
from mainspring.store.cluster.cluster_views import unserved
from mainspring.store.cluster.registry import loaded
from mainspring.store.limits.release import LIMITS
from mainspring.store.postgres.connection import is_producer
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import views

COUNTED = 1000  # waiting tasks of one pool at most

_UNCLAIMED = f"""
    select t.id, p.requirements,
           t.{IS_NOT_DAEMON} and not p.requirements ? '@broadcast' as needs_owner      -- any server places the others
      from mainspring.task t join mainspring.job j on j.id = t.job_id
      join mainspring.pool p on p.id = case t.pool when {DAEMON} then j.pool else t.pool end
       and p.target is null                             -- a gated task waits for its limits: see below
     where t.id = any($1::bigint[]) and t.state = {PENDING:d} and t.run_at <= mainspring.now()
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
             where t.id = any($1::bigint[]) and t.state = {PENDING:d} and t.run_at <= mainspring.now()
               and (t.{IS_PARKED} or exists (select from mainspring.pool p
                                              where p.id = t.pool and p.target is not null))) t
"""


# A broadcast's run in a blocked pool waits alike.
_RETRIED = f"""
    select t.id, date_part('epoch', t.run_at - mainspring.now()) as next_in,
           t.attempt - (t.state = {ASSIGNED:d})::integer as attempts,         -- one that is armed counts as begun
           coalesce((j.definition->'retry'->>'retries')::integer, {Retry().retries}) as retries,
           t.{IS_DAEMON} as daemon, last.error
      from mainspring.task t left join mainspring.job j on j.id = t.job_id
     cross join lateral (
         select coalesce(a.error, a.error_code) as error from mainspring.attempt a
          where a.task_id = t.id and a.error_code is distinct from 'stale_attempt' order by a.token desc limit 1
     ) last
     where t.id = any($1::bigint[]) and t.state in ({PENDING:d}, {ASSIGNED:d}) and t.run_at > mainspring.now()
"""


async def waits(conn: Connection, tasks: Sequence[int]) -> dict[int, Wait]:
    """What those of `tasks` that are due and not claimed wait for; and when failed ones are due again.

    A producer may not know it.
    """
    if is_producer(conn):
        return {}
    rows = await conn.fetch(_UNCLAIMED, tasks)
    agents = await loaded(conn) if rows else []
    by_pool = {text: why(decode(text), agents) for text in {row["requirements"] for row in rows}}
    found = {row["id"]: by_pool[row["requirements"]] for row in rows}
    rest = [task for task in tasks if task not in found]  # each is in one of the three
    limited = await conn.fetch(_LIMITED, rest) if rest else []
    for row, task in zip(limited, views(Limited, limited, json=("rate",)), strict=True):
        found[row["id"]] = why_limited(task)
    by_owner = {row["id"] for row in rows if row["needs_owner"]} | {row["id"] for row in limited}
    found |= await _unserved(conn, [id for id in by_owner if found[id] is None])
    rest = [task for task in rest if task not in found]
    retried = await conn.fetch(_RETRIED, rest) if rest else []
    found |= {row["id"]: until_retry(task) for row, task in zip(retried, views(Retried, retried), strict=True)}
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
