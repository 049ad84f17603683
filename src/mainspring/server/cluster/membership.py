"""Membership: this server's row in the cluster and its lease; join again when the lease was lost.

Writes  store.cluster.servers   (join, heartbeat, drain, stop), on the connection for leases: a full pool costs no lease
Next:   server/cluster/leader.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from mainspring.errors import StoreUnavailable
from mainspring.server.cluster.lease import ServerLease
from mainspring.store.cluster import servers
from mainspring.store.cluster.servers import Pulse, ServerInfo
from mainspring.store.postgres.database import Connection, Database
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

BEATS = 6  # heartbeats in a lease
MARGIN = 0.1  # of a lease: this long before its end a server stops acting on it


class Membership:
    """`server` describes this server to the others; `agents` counts those connected to it."""

    def __init__(
        self,
        database: Database,
        server_lease: ServerLease,
        server: ServerInfo,
        lease: float,
        agents: Callable[[], int],
    ) -> None:
        self._dedicated = database.for_leases()
        self._server_lease = server_lease
        self._server = server
        self._lease = lease
        self._agents = agents
        self._incarnation = 0
        self._is_drained = False  # its drain is committed
        self.beat_every = lease / BEATS

    async def join(self) -> None:
        """Enter the cluster and get a lease."""
        async with self._dedicated as conn:
            await self._join(conn)

    async def _join(self, conn: Connection) -> None:
        asked_at = boottime()
        self._incarnation = await servers.join(conn, self._server, self._lease)
        self._trust(asked_at)

    async def announce(self, url: str | None, api_url: str | None) -> None:
        """Publish the URL that agents connect to, and that of the HTTP API."""
        self._server = self._server._replace(url=url, api_url=api_url)
        async with self._dedicated as conn:
            await servers.announce(conn, self._server.id, self._incarnation, url, api_url)

    def _trust(self, asked_at: float) -> None:
        """The lease was renewed after `asked_at`, so counting from there never overestimates it."""
        self._server_lease.trusted_until = asked_at + self._lease * (1 - MARGIN)

    @property
    def renewed_at(self) -> float:
        """Just before the last renewal of the lease, in boot time."""
        return self._server_lease.trusted_until - self._lease * (1 - MARGIN)

    async def keep(self, conn: Connection) -> None:
        """Renew the lease, in the watchdog's thread. If it was lost, `beat` joins again once the loop is back."""
        asked_at = boottime()
        if await servers.beat(conn, self._server.id, self._incarnation, self._lease, self._pulse()):
            self._trust(asked_at)

    async def beat(self) -> int:
        """Renew the lease. A server that was marked dead joins again and is assigned new segments."""
        asked_at = boottime()
        try:
            is_renewed = await self._beat(asked_at)
        except StoreUnavailable:
            self._server_lease.cluster_tally.heartbeats["failed"] += 1
            raise
        self._server_lease.cluster_tally.heartbeats["ok" if is_renewed else "expired"] += 1
        return 0

    async def _beat(self, asked_at: float) -> bool:
        async with self._dedicated as conn:
            if self._server_lease.is_draining and not self._is_drained:
                await self._drain(conn)  # else the renewed lease would keep segments that no server works on
            if await servers.beat(conn, self._server.id, self._incarnation, self._lease, self._pulse()):
                self._trust(asked_at)
                return True
            if not self._server_lease.is_draining:
                await self._rejoin(conn)
        return False

    async def _rejoin(self, conn: Connection) -> None:
        self._server_lease.trusted_until = 0.0
        if await servers.is_taken(conn, self._server, self._incarnation):
            log.error(
                "server id %s is in use by another process (a copied data directory?); taking a new id", self._server.id
            )
            self._server = self._server._replace(id=uuid4())
            self._server_lease.id = self._server.id
        else:
            log.warning("this server was silent for longer than its lease, and was declared dead; it joins again")
        await self._join(conn)

    def _pulse(self) -> Pulse:
        tally = self._server_lease.tally
        scan_age = None if tally.scanned_at is None else boottime() - tally.scanned_at
        return Pulse(
            self._agents(),
            tally.scanned,
            tally.planned,
            tally.dispatched,
            tally.recorded,
            scan_age,
            tally.scan_seconds,
            tally.blockages.times,
            tally.blockages.seconds,
            tally.claim_seconds,
        )

    async def drain(self) -> None:
        """Take nothing new and release the segments."""
        self._server_lease.is_draining = True
        with suppress(StoreUnavailable):  # then the next heartbeat does it
            async with self._dedicated as conn:
                await self._drain(conn)

    async def _drain(self, conn: Connection) -> None:
        released = await servers.drain(conn, self._server.id, self._incarnation)
        self._server_lease.cluster_tally.moves["released"] += released
        self._is_drained = True

    async def close(self) -> None:
        """Leave the cluster."""
        with suppress(StoreUnavailable):
            async with self._dedicated as conn:
                await servers.stop(conn, self._server.id, self._incarnation)
