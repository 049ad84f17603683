"""What commands ask about the cluster, and its implementation straight on the database.

Uses   store.server_views, store.cluster_views
Next:  cli/fleet/servers.py, cli/fleet/segments.py
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from mainspring.model.words.names import check_name
from mainspring.store.cluster import cluster_views, server_views
from mainspring.store.cluster.cluster_views import MoveView, SegmentView
from mainspring.store.cluster.server_views import ServerDetail, ServerView
from mainspring.store.postgres.database import Connection


class Cluster(Protocol):
    """The servers, and the segments that they own."""

    async def servers(self, *, everything: bool) -> list[ServerView]:
        """Those that are there and that ended within the hour, or every one that is known."""

    async def server(self, name: str) -> ServerDetail:
        """By its name, or by the beginning of its id; Conflict if that may be several."""

    async def segments(self) -> list[SegmentView]: ...
    async def moves(self, limit: int) -> list[MoveView]:
        """How segments changed hands, the newest first."""


class DatabaseCluster:
    """On the database itself."""

    def __init__(self, conn: Callable[[], AbstractAsyncContextManager[Connection]]) -> None:
        self._conn = conn

    async def servers(self, *, everything: bool) -> list[ServerView]:
        async with self._conn() as conn:
            return await server_views.listing(conn, everything=everything)

    async def server(self, name: str) -> ServerDetail:
        check_name(name, field="server")
        async with self._conn() as conn:
            return await server_views.detail(conn, name)

    async def segments(self) -> list[SegmentView]:
        async with self._conn() as conn:
            return await cluster_views.segments(conn)

    async def moves(self, limit: int) -> list[MoveView]:
        async with self._conn() as conn:
            return await cluster_views.moves(conn, limit)
