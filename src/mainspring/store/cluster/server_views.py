"""Servers as people see them: who is there, what each does and has done, whether it leads.

Next: store/cluster/cluster_views.py, cli/fleet/servers.py
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from mainspring.errors import Conflict, NotFound
from mainspring.model.placement.placement import Requirements, decode
from mainspring.store.postgres.database import Connection

SHORT = 8  # characters of an id that people read and type
_AT_LEAST = 4  # characters that are taken for the beginning of an id

# One whose lease is over does nothing any more, whether somebody has declared it dead or not.
STATUS = """
    case when s.status in ('active', 'draining') and s.lease_until <= (select mainspring.now()) then 'silent'
         else s.status end
"""


class Leadership(msgspec.Struct, frozen=True):
    """What makes a server the leader."""

    term: int
    since: datetime | None
    lease_until: datetime


class ServerView(msgspec.Struct, frozen=True):
    """One server. The counts are since its start, times are seconds."""

    id: UUID
    name: str
    status: str  # active, draining, silent, stopped, dead
    leadership: Leadership | None
    version: str
    host: str
    url: str | None
    app: str | None
    incarnation: int
    segments: list[int]
    agents: int
    scanned: int
    planned: int
    dispatched: int
    recorded: int
    scanned_at: datetime | None
    scan_age: float | None
    scan_seconds: float | None
    started_at: datetime
    heartbeat_at: datetime
    heartbeat_age: float
    uptime: float  # until its last heartbeat
    lease_until: datetime
    ended_at: datetime | None


_SERVERS = f"""
    select s.*, {STATUS} as shown_status, l.term, l.elected_at, l.lease_until as leads_until,
           array(select g.id from mainspring.segment g where g.owner = s.id order by g.id) as owned,
           extract(epoch from (select mainspring.now()) - s.heartbeat_at)::float8 as heartbeat_age,
           extract(epoch from (select mainspring.now()) - s.scanned_at)::float8 as scan_age,
           extract(epoch from s.heartbeat_at - s.started_at)::float8 as uptime
      from mainspring.server s
      left join mainspring.leader l on l.owner = s.id and l.lease_until > (select mainspring.now())
     where $1::boolean or s.status in ('active', 'draining')
        or coalesce(s.ended_at, s.heartbeat_at) > (select mainspring.now()) - interval '1 hour'
     order by s.status in ('stopped', 'dead'), s.name, s.started_at
"""

_AS_STORED = (
    *("id", "name", "version", "host", "url", "app", "incarnation", "scanned", "planned", "dispatched", "recorded"),
    *("scanned_at", "scan_seconds", "scan_age", "started_at", "heartbeat_at", "heartbeat_age", "uptime"),
    *("lease_until", "ended_at"),
)


async def listing(conn: Connection, *, everything: bool = False) -> list[ServerView]:
    """The servers that are there and those that ended within the hour; or every one that is known."""
    return [_view(row) for row in await conn.fetch(_SERVERS, everything)]


def _view(row: Any) -> ServerView:
    leads = row["leads_until"] is not None
    return ServerView(
        status=row["shown_status"],
        leadership=Leadership(row["term"], row["elected_at"], row["leads_until"]) if leads else None,
        segments=row["owned"],
        agents=row["agents"] if row["shown_status"] in ("active", "draining") else 0,  # else they have left it
        **{field: row[field] for field in _AS_STORED},
    )


# ── one of them ─────────────────────────────────────────────────────────────────────────────────


class OpenPool(msgspec.Struct, frozen=True):
    """Tasks that wait in a server's segments, and that the others may take, because it has nobody for them."""

    pool: int
    requirements: Requirements


class Connected(msgspec.Struct, frozen=True):
    """An agent that is connected to a server."""

    name: str
    session: int
    slots: int


class ServerDetail(msgspec.Struct, frozen=True):
    server: ServerView
    open_pools: list[OpenPool]
    agents: list[Connected]


_OPEN_POOLS = """
    select o.pool, p.requirements from mainspring.open_pool o join mainspring.pool p on p.id = o.pool
     where o.server = $1 order by o.pool
"""
_CONNECTED = """
    select a.name, a.session, a.slots from mainspring.agent a
     where a.server = $1 and a.ended_at is null and a.successor is null and a.lease_until > mainspring.now()
     order by a.name, a.session
"""


async def detail(conn: Connection, given: str) -> ServerDetail:
    """The server of this name, or the one whose id begins so."""
    found = _find(await listing(conn, everything=True), given)
    pools = await conn.fetch(_OPEN_POOLS, found.id)
    agents = await conn.fetch(_CONNECTED, found.id)
    return ServerDetail(
        found,
        [OpenPool(row["pool"], decode(row["requirements"])) for row in pools],
        [Connected(*row) for row in agents],
    )


def _find(servers: list[ServerView], given: str) -> ServerView:
    found = _there([one for one in servers if one.name == given])
    if not found and len(given) >= _AT_LEAST:
        found = [one for one in servers if str(one.id).startswith(given.lower())]
    if len(found) > 1:
        ids = ", ".join(str(one.id)[:SHORT] for one in found)
        raise Conflict(f"{given!r} may be any of {len(found)} servers; give the id of one: {ids}", field="server")
    if not found:
        raise NotFound(
            f"no server has the name {given!r}, or an id that begins so (of which at least {_AT_LEAST} characters "
            "are needed); `mainspring servers --all` shows all",
            field="server",
        )
    return found[0]


def _there(namesakes: list[ServerView]) -> list[ServerView]:
    """Who is meant by a name that several had: those that are there, else the silent, else the last that was."""
    for statuses in (("active", "draining"), ("silent",)):
        if there := [one for one in namesakes if one.status in statuses]:
            return there
    return sorted(namesakes, key=lambda one: one.started_at)[-1:]
