"""Lanes: where tasks stand aside whose key is busy, and how they come back to their gate.

The end of a task that had the key brings the first of its lane back in the same transaction (trigger `free_slots`), a
retry does so too (store/tasks/transitions.py), and so does time, where the key has a rate. Whatever else there may be,
such as limits that were raised, `sweep` finds: it looks at the lanes one after another.
Next: server/planning/limits.py
"""

from __future__ import annotations

from typing import NamedTuple

from mainspring.store.limits.release import LANE, LIMITS
from mainspring.store.postgres.database import Connection

_RIPE = """
    with ripe as materialized (
        select th.job_id, th.key from mainspring.throttle th
         where th.wake_at <= (select mainspring.now())
         order by th.wake_at limit $1
           for update skip locked
    ), told as (
        update mainspring.throttle th set wake_at = null from ripe
         where th.job_id = any (array[ripe.job_id]) and th.key = any (array[ripe.key])
    )
    select coalesce(sum(mainspring.wake_lane(
               ripe.key, coalesce((j.definition->'gate'->'rate'->>'burst')::integer, 1), ripe.job_id)), 0) as moved,
           (select date_part('epoch', min(th.wake_at) - (select mainspring.now())) from mainspring.throttle th
             where th.wake_at > (select mainspring.now())) as next_in
      from ripe join mainspring.job j on j.id = any (array[ripe.job_id])
"""


async def wake_ripe(conn: Connection, limit: int) -> tuple[int, float | None]:
    """Bring back those whose rate allows a start again; returns how many, and in how many seconds the next may be."""
    row = await conn.fetchrow(_RIPE, limit)
    return row["moved"], row["next_in"]


class Swept(NamedTuple):
    moved: int
    last: str | None  # the key to go on from; None: all lanes were looked at


# Hops from key to key along the index. Of each lane the limits of its first task count; where keys have a rate, one
# comes back, to see.
_SWEEP = f"""
    with recursive lane as (
        (select t.concurrency_key as key from mainspring.task t
          where t.pool = {LANE} and t.concurrency_key > $1 order by t.concurrency_key limit 1)
        union all
        select next.key from lane cross join lateral (
            select t.concurrency_key as key from mainspring.task t
             where t.pool = {LANE} and t.concurrency_key > lane.key order by t.concurrency_key limit 1) next
    ), part as materialized (
        select key from lane limit $2
    ), judged as materialized (
        select part.key,
               case when first.key_given or limits.template is not null then limits.key_limit end as key_limit,
               limits.spacing is not null and limits.per_key as is_paced,
               (select count(*) from mainspring.task t
                 where t.concurrency_key = part.key and t.key_slot is not null) as held
          from part
         cross join lateral (
             select t.job_id, t.key_given from mainspring.task t
              where t.pool = {LANE} and t.concurrency_key = part.key
              order by t.priority desc, t.run_at, t.id limit 1) first
          join mainspring.job j on j.id = any (array[first.job_id])
         cross join lateral (
             select {LIMITS} from (select coalesce(j.definition->'gate', '{{}}') as limits) l) limits
    )
    select coalesce(sum(mainspring.wake_lane(
                        key, case when is_paced then 1 else coalesce(key_limit - held, $2) end::integer))
                    filter (where key_limit is null or held < key_limit), 0) as moved,
           max(key) as last, count(*) as lanes
      from judged
"""


async def sweep(conn: Connection, after: str, limit: int) -> Swept:
    """Bring back whoever waits in one of the next lanes behind the key `after` without need."""
    row = await conn.fetchrow(_SWEEP, after, limit)
    return Swept(row["moved"], row["last"] if row["lanes"] == limit else None)
