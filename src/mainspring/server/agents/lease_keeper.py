"""LeaseKeeper: renew the lease of a server, and of the agent in its process, from the watchdog's thread.

Runs in the watchdog's thread, by a connection of its own, while the server's event loop is blocked.
Writes  store.cluster.servers, store.cluster.agents   (leases)
Next:   store/cluster/agents.py
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.server.agents.gateway import Gateway
from mainspring.server.cluster.membership import Membership
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Database
from mainspring.wire.clock import boottime

RENEW_AFTER = 1 / 3  # of a lease since its last renewal
# A server that is blocked for longer than this, and than two leases, lets its lease expire: others plan and dispatch
# its segments. It joins again when it is back. The sessions of its agent, and so what runs, are kept.
HAND_OVER_AFTER = 30.0  # seconds


class LeaseKeeper:
    """`database` is one for the watchdog's thread. `on_kept` takes a session of the local agent, when its renewal was
    asked for, and the seconds of its lease."""

    def __init__(
        self,
        database: Database,
        membership: Membership,
        gateway: Gateway,
        lease: float,
        on_kept: Callable[[int, float, float], None] = lambda session, sent, seconds: None,
    ) -> None:
        self._database = database
        self._dedicated = self._database.for_leases()
        self._membership = membership
        self._gateway = gateway
        self._lease = lease
        self._on_kept = on_kept

    async def prepare(self) -> None:
        async with self._dedicated:
            pass

    async def renew(self, blocked: float) -> None:
        # The list is a copy in one step: the loop of the gateway runs in another thread.
        local = [session for session in list(self._gateway.sessions.values()) if session.is_local]
        before = boottime() - self._lease * RENEW_AFTER
        sessions = [session for session in local if session.renewed_at < before]
        is_due = self._membership.renewed_at < before and blocked < max(HAND_OVER_AFTER, 2 * self._lease)
        if not sessions and not is_due:
            return
        async with self._dedicated as conn:
            for session in sessions:
                asked_at = boottime()
                if await agents.keep(conn, session.id, session.instance, self._lease):
                    session.renewed_at = asked_at
                    self._on_kept(session.id, asked_at, self._lease)
            if is_due:
                await self._membership.keep(conn)

    async def relieve(self) -> None:
        """Its connection stays open for the next time."""

    async def close(self) -> None:
        await self._database.close()
