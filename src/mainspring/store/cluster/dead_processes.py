"""Dead processes: end the leases of sessions and servers whose process has died on this machine.

Each update is guarded by the process: a server that has restarted in the meantime keeps its lease.
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
    with ended as (
        update mainspring.server set lease_until = mainspring.now()
         where process = any($1::text[]) and status in ('active', 'draining') and lease_until > mainspring.now()
        returning id, name
    )
    select name, pg_notify('mainspring', 'server') from ended
"""


async def end(conn: Connection, processes: Sequence[str]) -> tuple[list[int], list[str]]:
    """End the leases of the sessions and servers of these processes; returns their sessions and server names."""
    sessions = [row["session"] for row in await conn.fetch(_END_SESSIONS, processes)]
    return sessions, [row["name"] for row in await conn.fetch(_END_SERVERS, processes)]
