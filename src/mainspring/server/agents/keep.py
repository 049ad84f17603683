"""Keep: renew the sessions of agents that cannot say hello, because their event loop or their server's is blocked.

A server whose loop is blocked accepts connections in its watchdog's thread, on the same port: it renews the sessions of
its agents, which would stop their attempts otherwise, and sends any other connection away.
Reads   Keep
Writes  store.cluster.agents   (leases)
Sends   Configure
Next:   store/cluster/agents.py
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from mainspring.model.messages import AgentMessage, Configure, Keep, ServerMessage
from mainspring.server.agents.endpoint import Endpoint
from mainspring.server.agents.refusals import Refusals
from mainspring.server.recording.flush import ServerLink
from mainspring.store.access import tokens
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Database, DedicatedConnection
from mainspring.wire.channel import Channel, ChannelClosed
from mainspring.wire.clock import Clock, boottime
from mainspring.wire.link import Link

KEEP_WITHIN = 10.0  # seconds from the connection to the first message
ACCEPT_AFTER = 1 / 6  # of a lease that the loop is blocked


async def keep_session(
    keep: Keep,
    link: ServerLink,
    dedicated: DedicatedConnection,
    lease: float,
    clock: Clock,
    on_kept: Callable[[int, str, float], None] = lambda session, instance, asked_at: None,
) -> None:
    """Renew the session once for each `Keep` of a connection. Returns when the session is over; ChannelClosed if the
    agent leaves. The session may be connected to this server, to another one, or to none."""
    instance = tokens.digest(keep.instance).hex()
    while 0 < keep.session < 2**63:
        asked_at = boottime()
        async with dedicated as conn:
            if not await agents.keep(conn, keep.session, instance, lease):
                return
        on_kept(keep.session, instance, asked_at)
        await link.send_unnumbered([Configure(lease - (boottime() - asked_at), clock.now(), keep.sent)])
        _, messages = await link.receive()
        again = messages[0] if messages else None
        if not isinstance(again, Keep) or again.instance != keep.instance:
            return
        keep = again


class BlockedEndpoint:
    """Accepts agents while the loop of `endpoint` is blocked. `database` is one for the watchdog's thread."""

    def __init__(self, endpoint: Endpoint, database: Database, clock: Clock, lease: float) -> None:
        self._database = database
        self._dedicated = database.for_leases()
        self._endpoint = endpoint
        self._clock = clock
        self._lease = lease
        self._own: Endpoint | None = None
        self.refusals = Refusals()

    async def prepare(self) -> None:
        """Agents come when the loop is blocked; then it connects."""

    async def renew(self, blocked: float) -> None:
        if self._own is None and blocked > self._lease * ACCEPT_AFTER:
            # Copies of the descriptors: closing them does not end the listening.
            sockets = [socket.socket(fileno=os.dup(listening)) for listening in self._endpoint.listening]
            if not sockets:
                return  # the server has stopped listening
            own = self._endpoint.beside(self._database, self, "the event loop of this server is blocked")
            try:
                await own.bind(sockets)
                await own.open()
            except BaseException:
                await own.close()
                raise
            self._own = own

    async def relieve(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            await own.close()

    async def serve(
        self, channel: Channel[ServerMessage, AgentMessage], *, process: str | None, token: int | None = None
    ) -> None:
        """Serve a connection, as AgentConnections does on the loop that is blocked."""
        link: ServerLink = Link(channel)
        try:
            async with asyncio.timeout(KEEP_WITHIN):
                _, messages = await link.receive()
            if messages and isinstance(messages[0], Keep):
                await keep_session(messages[0], link, self._dedicated, self._lease, self._clock)
        except (ChannelClosed, TimeoutError):
            pass
        await link.close()

    async def close(self) -> None:
        await self.relieve()
