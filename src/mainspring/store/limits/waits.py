"""Waits: why tasks that are due have not been claimed: no agent for them, or a limit of their job.

Reads   mainspring.task, the live agents (store/cluster/registry.py)
Next:   model/tasks/waits.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mainspring.model.placement.placement import Requirements, decode
from mainspring.model.tasks.pools import DAEMON, IS_PARKED
from mainspring.model.tasks.states import PENDING
from mainspring.model.tasks.waits import Limited, Wait, why, why_limited
from mainspring.store.cluster.registry import loaded
from mainspring.store.limits.release import LIMITS
from mainspring.store.postgres.connection import is_producer
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import views

COUNTED = 1000  # waiting tasks of one pool at most

_UNCLAIMED = f"""
    select t.id, p.requirements
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


async def waits(conn: Connection, tasks: Sequence[int]) -> dict[int, Wait]:
    """Of those of `tasks` that are due and not claimed: what they wait for. A producer may not know it."""
    if is_producer(conn):
        return {}
    rows = await conn.fetch(_UNCLAIMED, tasks)
    agents = await loaded(conn) if rows else []
    by_pool = {text: why(decode(text), agents) for text in {row["requirements"] for row in rows}}
    found = {row["id"]: by_pool[row["requirements"]] for row in rows}
    limited = await conn.fetch(_LIMITED, tasks)
    for row, task in zip(limited, views(Limited, limited, json=("rate",)), strict=True):
        found[row["id"]] = why_limited(task)
    return {task: wait for task, wait in found.items() if wait is not None}


class WaitingPool(NamedTuple):
    """A served pool with due tasks that no agent has claimed."""

    pool: int
    requirements: Requirements
    tasks: int  # counted up to COUNTED
    jobs: list[str]


_WAITING_POOLS = f"""
    select p.id, p.requirements, found.tasks, found.jobs
      from mainspring.pool p
     cross join lateral (
         select count(*)::integer as tasks,
                array(select j.name from mainspring.job j
                       where j.id = any (array_agg(t.job_id)) order by j.name limit 5) as jobs
           from (select job_id from mainspring.task
                  where pool = p.id and state = {PENDING:d} and run_at <= (select mainspring.now())
                  limit {COUNTED}) t
     ) found
     where p.target is null and found.tasks > 0 and ($1::integer[] is null or p.id = any ($1))
     order by p.id
"""


async def waiting_pools(conn: Connection, pools: Sequence[int] | None = None) -> list[WaitingPool]:
    """Pools with due tasks that no agent has claimed, all or these."""
    rows = await conn.fetch(_WAITING_POOLS, pools)
    return [WaitingPool(row["id"], decode(row["requirements"]), row["tasks"], row["jobs"]) for row in rows]
