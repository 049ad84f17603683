"""Servers: one row each, with a lease. Whose lease is over is declared dead by the leader, and must join again.

Next: store/cluster/segments.py
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from mainspring.store.postgres.database import Connection


class Newcomer(NamedTuple):
    """A server that begins, or one that was declared dead and is not."""

    id: UUID
    name: str
    version: str
    host: str
    url: str | None = None
    app: str | None = None
    process: str | None = None  # who runs it, where a neighbour can see that it died


# Its segments stay its own if nobody has given them away: who is back soon goes on. The new incarnation fences off
# whoever had this id before, and may still believe to have it.
_JOIN = """
    insert into mainspring.server as s
        (id, name, version, status, host, url, app, process, started_at, heartbeat_at, lease_until)
    values ($1, $2, $3, 'active', $4, $5, $6, $7, mainspring.now(), mainspring.now(),
            mainspring.now() + make_interval(secs => $8))
    on conflict (id) do update
       set incarnation = s.incarnation + 1, name = excluded.name, version = excluded.version, status = 'active',
           host = excluded.host, url = excluded.url, app = excluded.app, process = excluded.process,
           started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at, lease_until = excluded.lease_until,
           ended_at = null, scanned = 0, planned = 0, dispatched = 0, recorded = 0, scanned_at = null
    returning s.incarnation
"""


async def join(conn: Connection, server: Newcomer, lease: float) -> int:
    """Be there, with a lease; returns the incarnation. Whoever leads is told, and gives it segments."""
    incarnation = int(await conn.fetchval(_JOIN, *server, lease))
    await tell_leader(conn)
    return incarnation


async def tell_leader(conn: Connection) -> None:
    """Somebody came or went: segments may have to move."""
    await conn.execute("select pg_notify('mainspring', 'server')")


async def announce(conn: Connection, id: UUID, incarnation: int, url: str) -> None:
    """Where agents connect to."""
    await conn.execute("update mainspring.server set url = $3 where id = $1 and incarnation = $2", id, incarnation, url)


class Pulse(NamedTuple):
    """What a server tells of itself with each heartbeat."""

    agents: int
    scanned: int
    planned: int
    dispatched: int
    recorded: int
    scan_age: float | None  # seconds since its planner looked last
    scan_seconds: float


# Not fenced by the lease: as long as nobody has declared it dead, nobody has acted on it. After a long outage of the
# database, whoever comes first goes on.
_BEAT = """
    update mainspring.server
       set heartbeat_at = mainspring.now(), lease_until = mainspring.now() + make_interval(secs => $3), agents = $4,
           scanned = $5, planned = $6, dispatched = $7, recorded = $8,
           scanned_at = mainspring.now() - make_interval(secs => $9), scan_seconds = $10
     where id = $1 and incarnation = $2 and status in ('active', 'draining')
    returning id
"""


async def beat(conn: Connection, id: UUID, incarnation: int, lease: float, pulse: Pulse) -> bool:
    """Renew the lease. False: it was declared dead, or another process has its id."""
    return await conn.fetchval(_BEAT, id, incarnation, lease, *pulse) is not None


# Where the process is the same, it has joined itself, and the answer was lost.
_IS_TAKEN = """
    select incarnation > $2 and (process is null or process is distinct from $3) from mainspring.server where id = $1
"""


async def is_taken(conn: Connection, server: Newcomer, incarnation: int) -> bool:
    """Whether another process has joined under this id since."""
    return bool(await conn.fetchval(_IS_TAKEN, server.id, incarnation, server.process))


# It gives its segments away by itself: nobody has to wait for its lease.
_LEAVE = """
    with gone as (
        update mainspring.server
           set status = $3, ended_at = case when $3 = 'stopped' then mainspring.now() end
         where id = $1 and incarnation = $2 and status in ('active', 'draining')
        returning id
    ), released as (
        update mainspring.segment s set owner = null, epoch = s.epoch + 1, since = mainspring.now()
          from gone where s.owner = gone.id
        returning s.id
    )
    insert into mainspring.segment_move (term, old_owner, reason, segments)
    select 0, $1, 'released', array_agg(id order by id) from released having count(*) > 0
"""


async def drain(conn: Connection, id: UUID, incarnation: int) -> None:
    """active → draining: it takes nothing new, and its segments are free."""
    await conn.execute(_LEAVE, id, incarnation, "draining")
    await tell_leader(conn)


async def stop(conn: Connection, id: UUID, incarnation: int) -> None:
    """→ stopped."""
    await conn.execute(_LEAVE, id, incarnation, "stopped")


# A server that nobody knows opens nothing: it may be about to join anew, under another number.
_OPEN = """
    with closed as (
        delete from mainspring.open_pool where server = $1 and pool <> all ($2::integer[])
    ), opened as (
        insert into mainspring.open_pool (server, pool)
        select s.id, given.pool from mainspring.server s cross join unnest($2::integer[]) as given(pool)
         where s.id = $1
           for key share of s
        on conflict do nothing
        returning pool
    )
    select pg_notify('mainspring', 'segment') from opened limit 1
"""


async def open_pools(conn: Connection, id: UUID, pools: list[int]) -> None:
    """Let other servers claim tasks of exactly these pools in the segments of this one; tell them of new ones."""
    await conn.execute(_OPEN, id, pools)
