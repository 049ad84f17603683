"""Neighbours: sessions and servers that say which process runs them, for whoever can see that it died.

Each move is guarded by the process: a server that has started again in the meantime keeps its lease.
Next: server/cluster/dead_processes.py
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.store.postgres.database import Connection

_PROCESSES = """
    select process from mainspring.agent
     where ended_at is null and lease_until > mainspring.now() and process is not null
     union
    select process from mainspring.server
     where status in ('active', 'draining') and lease_until > mainspring.now() and process is not null
"""


async def processes(conn: Connection) -> list[str]:
    """The processes of all sessions and servers with a lease."""
    return [row["process"] for row in await conn.fetch(_PROCESSES)]


_END_SESSIONS = """
    update mainspring.agent set lease_until = mainspring.now()
     where process = any($1::text[]) and ended_at is null and lease_until > mainspring.now()
    returning session
"""
_END_SERVERS = """
    with over as (
        update mainspring.server set lease_until = mainspring.now()
         where process = any($1::text[]) and status in ('active', 'draining') and lease_until > mainspring.now()
        returning id, name
    )
    select name, pg_notify('mainspring', 'server') from over
"""


async def end(conn: Connection, processes: Sequence[str]) -> tuple[list[int], list[str]]:
    """These processes are dead: the leases of their sessions and servers are over now. Returns both."""
    sessions = [row["session"] for row in await conn.fetch(_END_SESSIONS, processes)]
    return sessions, [row["name"] for row in await conn.fetch(_END_SERVERS, processes)]
