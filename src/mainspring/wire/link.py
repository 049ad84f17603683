"""Link: numbered frames over a channel. What is not acknowledged is kept; what comes twice is dropped.

The receiver says when a frame is settled: an agent once it holds what was sent, a server once it is
committed. Only then is it acknowledged, together with all before it.
Next: agent/session.py, server/gateway.py
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from mainspring.model.messages import Frame
from mainspring.wire.channel import Channel, ChannelClosed

Out = TypeVar("Out")
In = TypeVar("In")


class Link(Generic[Out, In]):
    def __init__(self, channel: Channel[Out, In]) -> None:
        self._channel = channel
        self._sent = 0
        self._unacknowledged: deque[Frame[Out]] = deque()
        self._received = 0
        self._settled = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def send(self, messages: list[Out]) -> int:
        """Send one frame; returns its number."""
        self._sent += 1
        frame = Frame(self._sent, self._settled, messages)
        self._unacknowledged.append(frame)
        await self._channel.send(frame)
        return frame.sequence

    async def receive(self) -> tuple[int, list[In]]:
        """The next frame that was not received before: its number and its messages."""
        while True:
            try:
                frame = await self._channel.receive()
            except ChannelClosed:
                self._give_up()
                raise
            self._acknowledged(frame.ack)
            if frame.sequence == 0:  # an acknowledgement alone
                continue
            if frame.sequence > self._received:
                self._received = frame.sequence
                return frame.sequence, frame.messages
            await self.settle(self._settled)  # a repeated frame: its acknowledgement was lost

    async def settle(self, sequence: int) -> None:
        """All frames up to `sequence` are safe with us: tell the other side."""
        self._settled = max(self._settled, sequence)
        await self._channel.send(Frame(0, self._settled, []))

    def settle_later(self, sequence: int) -> None:
        """The same, told with the next frame that we send."""
        self._settled = max(self._settled, sequence)

    async def resend(self) -> int:
        """Send again all that is not acknowledged; returns how many frames."""
        for frame in list(self._unacknowledged):
            await self._channel.send(frame)
        return len(self._unacknowledged)

    async def acknowledged(self, sequence: int) -> None:
        """Wait until the other side has settled the frame."""
        if any(frame.sequence == sequence for frame in self._unacknowledged):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((sequence, future))
            await future

    @property
    def unacknowledged(self) -> int:
        return len(self._unacknowledged)

    def _acknowledged(self, upto: int) -> None:
        while self._unacknowledged and self._unacknowledged[0].sequence <= upto:
            self._unacknowledged.popleft()
        if self._waiting:
            for sequence, future in self._waiting:
                if sequence <= upto and not future.done():
                    future.set_result(None)
            self._waiting = [(s, f) for s, f in self._waiting if not f.done()]

    async def close(self) -> None:
        await self._channel.close()
        self._give_up()

    def _give_up(self) -> None:
        """Nothing will be acknowledged any more."""
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(ChannelClosed("the channel closed before the frame was acknowledged"))
        self._waiting.clear()
