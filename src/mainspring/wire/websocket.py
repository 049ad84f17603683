"""WebSocketChannel: the channel between machines. One frame is one binary message: MessagePack, not compressed.

agent/connection/connector.py connects, server/agents/endpoint.py listens. Unknown messages are counted, never fatal.
Next: wire/link.py
"""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any, Generic

import msgspec
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from mainspring.errors import MainspringError
from mainspring.model.messages import Frame
from mainspring.wire.channel import POLICY, ChannelClosed, ChannelRefused, In, Out, Received

log = logging.getLogger("mainspring")

PATH = "/agent"
KEEP = "keep"  # the query of a connection that only renews a session
MAX_FRAME = 16 << 20  # bytes; a larger one is refused with 1009
MAX_QUEUE = 2  # frames that are read ahead of their receiver; then the socket is not read
MAX_MESSAGES = 100  # in one frame: an agent sends at most 64 submissions and five kinds of reports
ITEM = 200  # bytes that one item takes beside its content
NORMAL = 1000
CLOSE_WITHIN = 3.0  # seconds
MAX_UNKNOWN = 1000  # messages, before the peer is refused
LOG_FIRST = 10  # of them
SEND_TIMEOUT = 30.0  # seconds for one frame: then the peer does not read
SMALL = 8 << 10  # bytes: with less than this to write a transport takes more, and no frame waits


_encode = msgspec.msgpack.Encoder().encode
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Unread(msgspec.Struct, array_like=True):
    """A frame whose messages are not decoded yet: a bad one must not spoil the others."""

    sequence: int
    ack: int
    messages: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_MESSAGES)]
    received: int = 0
    urgent: bool = False


_open = msgspec.msgpack.Decoder(_Unread).decode


class BadFrame(MainspringError):
    """The peer sent something that is not a frame."""

    code = "bad_frame"


class WebSocketChannel(Generic[Out, In]):
    """`incoming` is the union of the messages that the peer sends; `most_items` bounds those of one frame."""

    def __init__(self, socket: Connection, incoming: Any, *, most_items: int | None = None) -> None:
        self._socket = socket
        self._read = msgspec.msgpack.Decoder(incoming).decode
        self._most_items = most_items
        self._unknown = 0

    async def send(self, frame: Frame[Out]) -> None:
        data = _encode(frame)
        try:
            if len(data) + self._socket.transport.get_write_buffer_size() < SMALL:
                await self._socket.send(data)
            else:
                async with asyncio.timeout(SEND_TIMEOUT):
                    await self._socket.send(data)
        except ConnectionClosed as closed:
            raise _closed(closed) from None
        except TimeoutError:
            self.abort()
            raise ChannelClosed("the other side reads nothing any more") from None

    async def receive(self) -> Frame[In]:
        try:
            return self._decode(await self._socket.recv(decode=False))
        except ConnectionClosed as closed:
            raise _closed(closed) from None
        except BadFrame as error:
            log.warning("a connection is closed: %s", error)
            await self.refuse(error.message)
            raise ChannelClosed(error.message) from None

    def _decode(self, data: bytes) -> Frame[In]:
        """Raises BadFrame if it is not a frame; leaves out messages of unknown type or malformed ones."""
        try:
            frame = _open(data)
        except _MALFORMED as error:
            raise BadFrame(f"not a frame: {error}") from None
        if not 0 <= frame.sequence < 2**62:
            raise BadFrame(f"a frame numbered {frame.sequence}")
        messages: list[In] = []
        items = 0
        for raw in frame.messages:
            try:
                message = self._read(raw)
            except _MALFORMED as error:
                self._skipped(error)
                continue
            messages.append(message)
            items += _items(message)
            if self._most_items is not None and items > self._most_items:
                raise BadFrame("more items in one frame than any agent sends")
        size = len(data) + ITEM * items
        return Received(frame.sequence, frame.ack, messages, frame.received, frame.urgent, size)

    def _skipped(self, error: Exception) -> None:
        self._unknown += 1
        if self._unknown > MAX_UNKNOWN:
            raise BadFrame(f"{self._unknown} messages that are not understood here") from None
        if self._unknown <= LOG_FIRST:
            log.warning("skipped a message that is not understood (%.200s); do the versions differ?", error)

    @property
    def is_closed(self) -> bool:
        return self._socket.state is not State.OPEN

    async def refuse(self, reason: str, code: int = POLICY) -> None:
        await self._end(code, reason.encode()[:120].decode(errors="ignore"))

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


def _items(message: Any) -> int:
    """A message with items has them in its first field."""
    fields = message.__struct_fields__
    first = getattr(message, fields[0]) if fields else None
    return len(first) if type(first) is list else 0


def _closed(closed: ConnectionClosed) -> ChannelClosed:
    frame = closed.rcvd or closed.sent
    reason = f"{frame.code} {frame.reason}".strip() if frame is not None else "without a word"
    if closed.rcvd is not None and closed.rcvd.code == POLICY:
        return ChannelRefused(closed.rcvd.reason or "no reason was given")
    return ChannelClosed(f"the connection closed: {reason}")
