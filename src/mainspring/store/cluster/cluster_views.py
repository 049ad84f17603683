"""Cluster views: the servers and their leader, the segments with their owners and loads, and how segments moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from mainspring.errors import Conflict, ServerNotFound
from mainspring.model.placement.placement import Requirements, decode
from mainspring.model.tasks.states import ASSIGNED, BLOCKED, PENDING, RUNNING
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import views

SHORT = 8  # characters of an id that people read and type
_AT_LEAST = 4  # characters of an id that identify a server
_SERVING = ("active", "draining")
ENDED = ("stopped", "dead")
_ENDED = "('stopped', 'dead')"

# A server whose lease has expired does nothing any more, even before the leader declares it dead.
STATUS = """
    case when s.status in ('active', 'draining') and s.lease_until <= (select mainspring.now()) then 'silent'
         else s.status end
"""


class Leadership(msgspec.Struct, frozen=True):
    """The term of a server that leads."""

    term: int
    since: datetime | None
    lease_until: datetime


class ServerView(msgspec.Struct, frozen=True):
    """One server. Counts are since its start; durations are seconds."""

    id: UUID
    name: str
    status: str  # active, draining, silent, stopped, dead
    leadership: Leadership | None
    version: str
    host: str
    url: str | None  # where agents connect
    api_url: str | None  # where its HTTP API is
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
    claim_seconds: float | None  # of its last claim that found tasks
    started_at: datetime
    heartbeat_at: datetime
    heartbeat_age: float
    uptime: float  # until its last heartbeat
    lease_until: datetime
    ended_at: datetime | None


_SERVERS = f"""
    select s.id, s.name, {STATUS} as status, s.version, s.host, s.url, s.api_url, s.app, s.incarnation,
           array(select g.id from mainspring.segment g where g.owner = s.id order by g.id) as segments,
           case when {STATUS} in ('active', 'draining') then s.agents else 0 end as agents,  -- else they have left it
           s.scanned, s.planned, s.dispatched, s.recorded, s.scanned_at, s.scan_seconds, s.claim_seconds,
           extract(epoch from (select mainspring.now()) - s.scanned_at)::float8 as scan_age,
           s.started_at, s.heartbeat_at, s.lease_until, s.ended_at,
           extract(epoch from (select mainspring.now()) - s.heartbeat_at)::float8 as heartbeat_age,
           extract(epoch from s.heartbeat_at - s.started_at)::float8 as uptime,
           l.term, l.elected_at, l.lease_until as leads_until
      from mainspring.server s
      left join mainspring.leader l on l.owner = s.id and l.lease_until > (select mainspring.now())
     where ($1::boolean or s.status in ('active', 'draining')
            or coalesce(s.ended_at, s.heartbeat_at) > (select mainspring.now()) - interval '1 hour')
       and ($2::boolean is null
            or (s.status in {_ENDED}, s.name, s.started_at, s.id) > ($2, $3::text, $4::timestamptz, $5::uuid))
     order by s.status in {_ENDED}, s.name, s.started_at, s.id limit $6
"""


def place(view: ServerView) -> tuple[bool, str, datetime, UUID]:
    """Where it stands among the servers: those that run come first, then by name."""
    return view.status in ENDED, view.name, view.started_at, view.id


async def servers(
    conn: Connection,
    *,
    everything: bool = False,
    after: tuple[bool, str, datetime, UUID] | None = None,
    limit: int | None = None,
) -> list[ServerView]:
    """The servers that run and those that ended within the hour; or all that are known. From behind one's place."""
    rows = await conn.fetch(_SERVERS, everything, *(after or (None,) * 4), limit)
    return views(ServerView, ({**row, "leadership": _leadership(row)} for row in rows))


def _leadership(row: Any) -> dict[str, Any] | None:
    if row["term"] is None:
        return None
    return {"term": row["term"], "since": row["elected_at"], "lease_until": row["leads_until"]}


# ── one of them ─────────────────────────────────────────────────────────────────────────────────


class SharedPool(msgspec.Struct, frozen=True):
    """A pool whose tasks in a server's segments other servers may claim, because it has no agent for them."""

    pool: int
    requirements: Requirements


