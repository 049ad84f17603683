"""FrameLimit: slow down an agent that sends too many frames or bytes; disconnect it if it does not stop.

Next: server/agents/connection.py
"""

from __future__ import annotations

import asyncio
from typing import Generic

from mainspring.model.messages import Frame
from mainspring.wire.channel import Channel, ChannelClosed, In, Out, Received
from mainspring.wire.clock import boottime

RATE = 2000.0  # frames a second, sustained; frames are batches, so an agent at full speed sends 200
BURST = 4000.0
BYTES = 32 << 10  # that count as one frame more: 64 MiB a second, sustained
PATIENCE = 30.0  # seconds of pauses before it is disconnected


class FrameLimit:
    """A leaky bucket. Pure: the caller gives the time."""

    def __init__(self) -> None:
        self._level = 0.0
        self._at = 0.0
        self._paused = 0.0

    def pause(self, now: float, size: int = 0) -> float:
        """Seconds to wait before the next frame is read. Raises ChannelClosed once the patience is used up."""
        drained = (now - self._at) * RATE
        self._at = now
        if drained >= self._level:
            self._paused = 0.0
        self._level = max(0.0, self._level - drained) + 1 + size / BYTES
        if self._level <= BURST:
            return 0.0
        pause = (self._level - BURST) / RATE + 0.01
        self._paused += pause
        if self._paused > PATIENCE:
            raise ChannelClosed("more frames or bytes than any agent sends")
        return pause


class LimitedChannel(Generic[Out, In]):
    """A channel under a FrameLimit. It also counts empty and repeated frames, which the link drops."""

    def __init__(self, channel: Channel[Out, In]) -> None:
        self._channel = channel
        self._limit = FrameLimit()
        self.send, self.refuse, self.close, self.abort = channel.send, channel.refuse, channel.close, channel.abort

    @property
    def is_closed(self) -> bool:
        return self._channel.is_closed

    async def receive(self) -> Frame[In]:
        frame = await self._channel.receive()
        try:
            pause = self._limit.pause(boottime(), frame.size if isinstance(frame, Received) else 0)
        except ChannelClosed as error:
            await self._channel.refuse(error.message)
            raise
        if pause:
            await asyncio.sleep(pause)
        return frame
