"""Leases: the clock they run on, and ending or restarting those of servers and sessions alike.

Next: server/cluster/dead_processes.py
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import affected


async def now(conn: Connection) -> float:
    """Seconds since 1970 by the database."""
    return float(await conn.fetchval("select extract(epoch from mainspring.now())::float8"))


# A heartbeat in the future was written before the clock was set back; without this, the lease of a dead process would
# last as much longer as the clock went back. The lease restarts at its full length: a live process renews it.
_SERVERS = "status in ('active', 'draining') and heartbeat_at > mainspring.now() + interval '1 second'"
_SESSIONS = "ended_at is null and heard_at > mainspring.now() + interval '1 second'"
_ANY_IN_FUTURE = f"""
    select exists (select from mainspring.server where {_SERVERS})
        or exists (select from mainspring.agent where {_SESSIONS})
"""
_RESTART_SERVERS = f"""
    update mainspring.server
       set lease_until = mainspring.now() + (lease_until - heartbeat_at), heartbeat_at = mainspring.now()
     where {_SERVERS}
"""
_RESTART_SESSIONS = f"""
    update mainspring.agent
       set lease_until = mainspring.now() + (lease_until - heard_at), heard_at = mainspring.now()
     where {_SESSIONS}
"""


async def restart_future_leases(conn: Connection) -> int:
    """Restart the leases of servers and sessions whose last heartbeat lies in the future; returns how many."""
    if not await conn.fetchval(_ANY_IN_FUTURE):
        return 0
    return sum([affected(await conn.execute(statement)) for statement in (_RESTART_SERVERS, _RESTART_SESSIONS)])


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


# Guarded by the process: a server that has restarted in the meantime keeps its lease.
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
