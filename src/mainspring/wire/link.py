"""Link: numbered frames over a channel that may lose, repeat and reorder them.

The channel is wire/channel.py in one process, wire/websocket.py between machines.
A frame that has not arrived is resent, with a growing timeout; a repeated one is dropped; an early one waits for those
before it. The receiver settles a frame: an agent once it holds the content, a server once it is committed. Only then is
the frame acknowledged, together with all before it. An acknowledgement waits a moment for a frame that can carry it. A
server waits longer: most agents need it only to forget what they have reported. If the sender does need it, to send
more within its window or because a handler waits until its start is durable, its frame is urgent. A link lives as long
as its connection; frames that were never acknowledged are taken from it and sent on the next one.
Next: agent/connection/connection.py
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from typing import Generic

from mainspring.model.messages import Frame
from mainspring.wire.channel import Channel, ChannelClosed, In, Out, Received
from mainspring.wire.clock import boottime

TICK = 0.02  # seconds that an acknowledgement waits for a frame that can carry it
PATIENCE = 0.1  # the same at a server, unless the frame was urgent
QUIET = 256  # bytes in flight that are not urgent: less than any window
SOONEST, LATEST = 0.5, 10.0  # seconds before a frame that has not arrived is resent
AT_ONCE = 32  # frames resent at a time
AHEAD, AHEAD_BYTES = 128, 4 << 20  # early frames that are kept; others are dropped, and their sender resends them
FLUSH_WITHIN = 0.2  # seconds to write posted frames before the link closes
WEIGHT = 0.2  # of the newest measurement


class _InFlight(Generic[Out]):
    """A frame that is not known to have arrived."""

    __slots__ = ("first_sent", "frame", "resent", "sent", "size")

    def __init__(self, frame: Frame[Out], size: int, now: float) -> None:
        self.frame = frame
        self.size = size
        self.first_sent = self.sent = now
        self.resent = 0


class Link(Generic[Out, In]):
    """Its user runs `maintain` as long as the link is open. `patience` is how long acknowledgements wait for a frame
    that can carry them, in seconds, if they are not urgent."""

    def __init__(self, channel: Channel[Out, In], *, patience: float = TICK) -> None:
        self._channel = channel
        self._patience = patience
        self._urgent = 0  # up to here the peer waits for acknowledgements
        self._sent_urgent = 0  # up to here this end has asked for them
        self.sent = 0  # the number of the last frame
        self._unacknowledged: deque[Frame[Out]] = deque()
        self._in_flight: deque[_InFlight[Out]] = deque()
        self._posted: deque[Frame[Out]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._resend_after = SOONEST
        self._received = 0  # the last frame that was returned by `receive`
        self._early: dict[int, Frame[In]] = {}
        self._early_bytes = 0
        self.received_bytes = 0  # of the frame that `receive` returned last; 0 within one process
        self.is_congested = False  # arrivals are not announced: a sender with a window waits
        self._settled = 0
        self._announced = (0, 0)  # settled and received, as of the last frame that was sent
        self._look = asyncio.Event()  # for `maintain`: an acknowledgement to send, or frames that may be lost
        self._alarm: asyncio.TimerHandle | None = None  # sets it
        self._alarm_at = 0.0  # on the clock of the event loop
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.ack_time = 0.0  # seconds until a frame has arrived, smoothed
        self.reliability = 1.0  # share of frames that arrived without a resend, smoothed
        self.bytes_in_flight = 0  # by the sizes that senders give
        self.on_arrival: Callable[[int, float], None] | None = None  # takes size and seconds of each frame that arrived
        self.on_acknowledged: Callable[[list[Out], float], None] | None = None  # takes the messages, and the seconds
        self.on_resent: Callable[[list[Out]], None] | None = None

    def expect(self, ack_time: float, reliability: float) -> None:
        """Begin with what is known from earlier links to the same peer."""
        self.ack_time, self.reliability = ack_time, reliability
        self._adapt()

    def _adapt(self) -> None:
        self._resend_after = min(max(SOONEST, 3 * self.ack_time), LATEST)

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    async def send(self, messages: list[Out], size: int = 0, *, urgent: bool = False) -> int:
        """Send one frame; returns its number. `size` is for `bytes_in_flight`; `urgent` if `acknowledged` follows."""
        frame = self._number(messages, size)
        if urgent or self.bytes_in_flight > QUIET:
            frame.urgent = True
            self._sent_urgent = frame.sequence
        await self._transmit(frame)
        return frame.sequence

    def post(self, messages: list[Out]) -> None:
        """The same without waiting: a sender to many agents must not wait for one that does not read."""
        self._write(self._number(messages, 0))

    def _number(self, messages: list[Out], size: int) -> Frame[Out]:
        self.sent += 1
        frame = Frame(self.sent, 0, messages)
        self._unacknowledged.append(frame)
        self._in_flight.append(_InFlight(frame, size, boottime()))
        self.bytes_in_flight += size
        self._look_within(self._resend_after)
        return frame

    def _write(self, frame: Frame[Out]) -> None:
        self._posted.append(frame)
        if not self._is_writing:
            self._writing = asyncio.create_task(self._write_out())

    async def _write_out(self) -> None:
        with suppress(ChannelClosed):  # `receive` raises it too
            while self._posted:
                await self._transmit(self._posted.popleft())

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    async def send_unnumbered(self, messages: list[Out]) -> None:
        """Send messages that are neither ordered nor resent: late, they would be worthless."""
        await self._transmit(Frame(0, 0, messages))

    async def _transmit(self, frame: Frame[Out]) -> None:
        frame.ack, frame.received = self._announced = self._state
        await self._channel.send(frame)

    @property
    def _state(self) -> tuple[int, int]:
        """What the next frame announces: settled and received."""
        return self._settled, max(self._announced[1], self._settled) if self.is_congested else self._received

    async def settle(self, sequence: int) -> None:
        """All frames up to `sequence` are safe here: acknowledge them."""
        self._settled = max(self._settled, sequence)
        await self._transmit(Frame(0, 0, []))

    def settle_now(self, sequence: int) -> None:
        """The same without waiting; frames that wait to be written carry it. A patient link waits for a next frame."""
        self._settled = max(self._settled, sequence)
        if self._is_writing or self._delay > TICK:
            self._look_within(self._delay)
        else:
            self._write(Frame(0, 0, []))

    def settle_later(self, sequence: int) -> None:
        """The same, with the next frame that is sent, or a moment later."""
        self._settled = max(self._settled, sequence)
        self._look_within(self._delay)

    @property
    def _delay(self) -> float:
        """Seconds that an acknowledgement may wait now."""
        return self._patience if self._announced[0] >= self._urgent else TICK

    # ── receiving ───────────────────────────────────────────────────────────────────────────────

    async def receive(self) -> tuple[int, list[In]]:
        """The next frame in order: its number and its messages. Number 0: unnumbered."""
        while (frame := self._take_early()) is None:
            try:
                frame = await self._channel.receive()
            except ChannelClosed:
                self._fail_waiting()
                raise
            self._process_ack(frame)
            if frame.sequence == 0 and frame.urgent:
                self._urgent = self._received
                self._look_within(TICK)
            if frame.sequence == 0 and frame.messages:
                self.received_bytes = _size(frame)
                return 0, frame.messages
            if frame.sequence == self._received + 1:
                break
            if frame.sequence and not self._keep_early(frame):
                await self.settle(self._settled)  # a repeated frame: its acknowledgement was lost
        self._received = frame.sequence
        self.received_bytes = _size(frame)
        if frame.urgent:
            self._urgent = frame.sequence
        self._look_within(self._delay)
        return frame.sequence, frame.messages

    def _take_early(self) -> Frame[In] | None:
        frame = self._early.pop(self._received + 1, None)
        if frame is not None:
            self._early_bytes -= _size(frame)
        return frame

    def _keep_early(self, frame: Frame[In]) -> bool:
        """Keep a frame that came before its turn; False for a repeated one, and for one too many."""
        size = _size(frame)
        if frame.sequence <= self._received or frame.sequence in self._early:
            return False
        if len(self._early) >= AHEAD or self._early_bytes + size > AHEAD_BYTES:
            return False
        self._early[frame.sequence] = frame
        self._early_bytes += size
        return True

    def _process_ack(self, frame: Frame[In]) -> None:
        """A late frame carries nothing new."""
        while self._unacknowledged and self._unacknowledged[0].sequence <= frame.ack:
            self._unacknowledged.popleft()
        arrived = max(frame.ack, frame.received)
        if self._in_flight and self._in_flight[0].frame.sequence <= arrived:
            self._arrived(arrived)
        if self._waiting:
            for sequence, future in self._waiting:
                if sequence <= frame.ack and not future.done():
                    future.set_result(None)
            self._waiting = [(s, f) for s, f in self._waiting if not f.done()]

    def _arrived(self, upto: int) -> None:
        now = boottime()
        while self._in_flight and self._in_flight[0].frame.sequence <= upto:
            last = self._in_flight.popleft()
            self.reliability += ((last.resent == 0) - self.reliability) * WEIGHT
            self.bytes_in_flight -= last.size
            if self.on_arrival is not None:
                self.on_arrival(last.size, now - last.first_sent)
            if self.on_acknowledged is not None:
                self.on_acknowledged(last.frame.messages, now - last.first_sent)
        # Of a frame that was resent it is unknown which copy arrived. The timeout then stays as it has grown: on a slow
        # line every frame would be resent in vain until it is long enough.
        if last.resent == 0:
            self.ack_time += (now - last.first_sent - self.ack_time) * (WEIGHT if self.ack_time else 1.0)
            self._adapt()
            self._look_within(self._resend_after)  # it may be shorter now

    # ── maintenance ─────────────────────────────────────────────────────────────────────────────

    def _look_within(self, seconds: float) -> None:
        """Have `maintain` look in so many seconds, or sooner if it was to look before."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._look.set()

    async def maintain(self) -> None:
        """Send acknowledgements that no frame has carried; resend frames that seem lost."""
        try:
            while True:
                await self._look.wait()
                self._look.clear()
                if self._announced != self._state:
                    await self._transmit(Frame(0, 0, []))
                if self._in_flight:
                    await self._resend_lost()
        except ChannelClosed:
            return  # `receive` raises it too

    async def _resend_lost(self) -> None:
        left = self._in_flight[0].sent + self._resend_after - boottime()
        if left <= 0 and not self._is_writing:  # a frame that is still being written is not lost
            self._resend_after = left = min(2 * self._resend_after, LATEST)
            await self.resend()
        self._look_within(max(left, TICK))

    async def resend(self) -> int:
        """Resend the first frames in flight; returns how many."""
        lost = list(self._in_flight)[:AT_ONCE]
        for item in lost:
            item.resent += 1
            item.sent = boottime()
            if self.on_resent is not None:
                self.on_resent(item.frame.messages)
            await self._transmit(item.frame)
        return len(lost)

    @property
    def in_flight(self) -> int:
        """Frames that are not known to have arrived."""
        return len(self._in_flight)

    def messages_in_flight(self) -> Iterator[Out]:
        """The messages of these frames."""
        return (message for item in self._in_flight for message in item.frame.messages)

    @property
    def stalled_since(self) -> float:
        """When the oldest frame in flight was sent, in boot time; infinite if none is in flight."""
        return self._in_flight[0].first_sent if self._in_flight else inf

    async def acknowledged(self, sequence: int) -> None:
        """Wait until the peer has settled the frame. Raises ChannelClosed if the link is closed."""
        if self.is_closed:
            raise ChannelClosed("the channel closed before the frame was acknowledged")
        if self._is_unacknowledged(sequence) and sequence > self._sent_urgent:
            self._sent_urgent = sequence
            await self._transmit(Frame(0, 0, [], urgent=True))
        if self._is_unacknowledged(sequence):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((sequence, future))
            await future

    def _is_unacknowledged(self, sequence: int) -> bool:
        return bool(self._unacknowledged) and self._unacknowledged[0].sequence <= sequence

    def relieve(self) -> None:
        """Announce arrivals again."""
        self.is_congested = False
        self._look.set()

    @property
    def is_closed(self) -> bool:
        return self._channel.is_closed

    @property
    def unacknowledged(self) -> int:
        return len(self._unacknowledged)

    def take_unacknowledged(self) -> list[Out]:
        """The messages of all frames that were never acknowledged, for the next link to send."""
        messages = [message for frame in self._unacknowledged for message in frame.messages]
        self._unacknowledged.clear()
        self._in_flight.clear()
        self.bytes_in_flight = 0
        return messages

    async def close(self) -> None:
        if self._announced != self._state and not self._is_writing and not self.is_closed:
            self._write(Frame(0, 0, []))  # the peer need not repeat on its next link what is safe here
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=FLUSH_WITHIN)
            self._writing.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        await self._channel.close()
        self._fail_waiting()

    def abort(self) -> None:
        """Close without a handshake: the peer is silent."""
        self._channel.abort()

    def _fail_waiting(self) -> None:
        """No frame will be acknowledged any more."""
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(ChannelClosed("the channel closed before the frame was acknowledged"))
        self._waiting.clear()


def _size(frame: Frame[In]) -> int:
    return frame.size if isinstance(frame, Received) else 0
