"""Claim order: which pools claim how much, in which order, and where the first waiting tasks of each are.

These statements only look: what they find is claimed by store/tasks/claims.py, and may be gone by then.
Next: store/tasks/claims.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from mainspring.model.tasks.claim_floors import Floor, Released
from mainspring.model.tasks.states import PENDING
from mainspring.store.cluster.holds import ON_HOLD, is_not_held, most
from mainspring.store.cluster.segments import owned_or_shared_by_pool
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks.claims import LEVELS


class Wanted(NamedTuple):
    """What one pool could claim now."""

    pool: int
    room: int  # tasks at most
    floors: Sequence[Floor]  # one lower bound per priority level
    ahead: float  # seconds


class Turns(NamedTuple):
    """Which pool claims how much, in which order."""

    order: list[tuple[int, int]]  # pool, tasks
    waiting: dict[int, int]  # by pool: tasks that it could claim
    rooms: dict[int, int]  # by pool

    def has_more(self, pool: int) -> bool:
        """Whether tasks wait beyond its turns: it got fewer than it has, or all that it has room for."""
        got = sum(tasks for each, tasks in self.order if each == pool)
        return self.waiting[pool] > got or got >= self.rooms[pool]


# The first tasks of all pools, in the order in which one pool would have them: by priority, which grows with the time
# that a task has been due ($9 seconds for a level; null: it does not), then by time. Reads as many tasks of a level as
# its pool has room for. No locks: a task that another server claims meanwhile is claimed once.
_TURNS = f"""
    with {owned_or_shared_by_pool(server="$7", pools="$1::integer[]")}, {ON_HOLD}, found as materialized (
        select level.pool, level.room, level.priority, first.run_at, first.id,
               case when $9::float8 is null then level.priority
                    else least(9, level.priority + greatest(0, floor(
                             extract(epoch from (select mainspring.now()) - first.run_at)::float8 / $9))) end as rank
          from unnest($1::integer[], $2::integer[], $3::float8[], $4::smallint[], $5::float8[], $6::bigint[])
            as level(pool, room, ahead, priority, floor_at, floor_id)
          join owned on owned.pool = level.pool
         cross join lateral (
             select run_at, id from mainspring.task
              where pool = level.pool and priority = level.priority
                and (run_at, id) >= (to_timestamp(level.floor_at), level.floor_id)
                and run_at <= (select mainspring.now()) + make_interval(secs => level.ahead)
                and state = {PENDING:d} and get_bit(owned.bits, (id % 100)::integer) = 1 and {is_not_held()}
              order by run_at, id
              limit {most("level.room")}
         ) first
    ), numbered as (
        select found.*, row_number() over (partition by pool order by rank desc, run_at, id) as number from found
    ), ordered as (
        select pool, priority, row_number() over (order by rank desc, run_at, id) as turn
          from numbered where number <= room
    )
    select pool, count(*) as waiting, count(*) filter (where turn <= $8) as tasks
      from ordered group by pool, priority order by min(turn)
"""


async def turns(
    conn: Connection, server: UUID, wanted: Sequence[Wanted], limit: int, *, aging: float | None = None
) -> Turns:
    """Share `limit` places among pools, as if all their tasks were in one: by priority, then by age.

    With `aging` a task counts a level higher for every so many seconds that it has been due.
    """
    levels = [(w, priority, floor) for w in wanted for priority, floor in zip(LEVELS, w.floors, strict=True)]
    rows = await conn.fetch(
        _TURNS,
        [w.pool for w, _, _ in levels],
        [w.room for w, _, _ in levels],
        [w.ahead for w, _, _ in levels],
        [priority for _, priority, _ in levels],
        [at for _, _, (at, _) in levels],
        [id for _, _, (_, id) in levels],
        server,
        limit,
        aging,
    )
    order: list[tuple[int, int]] = []
    waiting: dict[int, int] = {}
    for pool, found, tasks in rows:
        waiting[pool] = waiting.get(pool, 0) + found
        if order and order[-1][0] == pool:
            order[-1] = (pool, order[-1][1] + tasks)
        elif tasks:
            order.append((pool, tasks))
    return Turns(order, waiting, {w.pool: w.room for w in wanted})


def _first_pending(side: str) -> str:
    return f"""
        with {owned_or_shared_by_pool(server="$5", pools="$1::integer[]")}, {ON_HOLD}
        select level.pool, level.priority, date_part('epoch', found.run_at) as run_at, found.id
          from unnest($1::integer[], $2::smallint[], $3::float8[], $4::bigint[])
            as level(pool, priority, floor_at, floor_id)
          join owned on owned.pool = level.pool
         cross join lateral (
             select run_at, id from mainspring.task
              where pool = level.pool and priority = level.priority
                and (run_at, id) {side} (to_timestamp(level.floor_at), level.floor_id)
                and state = {PENDING:d} and get_bit(owned.bits, (id % 100)::integer) = 1 and {is_not_held()}
              order by run_at, id
              limit {most("1")}
         ) found
    """


_STRAGGLERS = _first_pending("<")
_LEFT = _first_pending(">=")


PoolFloors = Mapping[int, Sequence[Floor]]  # by pool, one lower bound per priority level


async def stragglers(conn: Connection, server: UUID, floors: PoolFloors) -> list[Released]:
    """The first pending task below the floor of each pool and level, if any."""
    return await _positions(conn, _STRAGGLERS, server, floors)


async def left(conn: Connection, server: UUID, floors: PoolFloors) -> list[Released]:
    """The first pending task from the floor of each pool and level on, if any: one that a sticky claim had to leave."""
    return await _positions(conn, _LEFT, server, floors)


async def _positions(conn: Connection, statement: str, server: UUID, floors: PoolFloors) -> list[Released]:
    levels = [(pool, level, floor) for pool in floors for level, floor in zip(LEVELS, floors[pool], strict=True)]
    rows = await conn.fetch(
        statement,
        [pool for pool, _, _ in levels],
        [level for _, level, _ in levels],
        [at for _, _, (at, _) in levels],
        [id for _, _, (_, id) in levels],
        server,
    )
    return [Released(row["pool"], row["priority"], (row["run_at"], row["id"])) for row in rows]
