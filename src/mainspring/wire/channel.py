"""Channel: how server and agent exchange frames. In one process it is a pair of queues, between machines a WebSocket
(wire/websocket.py).

Next: wire/link.py
"""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from mainspring.errors import MainspringError
from mainspring.model.messages import AgentMessage, Frame, ServerMessage

# Codes of a WebSocket's close frame that say why the peer is refused.
POLICY = 1008  # it is not let in: trying again does not help
SUPERSEDED = 4409  # it has connected again since: this connection came too late

Out = TypeVar("Out")
In = TypeVar("In")


class ChannelClosed(MainspringError):
    """The connection is closed; frames that the peer has not acknowledged stay with the sender."""

    code = "channel_closed"


class ChannelRefused(ChannelClosed):
    """The peer refused the connection; the message is its reason."""

    code = "channel_refused"


class Received(Frame[In], Generic[In], array_like=True):
    """A frame from another machine, with the memory that it takes here, in bytes."""

    size: int = 0


class ChannelBusy(ChannelClosed):
    """The peer takes no connection now: its event loop is blocked, or it has no database."""

    code = "channel_busy"


class Channel(Protocol[Out, In]):
    async def send(self, frame: Frame[Out]) -> None: ...

    async def receive(self) -> Frame[In]: ...

    @property
    def is_closed(self) -> bool: ...

    async def refuse(self, reason: str, code: int = POLICY) -> None:
        """Close, with a reason for the peer."""

    async def close(self) -> None: ...

    def abort(self) -> None:
        """Close without a handshake: the peer is silent, and would not answer it."""


class MemoryChannel(Generic[Out, In]):
    """One end of a pair of queues."""

    def __init__(self, outgoing: asyncio.Queue[Frame[Out] | None], incoming: asyncio.Queue[Frame[In] | None]) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._closed = False

    async def send(self, frame: Frame[Out]) -> None:
        if self._closed:
            raise ChannelClosed("the channel is closed")
        self._outgoing.put_nowait(frame)

    async def receive(self) -> Frame[In]:
        frame = None if self._closed else await self._incoming.get()
        if frame is None:
            self._closed = True
            raise ChannelClosed("the channel is closed")
        return frame

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def refuse(self, reason: str, code: int = POLICY) -> None:
        await self.close()

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Both ends see it, after the frames in flight."""
        if not self._closed:
            self._closed = True
            self._outgoing.put_nowait(None)
            self._incoming.put_nowait(None)


def memory_pair() -> tuple[Channel[AgentMessage, ServerMessage], Channel[ServerMessage, AgentMessage]]:
    """(the agent's end, the server's end)"""
    up: asyncio.Queue[Frame[AgentMessage] | None] = asyncio.Queue()
    down: asyncio.Queue[Frame[ServerMessage] | None] = asyncio.Queue()
    return MemoryChannel(up, down), MemoryChannel(down, up)
