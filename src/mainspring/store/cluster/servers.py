"""Servers: one row each, with a lease. The leader declares a server dead whose lease has expired; it must rejoin.

Next: store/cluster/segments.py
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from mainspring.store.postgres.database import Connection


class ServerInfo(NamedTuple):
    """A server that starts, or that was declared dead and rejoins."""

    id: UUID
    name: str
    version: str
    host: str
    url: str | None = None
    app: str | None = None
    process: str | None = None  # its process, for servers on the same machine that see it die
    api_url: str | None = None


# A server that is back soon keeps the segments that the leader has not reassigned. The new incarnation fences off a
# process that had this id before and may still run.
_JOIN = """
    insert into mainspring.server as s
        (id, name, version, status, host, url, app, process, api_url, started_at, heartbeat_at, lease_until)
    values ($1, $2, $3, 'active', $4, $5, $6, $7, $8, mainspring.now(), mainspring.now(),
            mainspring.now() + make_interval(secs => $9))
    on conflict (id) do update
       set incarnation = s.incarnation + 1, name = excluded.name, version = excluded.version, status = 'active',
           host = excluded.host, url = excluded.url, app = excluded.app, process = excluded.process,
           api_url = excluded.api_url, started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at,
           lease_until = excluded.lease_until,
           ended_at = null, scanned = 0, planned = 0, dispatched = 0, recorded = 0, scanned_at = null,
           blocked = 0, blocked_seconds = 0, claim_seconds = null
    returning s.incarnation
"""


async def join(conn: Connection, server: ServerInfo, lease: float) -> int:
    """Insert or revive the row, with a lease; returns the incarnation. The leader is notified and assigns segments."""
    incarnation = int(await conn.fetchval(_JOIN, *server, lease))
    await notify_leader(conn)
    return incarnation


async def notify_leader(conn: Connection) -> None:
    """A server joined or left: segments may have to move."""
    await conn.execute("select pg_notify('mainspring', 'server')")


_ANNOUNCE = "update mainspring.server set url = $3, api_url = $4 where id = $1 and incarnation = $2"


async def announce(conn: Connection, id: UUID, incarnation: int, url: str | None, api_url: str | None) -> None:
    """Publish the URL that agents connect to, and that of the HTTP API."""
    await conn.execute(_ANNOUNCE, id, incarnation, url, api_url)


class Pulse(NamedTuple):
    """What a heartbeat reports."""

    agents: int
    scanned: int
    planned: int
    dispatched: int
    recorded: int
    scan_age: float | None  # seconds since its planner's last scan
    scan_seconds: float
    blocked: int = 0  # how often its event loop was blocked
    blocked_seconds: float = 0.0
    claim_seconds: float | None = None  # of its last claim that found tasks


# Not fenced by the lease: until the leader declares a server dead, nothing has been done about it. After a long outage
# of the database, a server that beats before that keeps its segments.
_BEAT = """
    update mainspring.server
       set heartbeat_at = mainspring.now(), lease_until = mainspring.now() + make_interval(secs => $3), agents = $4,
           scanned = $5, planned = $6, dispatched = $7, recorded = $8,
           scanned_at = mainspring.now() - make_interval(secs => $9), scan_seconds = $10,
           blocked = $11, blocked_seconds = $12, claim_seconds = $13
     where id = $1 and incarnation = $2 and status in ('active', 'draining')
    returning id
"""


async def beat(conn: Connection, id: UUID, incarnation: int, lease: float, pulse: Pulse) -> bool:
    """Renew the lease. False: the leader declared it dead, or another process took its id."""
    return await conn.fetchval(_BEAT, id, incarnation, lease, *pulse) is not None


# If the process is the same, this server itself has joined, and the answer was lost.
_IS_TAKEN = """
    select incarnation > $2 and (process is null or process is distinct from $3) from mainspring.server where id = $1
"""


async def is_taken(conn: Connection, server: ServerInfo, incarnation: int) -> bool:
    """Whether another process has joined under this id since."""
    return bool(await conn.fetchval(_IS_TAKEN, server.id, incarnation, server.process))


# It releases its segments itself, so that they need not wait for its lease to expire.
_LEAVE = """
    with leaving as (
        update mainspring.server
           set status = $3, ended_at = case when $3 = 'stopped' then mainspring.now() end
         where id = $1 and incarnation = $2 and status in ('active', 'draining')
        returning id
    ), released as (
        update mainspring.segment s set owner = null, epoch = s.epoch + 1, since = mainspring.now()
          from leaving where s.owner = leaving.id
        returning s.id
    )
    insert into mainspring.segment_move (term, old_owner, reason, segments)
    select 0, $1, 'released', array_agg(id order by id) from released having count(*) > 0
    returning cardinality(segments)
"""


async def drain(conn: Connection, id: UUID, incarnation: int) -> int:
    """active → draining: it claims nothing new and releases its segments; returns how many."""
    released = await conn.fetchval(_LEAVE, id, incarnation, "draining")
    await notify_leader(conn)
    return released or 0


async def stop(conn: Connection, id: UUID, incarnation: int) -> None:
    """→ stopped."""
    await conn.execute(_LEAVE, id, incarnation, "stopped")


# A server without a row opens nothing: it may be about to rejoin.
_OPEN = """
    with closed as (
        delete from mainspring.shared_pool where server = $1 and pool <> all ($2::integer[])
    ), opened as (
        insert into mainspring.shared_pool (server, pool)
        select s.id, given.pool from mainspring.server s cross join unnest($2::integer[]) as given(pool)
         where s.id = $1
           for key share of s
        on conflict do nothing
        returning pool
    )
    select pg_notify('mainspring', 'segment') from opened limit 1
"""


async def shared_pools(conn: Connection, id: UUID, pools: list[int]) -> None:
    """Let other servers claim tasks of exactly these pools in the segments of this one; notify them of new ones."""
    await conn.execute(_OPEN, id, pools)
