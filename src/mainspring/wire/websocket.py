"""WebSocketChannel: the channel between machines. One frame is one binary message, without compression.

Next: wire/link.py; who connects is agent/connection/connector.py, who listens is server/agents/endpoint.py
"""

from __future__ import annotations

import asyncio
import logging
from typing import Generic, TypeVar

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from mainspring.model.messages import Frame
from mainspring.wire.channel import ChannelClosed, ChannelRefused
from mainspring.wire.codec import BadFrame, Codec

log = logging.getLogger("mainspring")

Out = TypeVar("Out")
In = TypeVar("In")

PATH = "/agent"
MAX_FRAME = 16 << 20  # bytes; a larger one is refused with 1009
NORMAL, POLICY = 1000, 1008
CLOSE_WITHIN = 3.0  # seconds
MAX_NOT_UNDERSTOOD = 1000  # messages, before the other side is sent away
TELL_FIRST = 10  # of them
SEND_TIMEOUT = 30.0  # seconds in which nothing of a frame leaves us: nobody reads at the other end


class WebSocketChannel(Generic[Out, In]):
    def __init__(self, socket: Connection, codec: Codec[Out, In]) -> None:
        self._socket = socket
        self._codec = codec

    async def send(self, frame: Frame[Out]) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                await self._socket.send(self._codec.encode(frame))
        except ConnectionClosed as closed:
            raise _closed(closed) from None
        except TimeoutError:
            self.abort()
            raise ChannelClosed("the other side reads nothing any more") from None

    async def receive(self) -> Frame[In]:
        try:
            data = await self._socket.recv(decode=False)
            before = self._codec.not_understood
            frame = self._codec.decode(data)
            if before < self._codec.not_understood <= TELL_FIRST:
                log.warning("a message is not understood here, and left out; do the versions differ?")
            if self._codec.not_understood > MAX_NOT_UNDERSTOOD:
                raise BadFrame(f"{self._codec.not_understood} messages that are not understood here")
        except ConnectionClosed as closed:
            raise _closed(closed) from None
        except BadFrame as error:
            log.warning("a connection is closed: %s", error)
            await self.refuse(error.message)
            raise ChannelClosed(error.message) from None
        return frame

    async def refuse(self, reason: str) -> None:
        """Close, and say why."""
        await self._end(POLICY, reason.encode()[:120].decode(errors="ignore"))

    async def close(self) -> None:
        await self._end(NORMAL, "")

    def abort(self) -> None:
        self._socket.transport.abort()

    async def _end(self, code: int, reason: str) -> None:
        """Where nobody reads any more, a polite close would wait until the system gives up."""
        try:
            async with asyncio.timeout(CLOSE_WITHIN):
                await self._socket.close(code, reason)
        except TimeoutError:
            self.abort()


def _closed(closed: ConnectionClosed) -> ChannelClosed:
    said = closed.rcvd or closed.sent
    reason = f"{said.code} {said.reason}".strip() if said is not None else "without a word"
    if closed.rcvd is not None and closed.rcvd.code == POLICY:
        return ChannelRefused(closed.rcvd.reason or "no reason was given")
    return ChannelClosed(f"the connection closed: {reason}")
