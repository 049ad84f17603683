"""Codec: frames as bytes (MessagePack), one per WebSocket message. Unknown messages are counted, never fatal.

Next: wire/websocket.py
"""

from __future__ import annotations

from typing import Any, Generic

import msgspec

from mainspring.errors import MainspringError
from mainspring.model.messages import AgentMessage, Frame, ServerMessage
from mainspring.wire.channel import In, Out


class BadFrame(MainspringError):
    """The peer sent something that is not a frame."""

    code = "bad_frame"


class _Envelope(msgspec.Struct, array_like=True):
    """A frame whose messages are not decoded yet: an unknown one must not spoil the others."""

    sequence: int
    ack: int
    messages: list[msgspec.Raw]
    received: int = 0


_encode = msgspec.msgpack.Encoder().encode
_open = msgspec.msgpack.Decoder(_Envelope).decode


class Codec(Generic[Out, In]):
    """For one end of one connection."""

    def __init__(self, incoming: Any) -> None:
        self._read = msgspec.msgpack.Decoder(incoming).decode
        self.unknown = 0

    def encode(self, frame: Frame[Out]) -> bytes:
        return _encode(frame)

    def decode(self, data: bytes) -> Frame[In]:
        """Raises BadFrame if it is not a frame; leaves out messages of unknown type or malformed ones."""
        try:
            envelope = _open(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadFrame(f"not a frame: {error}") from None
        if not 0 <= envelope.sequence < 2**62:
            raise BadFrame(f"a frame numbered {envelope.sequence}")
        messages: list[In] = []
        for raw in envelope.messages:
            try:
                messages.append(self._read(raw))
            except (msgspec.DecodeError, RecursionError):
                self.unknown += 1
        return Frame(envelope.sequence, envelope.ack, messages, envelope.received)


def agent_codec() -> Codec[AgentMessage, ServerMessage]:
    return Codec(ServerMessage)


def server_codec() -> Codec[ServerMessage, AgentMessage]:
    return Codec(AgentMessage)