class Connected(msgspec.Struct, frozen=True):
    """An agent connected to a server."""

    name: str
    session: int
    slots: int


class ServerDetail(msgspec.Struct, frozen=True):
    server: ServerView
    shared_pools: list[SharedPool]
    agents: list[Connected]


_OPEN_POOLS = """
    select o.pool, p.requirements from mainspring.shared_pool o join mainspring.pool p on p.id = o.pool
     where o.server = $1 order by o.pool
"""
_CONNECTED = """
    select a.name, a.session, a.slots from mainspring.agent a
     where a.server = $1 and a.ended_at is null and a.successor is null and a.lease_until > mainspring.now()
     order by a.name, a.session
"""


async def server(conn: Connection, given: str) -> ServerDetail:
    """The server with this name, or whose id begins with it."""
    found = _find(await servers(conn, everything=True), given)
    pools = await conn.fetch(_OPEN_POOLS, found.id)
    agents = await conn.fetch(_CONNECTED, found.id)
    return ServerDetail(
        found,
        [SharedPool(row["pool"], decode(row["requirements"])) for row in pools],
        views(Connected, agents),
    )


def _find(servers: list[ServerView], given: str) -> ServerView:
    found = _candidates([one for one in servers if one.name == given])
    if not found and len(given) >= _AT_LEAST:
        found = [one for one in servers if str(one.id).startswith(given.lower())]
    if len(found) > 1:
        ids = ", ".join(str(one.id)[:SHORT] for one in found)
        raise Conflict(f"{given!r} may be any of {len(found)} servers; give the id of one: {ids}", field="server")
    if not found:
        raise ServerNotFound(
            f"no server has the name {given!r}, or an id that begins so (of which at least {_AT_LEAST} characters "
            "are needed); `mainspring servers --all` shows all",
            field="server",
        )
    return found[0]


def _candidates(namesakes: list[ServerView]) -> list[ServerView]:
    """The servers that a shared name means: those that run, else the silent ones, else the last that ended."""
    for statuses in (("active", "draining"), ("silent",)):
        if found := [one for one in namesakes if one.status in statuses]:
            return found
    return sorted(namesakes, key=lambda one: one.started_at)[-1:]


# ── all of them ─────────────────────────────────────────────────────────────────────────────────


