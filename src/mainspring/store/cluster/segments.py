"""Segments: who owns which slice of schedules and tasks. Planners and dispatchers check it in what they write.

A schedule has its segment in its row; that of a task is its number modulo 100.
Next: server/cluster/coordinator.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from mainspring.store.postgres.database import Connection

# For statements of planners and dispatchers: the segments of `server` as one bit each, read where they are used.
# A hundred rows, in one look; a bit is then told at once for every row.
_OWNED = """
    owned as materialized (
        select string_agg(case when s.owner = {server} {also} then '1' else '0' end, '' order by s.id)::bit(100) as bits
          from mainspring.segment s
    )
"""


def owned(server: str) -> str:
    """A CTE for the segments of the server that this parameter names."""
    return _OWNED.format(server=server, also="")


def owned_or_open(server: str, pool: str) -> str:
    """The same, with those of servers that have nobody with room for this pool and have opened it to others."""
    also = f"or s.owner = any (array(select o.server from mainspring.open_pool o where o.pool = {pool}))"
    return _OWNED.format(server=server, also=also)


def holds(segment: str) -> str:
    """Whether the CTE above has this segment."""
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
_ACTIVE = "select id from mainspring.server where status = 'active' order by id"


async def look(conn: Connection) -> tuple[list[Segment], list[UUID]]:
    """All segments, and all servers that can own some."""
    segments = [Segment(*row) for row in await conn.fetch(_ALL)]
    return segments, [row["id"] for row in await conn.fetch(_ACTIVE)]


class Transfer(NamedTuple):
    segment: int
    epoch: int  # that it must still have
    old: UUID | None
    new: UUID
    reason: str


# The row of the leader is held while it writes: a new term begins before or after, and a leader of an old one writes
# nothing. The epoch makes each move one leader's, whatever they believe.
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
    ), noted as (
        insert into mainspring.segment_move (term, old_owner, new_owner, reason, segments)
        select $2, old, new, reason, array_agg(id order by id) from moved group by old, new, reason
    ), told as (
        select pg_notify('mainspring', 'segment') from moved limit 1
    )
    select (select count(*) from moved) as moved from (select count(*) from told) as told
"""


async def move(conn: Connection, leader: UUID, term: int, moves: Sequence[Transfer]) -> int:
    """Give segments to new owners, and tell the servers; returns how many moved."""
    ids, epochs, olds, news, reasons = zip(*moves, strict=True)
    return int(await conn.fetchval(_MOVE, leader, term, ids, epochs, olds, news, reasons))


_BURY = f"""
    with {_LEADS}
    update mainspring.server s set status = 'dead', ended_at = mainspring.now()
      from leads
     where s.status in ('active', 'draining') and s.lease_until <= mainspring.now()
    returning s.id, s.name
"""


async def bury(conn: Connection, leader: UUID, term: int) -> dict[UUID, str]:
    """active, draining → dead for servers whose lease is over; returns their names."""
    return {row["id"]: row["name"] for row in await conn.fetch(_BURY, leader, term)}
