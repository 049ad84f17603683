"""The cluster: servers, the leader, segments and their moves; the figures of `mainspring stats`.

Next: store/cluster/cluster_views.py
"""

from __future__ import annotations

from mainspring.model.words.names import check_name
from mainspring.store.cluster import cluster_views
from mainspring.store.cluster.cluster_views import ServerDetail, moves, segments, servers
from mainspring.store.figures.stats import stats
from mainspring.store.postgres.connection import Connection

__all__ = ["moves", "segments", "server", "servers", "stats"]


async def server(conn: Connection, name: str) -> ServerDetail:
    """By its name or by the beginning of its id. Conflict if several servers match."""
    return await cluster_views.server(conn, check_name(name, field="server"))