class Leader(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    term: int
    since: datetime | None
    lease_until: datetime


class Summary(msgspec.Struct, frozen=True):
    """All servers in a few figures."""

    servers: dict[str, int]  # by status, of servers that have not ended
    leader: Leader | None  # none while one is being elected


async def summary(conn: Connection) -> Summary:
    found = await servers(conn)
    counts = Counter(one.status for one in found if one.status not in ENDED)
    leaders = [Leader(one.id, one.name, *astuple(one.leadership)) for one in found if one.leadership is not None]
    return Summary(dict(sorted(counts.items())), leaders[0] if leaders else None)


# ── segments ────────────────────────────────────────────────────────────────────────────────────


class SegmentView(msgspec.Struct, frozen=True):
    """One segment: its owner and its load."""

    id: int
    owner: UUID | None
    owner_name: str | None
    owner_status: str | None
    epoch: int
    since: datetime
    schedules: int  # that are enabled
    due: int  # tasks whose time has come, and that no agent holds
    waiting: int  # tasks whose time has not come, or that depend on others
    armed: int  # tasks that an agent holds and has not started
    running: int
    problem: str | None  # why nothing is planned and dispatched here
    is_estimated: bool = False  # the counts are from a sample: there are too many tasks or schedules for each request


MOST_BLOCKS = 4000  # of tasks, and of schedules, that one request reads; a block has 20 to 40 tasks
_BLOCKS = """
    select pg_relation_size(format('%I.task', 'mainspring')) / current_setting('block_size')::integer,
           pg_relation_size(format('%I.schedule', 'mainspring')) / current_setting('block_size')::integer
"""

# One pass over these shares of the tasks and of the schedules. A sample is taken from tables only: roles with fewer
# rights read through views.
_SEGMENTS = f"""
    with load as (
        select mod(id, 100) as segment,
               count(*) filter (where state = {PENDING:d} and run_at <= (select mainspring.now())) as due,
               count(*) filter (where state = {BLOCKED:d}
                                   or state = {PENDING:d} and run_at > (select mainspring.now())) as waiting,
               count(*) filter (where state = {ASSIGNED:d}) as armed,
               count(*) filter (where state = {RUNNING:d}) as running
          from mainspring.task {{of_tasks}} group by 1
    ), planned as (
        select segment, count(*) as schedules
          from mainspring.schedule {{of_schedules}} where enabled group by 1
    )
    select g.id, g.owner, s.name as owner_name, {STATUS} as owner_status, g.epoch, g.since,
           round(coalesce(p.schedules, 0) / $2::float8)::bigint as schedules,
           round(coalesce(l.due, 0) / $1::float8)::bigint as due,
           round(coalesce(l.waiting, 0) / $1)::bigint as waiting, round(coalesce(l.armed, 0) / $1)::bigint as armed,
           round(coalesce(l.running, 0) / $1)::bigint as running, $1 < 1 or $2 < 1 as is_estimated
      from mainspring.segment g
      left join mainspring.server s on s.id = g.owner
      left join load l on l.segment = g.id
      left join planned p on p.segment = g.id
     order by g.id
"""


_OWNERS = f"""
    select g.id, g.owner, s.name as owner_name, {STATUS} as owner_status
      from mainspring.segment g left join mainspring.server s on s.id = g.owner
     where g.id = any($1::smallint[])
"""


async def unserved(conn: Connection, segments: Iterable[int]) -> dict[int, str]:
    """Those of these segments that no server serves, and why."""
    rows = [row for row in await conn.fetch(_OWNERS, list(segments)) if row["owner_status"] not in _SERVING]
    cluster = await summary(conn) if rows else None
    return {row["id"]: problem for row in rows if cluster and (problem := _problem(row, cluster))}


def _segments(tasks: float, schedules: float) -> str:
    return _SEGMENTS.format(
        of_tasks="tablesample system (100 * $1::float8)" if tasks < 1.0 else "",
        of_schedules="tablesample system (100 * $2::float8)" if schedules < 1.0 else "",
    )


async def segments(conn: Connection) -> list[SegmentView]:
    """All segments, by id."""
    shares = [MOST_BLOCKS / max(MOST_BLOCKS, blocks) for blocks in await conn.fetchrow(_BLOCKS)]
    rows = await conn.fetch(_segments(*shares), *shares)
    cluster = await summary(conn)
    return views(SegmentView, ({**row, "problem": _problem(row, cluster)} for row in rows))


def _problem(row: Any, cluster: Summary) -> str | None:
    if row["owner_status"] in _SERVING:
        return None
    if not cluster.servers.get("active"):
        return "no server is active; start one with `mainspring server`, `worker` or `up`"
    if cluster.leader is None:
        return "there is no leader to assign an owner; one is being elected"
    leader = cluster.leader.name
    if row["owner"] is None:
        return f"the leader, {leader}, has assigned no owner yet"
    return (
        f"the owner, {row['owner_name']}, is {row['owner_status']}, and the leader, {leader}, has assigned no other yet"
    )


# ── their moves ─────────────────────────────────────────────────────────────────────────────────


class MoveView(msgspec.Struct, frozen=True):
    """Segments that moved together. Names are null for servers that retention has deleted."""

    at: datetime
    segments: list[int]
    old_owner: UUID | None
    old_name: str | None
    new_owner: UUID | None
    new_name: str | None
    reason: str  # free, dead, stopped, balance, released
    term: int  # of the leader that moved them; 0: the owner released them
    id: int  # grows with each move


_MOVES = """
    select m.id, m.at, m.segments, m.old_owner, o.name as old_name, m.new_owner, n.name as new_name, m.reason, m.term
      from (select * from mainspring.segment_move
             where $1::bigint is null or id < $1 order by id desc limit $2) m
      left join mainspring.server o on o.id = m.old_owner
      left join mainspring.server n on n.id = m.new_owner
     order by m.id desc
"""


async def moves(conn: Connection, *, before: int | None = None, limit: int) -> list[MoveView]:
    """The last moves, those before a move, the newest first."""
    return views(MoveView, await conn.fetch(_MOVES, before, limit))
