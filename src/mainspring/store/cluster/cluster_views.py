"""Cluster views: the leader, the segments with their owners and loads, and how segments moved."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from mainspring.model.tasks.states import ASSIGNED, BLOCKED, PENDING, RUNNING
from mainspring.store.cluster.server_views import STATUS
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import views


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


_COUNTS = f"""
    select {STATUS} as status, count(*) as servers from mainspring.server s
     where s.status in ('active', 'draining') group by 1 order by 1
"""
_LEADER = """
    select s.id, s.name, l.term, l.elected_at, l.lease_until
      from mainspring.leader l join mainspring.server s on s.id = l.owner
     where l.lease_until > mainspring.now()
"""


async def summary(conn: Connection) -> Summary:
    counts = await conn.fetch(_COUNTS)
    leader = await conn.fetchrow(_LEADER)
    return Summary(
        {row["status"]: row["servers"] for row in counts},
        None if leader is None else Leader(*leader),
    )


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


# One pass over the tasks and one over the schedules.
_SEGMENTS = f"""
    with load as (
        select mod(id, 100) as segment,
               count(*) filter (where state = {PENDING:d} and run_at <= (select mainspring.now())) as due,
               count(*) filter (where state = {BLOCKED:d}
                                   or state = {PENDING:d} and run_at > (select mainspring.now())) as waiting,
               count(*) filter (where state = {ASSIGNED:d}) as armed,
               count(*) filter (where state = {RUNNING:d}) as running
          from mainspring.task group by 1
    ), planned as (
        select segment, count(*) as schedules from mainspring.schedule where enabled group by 1
    )
    select g.id, g.owner, s.name as owner_name, {STATUS} as owner_status, g.epoch, g.since,
           coalesce(p.schedules, 0) as schedules, coalesce(l.due, 0) as due, coalesce(l.waiting, 0) as waiting,
           coalesce(l.armed, 0) as armed, coalesce(l.running, 0) as running
      from mainspring.segment g
      left join mainspring.server s on s.id = g.owner
      left join load l on l.segment = g.id
      left join planned p on p.segment = g.id
     order by g.id
"""


async def segments(conn: Connection) -> list[SegmentView]:
    """All segments, by id."""
    rows = await conn.fetch(_SEGMENTS)
    cluster = await summary(conn)
    return views(SegmentView, ({**row, "problem": _problem(row, cluster)} for row in rows))


def _problem(row: Any, cluster: Summary) -> str | None:
    if row["owner_status"] in ("active", "draining"):
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


_MOVES = """
    select m.at, m.segments, m.old_owner, o.name as old_name, m.new_owner, n.name as new_name, m.reason, m.term
      from (select * from mainspring.segment_move order by id desc limit $1) m
      left join mainspring.server o on o.id = m.old_owner
      left join mainspring.server n on n.id = m.new_owner
     order by m.id desc
"""


async def moves(conn: Connection, limit: int) -> list[MoveView]:
    """The last moves, the newest first."""
    return views(MoveView, await conn.fetch(_MOVES, limit))
