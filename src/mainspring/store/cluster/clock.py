"""Clock: the database's time, and leases that were written before it was set back."""

from __future__ import annotations

from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import affected


async def now(conn: Connection) -> float:
    """Seconds since 1970 by the database."""
    return float(await conn.fetchval("select extract(epoch from mainspring.now())::float8"))


# A heartbeat in the future was written before the clock was set back; without this, the lease of a dead process would
# last as much longer as the clock went back. The lease restarts at its full length: a live process renews it.
_RESTART_SERVERS = """
    update mainspring.server
       set lease_until = mainspring.now() + (lease_until - heartbeat_at), heartbeat_at = mainspring.now()
     where status in ('active', 'draining') and heartbeat_at > mainspring.now() + interval '1 second'
"""
_RESTART_SESSIONS = """
    update mainspring.agent
       set lease_until = mainspring.now() + (lease_until - heard_at), heard_at = mainspring.now()
     where ended_at is null and heard_at > mainspring.now() + interval '1 second'
"""


async def restart_future_leases(conn: Connection) -> int:
    """Restart the leases of servers and sessions whose last heartbeat lies in the future; returns how many."""
    return sum([affected(await conn.execute(statement)) for statement in (_RESTART_SERVERS, _RESTART_SESSIONS)])
