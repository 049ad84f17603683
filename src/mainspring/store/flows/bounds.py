"""Bounds: what the leader knows of queues with max_queued, so that few submissions count them, and the load of pools.

A count is of the tasks up to some number. It is true once all transactions that drew a number up to it have ended: the
leader notes the last number and the transactions under way, and counts in a later step, when those are over.
Reads   mainspring.task, by the index that has tasks of bounded jobs only; mainspring.claim
Writes  mainspring.queue_bound, mainspring.pool_load
Next:   store/flows/expiry.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mainspring.model.tasks.states import ACTIVE, among
from mainspring.store.postgres.database import Connection


class Mark(NamedTuple):
    """A number of a task, and a transaction that began after it was drawn."""

    created: int
    before: int


_MARK = "select mainspring.last_task(), pg_current_xact_id()::text::bigint"
_SETTLED = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint > $1"


async def mark(conn: Connection) -> Mark:
    return Mark(*await conn.fetchrow(_MARK))


async def is_settled(conn: Connection, mark: Mark) -> bool:
    """Whether all transactions that may have drawn a number up to the mark have ended."""
    found: bool = await conn.fetchval(_SETTLED, mark.before)
    return found


_BOUNDED = """
    select coalesce(array_agg(id) filter (where max_queued is not null), '{}'), bool_or(max_in_all is not null)
      from mainspring.job where is_checked
"""
# What agents hold is read by their claims: as many rows as attempts are under way.
_COUNT = f"""
    with held as materialized (
        select t.job_id, t.is_bounded, count(distinct t.id) as tasks
          from mainspring.claim c cross join lateral unnest(c.tasks) as claimed(id)
          join mainspring.task t on t.id = claimed.id and t.id <= $2 and t.state in {among(ACTIVE)}
         group by t.job_id, t.is_bounded
    ), counted as (
        select job.id, (select count(*) from mainspring.task t
                         where t.job_id = job.id and t.is_bounded and t.id <= $2) as live
          from unnest($1::integer[]) as job(id)
        union all
        select 0, count(*) from mainspring.task t where $3 and t.id <= $2 having $3
    ), gone as (
        delete from mainspring.queue_bound b where not exists (select from counted where counted.id = b.job_id)
    )
    insert into mainspring.queue_bound as b (job_id, live, created, counted_at, held, full_since)
    select counted.id, live, $2, mainspring.now(), by_agents.held,
           case when live - by_agents.held >= j.max_queued then mainspring.now() end
      from counted left join mainspring.job j on j.id = counted.id
     cross join lateral (select coalesce(sum(held.tasks), 0) as held from held
                          where counted.id = 0 or counted.id = held.job_id and held.is_bounded) by_agents
     order by counted.id
    on conflict (job_id) do update
       set live = excluded.live, created = excluded.created, counted_at = excluded.counted_at, held = excluded.held,
           full_since = case when excluded.full_since is not null then coalesce(b.full_since, excluded.full_since) end
"""


async def bounded(conn: Connection) -> tuple[list[int], bool]:
    """The jobs with a bound, and whether all jobs together have one."""
    jobs, all_together = await conn.fetchrow(_BOUNDED)
    return jobs, bool(all_together)


async def count(conn: Connection, jobs: list[int], mark: Mark, *, all_together: bool) -> None:
    """Count the live tasks up to a mark that is settled.

    Tasks of before the mark come back by a retry, which deletes the counts (store/tasks/tasks.py). The lock waits for
    one that has not committed, so that the count sees its tasks; readers are not blocked.
    """
    async with conn.transaction():
        await conn.execute("lock table mainspring.queue_bound in exclusive mode")
        await conn.execute(_COUNT, jobs, mark.created, all_together)


# Tasks that were there before their job got a bound, or lost it. The walk is one index scan over all live tasks, part
# by part; a task that an agent holds is marked too, because it may come back.
_WALK = """
    with part as materialized (
        select t.ctid as place, t.id, t.job_id, t.is_bounded from mainspring.task t
         where t.id > $1 order by t.id limit $2
    ), wrong as materialized (
        select part.place, case when j.max_queued is not null then true end as wanted
          from part join mainspring.job j on j.id = any (array[part.job_id])
         where part.is_bounded is distinct from case when j.max_queued is not null then true end
    ), locked as materialized (
        select t.ctid as place, wrong.wanted from wrong join mainspring.task t on t.ctid = wrong.place
           for no key update of t skip locked
    ), moved as (
        update mainspring.task t set is_bounded = locked.wanted from locked where t.ctid = locked.place
        returning t.id
    )
    select (select count(*) from wrong)::integer - (select count(*) from moved)::integer,
           (select max(id) from part having count(*) = $2)
"""


class Walked(NamedTuple):
    left: int  # tasks that others have locked
    last: int | None  # the number to continue after; None: all tasks were read


async def walk(conn: Connection, after: int, limit: int) -> Walked:
    """Give the next `limit` live tasks the mark of a bounded job, or take it."""
    return Walked(*await conn.fetchrow(_WALK, after, limit))


_LOADS = """
    with given as (select * from unnest($1::integer[], $2::integer[], $3::integer[]) as given(pool, busy, slots)),
    gone as (delete from mainspring.pool_load l where not exists (select from given where given.pool = l.pool))
    insert into mainspring.pool_load as l (pool, busy, slots) select * from given order by pool
    on conflict (pool) do update set busy = excluded.busy, slots = excluded.slots
     where (l.busy, l.slots) is distinct from (excluded.busy, excluded.slots)
"""


async def any_looks_at_load(conn: Connection) -> bool:
    """Whether a rule asks how busy the agents are."""
    found: bool = await conn.fetchval(
        "select exists (select from mainspring.priority_rule where enabled and 'load' = any (fields))"
    )
    return found


async def write_loads(conn: Connection, loads: Mapping[int, tuple[int, int]]) -> None:
    """By pool: busy slots and all slots of the agents that can run its tasks."""
    await conn.execute(
        _LOADS, list(loads), [busy for busy, _ in loads.values()], [slots for _, slots in loads.values()]
    )
