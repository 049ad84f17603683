"""Parked: tasks whose concurrency key is busy, and how they return to their gate.

The end of a holder returns the first parked task of its key in the same transaction (trigger `free_slots`), and so does
its retry (store/tasks/transitions.py). Where the key has a rate, `unpark_due` returns tasks in time. `sweep` finds all
other cases, such as limits that were raised: it checks the keys one after another.
Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

from typing import NamedTuple

from mainspring.model.tasks.pools import IS_PARKED
from mainspring.store.limits.release import LIMITS
from mainspring.store.postgres.database import Connection

_RIPE = """
    with ripe as materialized (
        select th.job_id, th.key from mainspring.throttle th
         where th.wake_at <= (select mainspring.now())
         order by th.wake_at limit $1
           for update skip locked
    ), cleared as (
        update mainspring.throttle th set wake_at = null from ripe
         where th.job_id = any (array[ripe.job_id]) and th.key = any (array[ripe.key])
    )
    select coalesce(sum(mainspring.unpark(
               ripe.key, coalesce((j.definition->'gate'->'rate'->>'burst')::integer, 1), ripe.job_id)), 0) as moved,
           (select date_part('epoch', min(th.wake_at) - (select mainspring.now())) from mainspring.throttle th
             where th.wake_at > (select mainspring.now())) as next_in
      from ripe join mainspring.job j on j.id = any (array[ripe.job_id])
"""


async def unpark_due(conn: Connection, limit: int) -> tuple[int, float | None]:
    """Return tasks whose rate allows a start again; returns how many, and in how many seconds the next may be due."""
    row = await conn.fetchrow(_RIPE, limit)
    return row["moved"], row["next_in"]


class Swept(NamedTuple):
    moved: int
    last: str | None  # the key to continue from; None: all keys were checked


# A recursive query hops from key to key along the index. The limits of the first task of each key count; where keys
# have a rate, one task returns, and the release decides.
_SWEEP = f"""
    with recursive keys as (
        (select t.concurrency_key as key from mainspring.task t
          where t.{IS_PARKED} and t.concurrency_key > $1 order by t.concurrency_key limit 1)
        union all
        select next.key from keys cross join lateral (
            select t.concurrency_key as key from mainspring.task t
             where t.{IS_PARKED} and t.concurrency_key > keys.key order by t.concurrency_key limit 1) next
    ), part as materialized (
        select key from keys limit $2
    ), judged as materialized (
        select part.key,
               case when first.key_given or limits.template is not null then limits.key_limit end as key_limit,
               limits.spacing is not null and limits.per_key as is_paced,
               (select count(*) from mainspring.task t
                 where t.concurrency_key = part.key and t.key_slot is not null) as held
          from part
         cross join lateral (
             select t.job_id, t.key_given from mainspring.task t
              where t.{IS_PARKED} and t.concurrency_key = part.key
              order by t.priority desc, t.run_at, t.id limit 1) first
          join mainspring.job j on j.id = any (array[first.job_id])
         cross join lateral (
             select {LIMITS} from (select coalesce(j.definition->'gate', '{{}}') as limits) l) limits
    )
    select coalesce(sum(mainspring.unpark(
                        key, case when is_paced then 1 else coalesce(key_limit - held, $2) end::integer))
                    filter (where key_limit is null or held < key_limit), 0) as moved,
           max(key) as last, count(*) as keys
      from judged
"""


async def sweep(conn: Connection, after: str, limit: int) -> Swept:
    """Return parked tasks of the next keys after `after` that could start."""
    row = await conn.fetchrow(_SWEEP, after, limit)
    return Swept(row["moved"], row["last"] if row["keys"] == limit else None)
