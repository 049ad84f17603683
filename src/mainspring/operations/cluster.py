"""The cluster: servers, the leader, segments and their moves; the figures of `mainspring stats`.

Next: store/cluster/server_views.py
"""

from __future__ import annotations

from mainspring.model.words.names import check_name
from mainspring.store.cluster import server_views
from mainspring.store.cluster.cluster_views import moves, segments
from mainspring.store.cluster.server_views import ServerDetail
from mainspring.store.cluster.server_views import listing as servers
from mainspring.store.figures.stats import stats
from mainspring.store.postgres.connection import Connection

__all__ = ["moves", "segments", "server", "servers", "stats"]


async def server(conn: Connection, name: str) -> ServerDetail:
    """By its name or by the beginning of its id. Conflict if several servers match."""
    return await server_views.detail(conn, check_name(name, field="server"))
