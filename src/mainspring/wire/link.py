"""Link: numbered frames over a channel that may lose, repeat and reorder them.

What has not come to the other side is sent again, with growing patience; what comes twice is dropped; what
comes too early waits for those before it. The receiver says when a frame is settled: an agent once it holds what
was sent, a server once it is committed. Only then is it acknowledged, together with all before it. A link lives
as long as its connection; what was never acknowledged is taken from it and told on the next.
Next: agent/connection/connection.py, server/agents/connection.py
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from mainspring.model.messages import Frame
from mainspring.wire.channel import Channel, ChannelClosed
from mainspring.wire.clock import boottime

Out = TypeVar("Out")
In = TypeVar("In")

TICK = 0.02  # seconds that an acknowledgement waits for a frame to ride on
SOONEST, LATEST = 0.5, 10.0  # seconds before what has not come is sent again
AT_ONCE = 32  # frames that are sent again at a time
AHEAD = 128  # frames kept that came before their turn
LAST_WORDS = 0.2  # seconds in which what was posted may still be written before a link closes
WEIGHT = 0.2  # of the newest measurement


class _Flying(Generic[Out]):
    """A frame that has not come to the other side, as far as we know."""

    __slots__ = ("again", "first_sent", "frame", "sent", "size")

    def __init__(self, frame: Frame[Out], size: int, now: float) -> None:
        self.frame = frame
        self.size = size
        self.first_sent = self.sent = now
        self.again = 0


class Link(Generic[Out, In]):
    """`tend` runs as long as the link is used."""

    def __init__(self, channel: Channel[Out, In]) -> None:
        self._channel = channel
        self._sent = 0
        self._unacknowledged: deque[Frame[Out]] = deque()
        self._flying: deque[_Flying[Out]] = deque()
        self._posted: deque[Frame[Out]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._patience = SOONEST
        self._received = 0  # all up to here have been handed on
        self._early: dict[int, Frame[In]] = {}
        self._settled = 0
        self._told = (0, 0)  # what the last frame said we have settled and received
        self._owing = asyncio.Event()  # an acknowledgement, or frames that may be lost
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.ack_time = 0.0  # seconds until a frame has come to the other side, smoothed
        self.reliability = 1.0  # of frames, those that came at the first time, smoothed
        self.under_way = 0  # bytes, by what their sender says, that have not come to the other side
        self.on_landed: Callable[[int, float], None] | None = None  # told size and seconds of each frame that has

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    async def send(self, messages: list[Out], size: int = 0) -> int:
        """Send one frame; returns its number. `size` is for `under_way`."""
        frame = self._number(messages, size)
        await self._transmit(frame)
        return frame.sequence

    def post(self, messages: list[Out]) -> None:
        """The same without waiting: who sends to many must not wait for one who does not read."""
        self._write(self._number(messages, 0))

    def _number(self, messages: list[Out], size: int) -> Frame[Out]:
        self._sent += 1
        frame = Frame(self._sent, 0, messages)
        self._unacknowledged.append(frame)
        self._flying.append(_Flying(frame, size, boottime()))
        self.under_way += size
        self._owing.set()
        return frame

    def _write(self, frame: Frame[Out]) -> None:
        self._posted.append(frame)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_out())

    async def _write_out(self) -> None:
        with suppress(ChannelClosed):  # whoever receives is told
            while self._posted:
                await self._transmit(self._posted.popleft())

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    async def say(self, messages: list[Out]) -> None:
        """Send messages out of turn: they are worth nothing if they are late."""
        await self._transmit(Frame(0, 0, messages))

    async def _transmit(self, frame: Frame[Out]) -> None:
        frame.ack, frame.received = self._told = (self._settled, self._received)
        await self._channel.send(frame)

    async def settle(self, sequence: int) -> None:
        """All frames up to `sequence` are safe with us: tell the other side."""
        self._settled = max(self._settled, sequence)
        await self._transmit(Frame(0, 0, []))

    def settle_now(self, sequence: int) -> None:
        """The same without waiting; where much waits to be written, it is told with that."""
        self._settled = max(self._settled, sequence)
        if self._is_writing:
            self._owing.set()
        else:
            self._write(Frame(0, 0, []))

    def settle_later(self, sequence: int) -> None:
        """The same, told with the next frame that we send, or a moment later."""
        self._settled = max(self._settled, sequence)
        self._owing.set()

    # ── receiving ───────────────────────────────────────────────────────────────────────────────

    async def receive(self) -> tuple[int, list[In]]:
        """The next frame in its turn, its number and its messages; number 0 is out of turn."""
        while (frame := self._early.pop(self._received + 1, None)) is None:
            try:
                frame = await self._channel.receive()
            except ChannelClosed:
                self._give_up()
                raise
            self._hear(frame)
            if frame.sequence == 0 and frame.messages:
                return 0, frame.messages
            if frame.sequence == self._received + 1:
                break
            if frame.sequence > self._received and len(self._early) < AHEAD:
                self._early[frame.sequence] = frame
            elif frame.sequence:  # a repeated frame: its acknowledgement was lost
                await self.settle(self._settled)
        self._received = frame.sequence
        self._owing.set()
        return frame.sequence, frame.messages

    def _hear(self, frame: Frame[In]) -> None:
        """What the other side says about our frames. An old frame says nothing new."""
        while self._unacknowledged and self._unacknowledged[0].sequence <= frame.ack:
            self._unacknowledged.popleft()
        landed = max(frame.ack, frame.received)
        if self._flying and self._flying[0].frame.sequence <= landed:
            self._landed(landed)
        if self._waiting:
            for sequence, future in self._waiting:
                if sequence <= frame.ack and not future.done():
                    future.set_result(None)
            self._waiting = [(s, f) for s, f in self._waiting if not f.done()]

    def _landed(self, upto: int) -> None:
        now = boottime()
        while self._flying and self._flying[0].frame.sequence <= upto:
            last = self._flying.popleft()
            self.reliability += ((last.again == 0) - self.reliability) * WEIGHT
            self.under_way -= last.size
            if self.on_landed is not None:
                self.on_landed(last.size, now - last.first_sent)
        # Of one that was sent again nobody knows which one came. Then the patience stays as it has grown: on a slow
        # line each would be sent again for nothing until it is long enough.
        if last.again == 0:
            self.ack_time += (now - last.first_sent - self.ack_time) * (WEIGHT if self.ack_time else 1.0)
            self._patience = min(max(SOONEST, 3 * self.ack_time), LATEST)

    # ── what nobody else does ───────────────────────────────────────────────────────────────────

    async def tend(self) -> None:
        """Send acknowledgements that found nothing to ride on, and again what does not seem to have come."""
        try:
            while True:
                await self._owing.wait()
                await asyncio.sleep(TICK)
                if self._told != (self._settled, self._received):
                    await self._transmit(Frame(0, 0, []))
                # What is still being written is not lost.
                if self._flying and not self._is_writing and boottime() - self._flying[0].sent > self._patience:
                    self._patience = min(2 * self._patience, LATEST)
                    await self.resend()
                if not self._flying and self._told == (self._settled, self._received):
                    self._owing.clear()
        except ChannelClosed:
            return  # whoever receives is told too

    async def resend(self) -> int:
        """Send again the first of what does not seem to have come; returns how many frames."""
        lost = list(self._flying)[:AT_ONCE]
        for flying in lost:
            flying.again += 1
            flying.sent = boottime()
            await self._transmit(flying.frame)
        return len(lost)

    @property
    def sent(self) -> int:
        """The number of the last frame."""
        return self._sent

    @property
    def flying(self) -> int:
        """Frames that have not come to the other side, as far as we know."""
        return len(self._flying)

    @property
    def stalled_for(self) -> float:
        """Seconds since the first frame was sent that has not come to the other side."""
        return boottime() - self._flying[0].first_sent if self._flying else 0.0

    async def acknowledged(self, sequence: int) -> None:
        """Wait until the other side has settled the frame."""
        if self._unacknowledged and self._unacknowledged[0].sequence <= sequence:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((sequence, future))
            await future

    @property
    def unacknowledged(self) -> int:
        return len(self._unacknowledged)

    def take_unacknowledged(self) -> list[Out]:
        """The messages of all frames that were never acknowledged, for another link to tell."""
        messages = [message for frame in self._unacknowledged for message in frame.messages]
        self._unacknowledged.clear()
        self._flying.clear()
        self.under_way = 0
        return messages

    async def close(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=LAST_WORDS)
            self._writing.cancel()
        await self._channel.close()
        self._give_up()

    def abort(self) -> None:
        """The other side is silent: a polite end would cost time, and be heard by nobody."""
        self._channel.abort()

    def _give_up(self) -> None:
        """Nothing will be acknowledged any more."""
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(ChannelClosed("the channel closed before the frame was acknowledged"))
        self._waiting.clear()
