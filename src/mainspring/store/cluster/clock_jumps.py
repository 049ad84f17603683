"""Leases after the database's clock was set back: those of the dead would last for as long as it was.

Next: server/cluster/coordinator.py
"""

from __future__ import annotations

from mainspring.store.postgres.database import Connection

# A heartbeat that lies ahead was written before the clock was set back. The lease counts anew from now, at its full
# length: who lives renews it, and who does not has lost it by then.
_SERVERS = """
    update mainspring.server
       set lease_until = mainspring.now() + (lease_until - heartbeat_at), heartbeat_at = mainspring.now()
     where status in ('active', 'draining') and heartbeat_at > mainspring.now() + interval '1 second'
"""
_SESSIONS = """
    update mainspring.agent
       set lease_until = mainspring.now() + (lease_until - heard_at), heard_at = mainspring.now()
     where ended_at is null and heard_at > mainspring.now() + interval '1 second'
"""


async def count_anew(conn: Connection) -> int:
    """Let leases of servers and sessions that were written by a clock that was ahead begin now. Returns how many."""
    statuses = [await conn.execute(statement) for statement in (_SERVERS, _SESSIONS)]
    return sum(int(status.rpartition(" ")[2]) for status in statuses)
