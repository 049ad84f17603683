"""Segments: the server that owns each slice of schedules and tasks. Planners and dispatchers check it as they write.

A schedule has its segment in its row; the segment of a task is its id modulo 100.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from mainspring.store.postgres.database import Connection

# For statements of planners and dispatchers: the segments of `server` as one bit each. A hundred rows are read once;
# each row of the statement then tests a bit.
_OWNED = """
    owned as materialized (
        select string_agg(case when s.owner = {server} {also} then '1' else '0' end, '' order by s.id)::bit(100) as bits
          from mainspring.segment s
    )
"""


def owned(server: str) -> str:
    """A CTE: the segments of the server in this parameter."""
    return _OWNED.format(server=server, also="")


def owned_or_shared(server: str, pool: str) -> str:
    """The same, and those of servers that have no agent with room for this pool and have opened it to others."""
    also = f"or s.owner = any (array(select o.server from mainspring.shared_pool o where o.pool = {pool}))"
    return _OWNED.format(server=server, also=also)


def owned_or_shared_by_pool(server: str, pools: str) -> str:
    """A CTE: the same for each of these pools. OFFSET 0 keeps the servers of a pool from being read per segment."""
    return f"""
        owned as materialized (
            select given.pool, (select string_agg(
                       case when s.owner = {server} or s.owner = any (shared.servers) then '1' else '0' end,
                       '' order by s.id)::bit(100) from mainspring.segment s) as bits
              from (select distinct pool from unnest({pools}) as each(pool)) given
             cross join lateral (
                 select array(select o.server from mainspring.shared_pool o where o.pool = given.pool) as servers
                 offset 0) shared
        )
    """


def holds(segment: str) -> str:
    """A condition: the CTE above has this segment."""
    return f"get_bit((select bits from owned), ({segment})::integer) = 1"


class Segment(NamedTuple):
    id: int
    owner: UUID | None
    epoch: int
    status: str | None  # of its owner


_ALL = """
    select s.id, s.owner, s.epoch, o.status
      from mainspring.segment s left join mainspring.server o on o.id = s.owner
     order by s.id
"""
# A draining agent takes nothing: its slots do not count.
_ACTIVE = """
    with slots as materialized (
        select a.server, sum(a.slots) as slots
          from mainspring.agent a
         where a.ended_at is null and a.successor is null and a.lease_until > (select mainspring.now())
           and not exists (select from mainspring.draining d where d.name = a.name)
         group by a.server
    )
    select s.id, coalesce((select slots.slots from slots where slots.server = s.id), 0)::bigint as slots
      from mainspring.server s
     where s.status = 'active'
     order by s.id
"""


async def look(conn: Connection) -> tuple[list[Segment], dict[UUID, int]]:
    """All segments, and the servers that can own some, with the slots of the agents connected to each."""
    segments = [Segment(*row) for row in await conn.fetch(_ALL)]
    return segments, {row["id"]: row["slots"] for row in await conn.fetch(_ACTIVE)}


async def share(conn: Connection, server: UUID) -> float:
    """The share of the segments that a server owns, 0 to 1."""
    found: float = await conn.fetchval(
        "select count(*) filter (where owner = $1) / greatest(count(*), 1)::float8 from mainspring.segment", server
    )
    return found


class Transfer(NamedTuple):
    segment: int
    epoch: int  # expected; the move is void if it has changed
    old: UUID | None
    new: UUID
    reason: str


# The lock on the leader's row orders this write and a new term: a leader of an old term writes nothing. The epoch makes
# each move happen once, even if two leaders try it.
_LEADS = "leads as materialized (select term from mainspring.leader where owner = $1 and term = $2 for share)"
_MOVE = f"""
    with {_LEADS}, given as (
        select * from unnest($3::smallint[], $4::bigint[], $5::uuid[], $6::uuid[], $7::text[])
            as given(id, epoch, old, new, reason)
    ), moved as (
        update mainspring.segment s set owner = given.new, epoch = s.epoch + 1, since = mainspring.now()
          from given
         where s.id = given.id and s.epoch = given.epoch and exists (select from leads)
           and exists (select from mainspring.server o where o.id = given.new and o.status = 'active')
        returning given.*
    ), logged as (
        insert into mainspring.segment_move (term, old_owner, new_owner, reason, segments)
        select $2, old, new, reason, array_agg(id order by id) from moved group by old, new, reason
    ), notified as (
        select pg_notify('mainspring', 'segment') from moved limit 1
    )
    select reason, count(*) as segments from moved
     where (select count(*) from notified) >= 0        -- always true; it forces the CTE to run
     group by reason
"""


async def move(conn: Connection, leader: UUID, term: int, moves: Sequence[Transfer]) -> Counter[str]:
    """Give segments to new owners and notify the servers; returns how many moved, by reason."""
    ids, epochs, olds, news, reasons = zip(*moves, strict=True)
    rows = await conn.fetch(_MOVE, leader, term, ids, epochs, olds, news, reasons)
    return Counter({row["reason"]: row["segments"] for row in rows})


_DECLARE_DEAD = f"""
    with {_LEADS}
    update mainspring.server s set status = 'dead', ended_at = mainspring.now()
      from leads
     where s.status in ('active', 'draining') and s.lease_until <= mainspring.now()
    returning s.id, s.name
"""


async def declare_dead(conn: Connection, leader: UUID, term: int) -> dict[UUID, str]:
    """active, draining → dead for servers whose lease has expired; returns their names by id."""
    return {row["id"]: row["name"] for row in await conn.fetch(_DECLARE_DEAD, leader, term)}
