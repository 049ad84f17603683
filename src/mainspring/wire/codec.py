"""Codec: frames as bytes (MessagePack), one per WebSocket message. What is not understood is counted, never fatal.

Next: wire/websocket.py
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from mainspring.errors import MainspringError
from mainspring.model.messages import AgentMessage, Frame, ServerMessage

Out = TypeVar("Out")
In = TypeVar("In")


class BadFrame(MainspringError):
    """The other side sent something that is no frame of ours."""

    code = "bad_frame"


class _Envelope(msgspec.Struct, array_like=True):
    """A frame whose messages are still to be read: one that we do not know must not spoil the others."""

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
        self.not_understood = 0

    def encode(self, frame: Frame[Out]) -> bytes:
        return _encode(frame)

    def decode(self, data: bytes) -> Frame[In]:
        """BadFrame if it is no frame; a message in it that is of no known type, or malformed, is left out."""
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
                self.not_understood += 1
        return Frame(envelope.sequence, envelope.ack, messages, envelope.received)


def agent_codec() -> Codec[AgentMessage, ServerMessage]:
    return Codec(ServerMessage)


def server_codec() -> Codec[ServerMessage, AgentMessage]:
    return Codec(AgentMessage)
