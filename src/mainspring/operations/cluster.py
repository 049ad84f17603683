"""The cluster: servers, the leader, segments and their moves; the figures of `mainspring stats`.

Next: store/cluster/cluster_views.py
"""

from __future__ import annotations

from typing import Any

from mainspring.model.access.actors import Actor
from mainspring.model.words.names import check_name
from mainspring.store.cluster import cluster_views
from mainspring.store.cluster.cluster_views import MoveView, SegmentView, ServerDetail, ServerView
from mainspring.store.figures import stats as figures
from mainspring.store.postgres.connection import Connection


async def servers(conn: Connection, actor: Actor, *, everything: bool = False) -> list[ServerView]:
    """The servers that run and those that ended within the hour; or all that are known."""
    return await cluster_views.servers(conn, everything=everything)


async def server(conn: Connection, actor: Actor, name: str) -> ServerDetail:
    """By its name or by the beginning of its id. Conflict if several servers match."""
    return await cluster_views.server(conn, check_name(name, field="server"))


async def segments(conn: Connection, actor: Actor) -> list[SegmentView]:
    return await cluster_views.segments(conn)


async def moves(conn: Connection, actor: Actor, limit: int) -> list[MoveView]:
    """The last moves of segments, the newest first."""
    return await cluster_views.moves(conn, limit)


async def stats(conn: Connection, actor: Actor) -> dict[str, Any]:
    return await figures.stats(conn)
