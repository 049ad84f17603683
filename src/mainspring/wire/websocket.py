"""WebSocketChannel: the channel between machines. One frame is one binary message, without compression.

agent/connection/connector.py connects, server/agents/endpoint.py listens.
Next: wire/link.py
"""

from __future__ import annotations

import asyncio
import logging
from typing import Generic

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from mainspring.model.messages import Frame
from mainspring.wire.channel import ChannelClosed, ChannelRefused, In, Out
from mainspring.wire.codec import BadFrame, Codec

log = logging.getLogger("mainspring")

PATH = "/agent"
MAX_FRAME = 16 << 20  # bytes; a larger one is refused with 1009
NORMAL, POLICY = 1000, 1008
CLOSE_WITHIN = 3.0  # seconds
MAX_UNKNOWN = 1000  # messages, before the peer is refused
LOG_FIRST = 10  # of them
SEND_TIMEOUT = 30.0  # seconds for one frame: then the peer does not read


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
            before = self._codec.unknown
            frame = self._codec.decode(data)
            if before < self._codec.unknown <= LOG_FIRST:
                log.warning("a message is not understood here, and left out; do the versions differ?")
            if self._codec.unknown > MAX_UNKNOWN:
                raise BadFrame(f"{self._codec.unknown} messages that are not understood here")
        except ConnectionClosed as closed:
            raise _closed(closed) from None
        except BadFrame as error:
            log.warning("a connection is closed: %s", error)
            await self.refuse(error.message)
            raise ChannelClosed(error.message) from None
        return frame

    async def refuse(self, reason: str) -> None:
        await self._end(POLICY, reason.encode()[:120].decode(errors="ignore"))

    async def close(self) -> None:
        await self._end(NORMAL, "")

    def abort(self) -> None:
        self._socket.transport.abort()

    async def _end(self, code: int, reason: str) -> None:
        """If the peer does not read, the closing handshake would wait until the system gives up."""
        try:
            async with asyncio.timeout(CLOSE_WITHIN):
                await self._socket.close(code, reason)
        except TimeoutError:
            self.abort()


def _closed(closed: ConnectionClosed) -> ChannelClosed:
    frame = closed.rcvd or closed.sent
    reason = f"{frame.code} {frame.reason}".strip() if frame is not None else "without a word"
    if closed.rcvd is not None and closed.rcvd.code == POLICY:
        return ChannelRefused(closed.rcvd.reason or "no reason was given")
    return ChannelClosed(f"the connection closed: {reason}")
