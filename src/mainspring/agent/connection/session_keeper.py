"""SessionKeeper: renew the session of a remote agent from the watchdog's thread, by a connection of its own.

Runs in the watchdog's thread while the agent's event loop is blocked. It connects to the agent's server, or to any
other if that one is gone; when the loop is back, the agent itself reconnects with what it holds. If its server's
loop is blocked instead, the agent's own loop uses one while it tries to reconnect.
Sends   Keep
Next:   server/agents/connection.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from mainspring.model.messages import AgentMessage, Configure, Frame, Keep, ServerMessage
from mainspring.wire.channel import Channel
from mainspring.wire.clock import boottime

if TYPE_CHECKING:
    from mainspring.agent.agent import Agent

Dial = Callable[[str | None], Awaitable[Channel[AgentMessage, ServerMessage]]]

RENEW_AFTER = 1 / 3  # of a lease since its last renewal


class SessionKeeper:
    """`beside` makes a connector of its own (connector.py). `blocked`: whether the agent's loop is, or its server's."""

    def __init__(self, agent: Agent, beside: Callable[[], Dial], *, blocked: bool = True) -> None:
        self._agent = agent
        self._is_blocked = blocked
        self._beside = beside
        self._dial: Dial | None = None
        self._channel: Channel[AgentMessage, ServerMessage] | None = None

    async def prepare(self) -> None:
        """It connects when the loop is blocked: a second connection of every agent would cost the servers."""

    async def renew(self, blocked: float) -> None:
        agent = self._agent
        session, length = agent.session, agent.lease.length
        if session is None or not length or boottime() < agent.lease.renewed_at + length * RENEW_AFTER:
            return
        try:
            sent, seconds = await self._keep(session)
        except BaseException:
            self._drop()
            raise
        agent.kept(session, sent, seconds)

    async def _keep(self, session: int) -> tuple[float, float]:
        """Ask a server for the renewal; returns when it was asked, and for how many seconds the lease holds then."""
        if self._channel is None:
            self._dial = self._dial or self._beside()
            # If that fails, the next call tries the next server.
            self._channel = await self._dial(self._agent.credential)
        sent = boottime()
        await self._channel.send(Frame(0, 0, [Keep(session, self._agent.instance, sent, self._is_blocked)]))
        while True:
            for message in (await self._channel.receive()).messages:
                if isinstance(message, Configure) and message.echo == sent:
                    return sent, message.lease

    async def relieve(self) -> None:
        """The next blockage begins with the server that the agent is connected to then."""
        self._dial = None
        self._drop()

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.abort()  # a closing handshake with a silent server would take as long as a lease

    async def close(self) -> None:
        self._drop()
