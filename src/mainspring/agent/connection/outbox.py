"""Outbox: what the agent has to report, gathered into frames and kept until the server has it committed.

Sends  Started, Finished, Progress, Output, Refused, Submit
Next:  wire/link.py, then server/recording/recorder.py
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import accumulate, takewhile

from msgspec.structs import replace

from mainspring.agent.attempt import Attempt
from mainspring.agent.connection.submissions import Submissions, size_of
from mainspring.model.messages import (
    AgentMessage,
    Armed,
    Chunk,
    Ending,
    Finished,
    Held,
    Hello,
    Holding,
    Note,
    Output,
    Progress,
    Refused,
    Start,
    Started,
    Submit,
)
from mainspring.wire.clock import Clock

# A start waits this long for its end, which then says it all: most tasks are over by then.
START_DELAY = 0.02
CROWDED_DELAY = 0.02
FRAME = 512 << 10  # bytes of output, checkpoints and results in one frame
ENDINGS = 5000  # in one frame
AGAIN_AT_ONCE = 4  # messages told again in one frame

Send = Callable[[list[AgentMessage]], Awaitable[None]]


class Outbox:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._starts: dict[int, Attempt] = {}  # by token, not yet told
        self._endings: list[Ending] = []
        self._notes: dict[int, Note] = {}  # by token: a later one takes in an earlier one
        self._chunks: deque[tuple[Attempt, Chunk]] = deque()  # numbered when they are taken: large ones are parted
        self._refused: dict[str, list[Held]] = {}
        self._put_back: list[AgentMessage] = []
        self._delayed: asyncio.TimerHandle | None = None
        self._starts_due = False
        self.ready = asyncio.Event()  # there is something to send now
        self.submissions = Submissions(self.ready.set)

    def started(self, attempt: Attempt) -> None:
        self._starts[attempt.armed.token] = attempt
        if self._delayed is None and not self._starts_due:
            self._delayed = self._loop.call_later(START_DELAY, self.hurry)

    def hurry(self) -> None:
        """Send now, starts too."""
        if self._delayed is not None:
            self._delayed.cancel()
            self._delayed = None
        self._starts_due = True
        self.ready.set()

    def ended(self, ending: Ending) -> None:
        self._starts.pop(ending.token, None)
        self._endings.append(ending)
        self.ready.set()

    def refused(self, armed: Armed, reason: str) -> None:
        self._refused.setdefault(reason, []).append(Held(armed.task, armed.token))
        self.ready.set()

    def note(self, attempt: Attempt, progress: str | None, checkpoint: str | None, healthy: bool | None = None) -> None:
        """May be called from the thread of a sync handler."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.note, attempt, progress, checkpoint, healthy)
            return
        armed = attempt.armed
        earlier = self._notes.get(armed.token)
        if earlier is not None:
            progress = progress if progress is not None else earlier.progress
            checkpoint = checkpoint if checkpoint is not None else earlier.checkpoint
            healthy = healthy if healthy is not None else earlier.healthy
        self._notes[armed.token] = Note(armed.task, armed.token, progress, checkpoint, healthy)
        self.ready.set()

    def output(self, attempt: Attempt, stream: int, data: bytes) -> None:
        armed = attempt.armed
        self._chunks.append((attempt, Chunk(armed.task, armed.token, 0, stream, self._clock.now(), data)))
        self.ready.set()

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    def take(self, room: int = FRAME) -> list[AgentMessage]:
        """What there is to send, as the messages of one frame, with at most `room` bytes of all that can be large;
        or a little more, if there is any room. Starts come along once their delay is over."""
        self.ready.clear()
        if self._put_back:
            return self._take_again(room)
        messages = self._take_starts()
        left = min(room, FRAME)
        if self._notes and left > 0:
            messages.append(Progress(self._take_notes(left)))
            left -= weight(messages)
        if self._chunks and left > 0:
            chunks = self._take_chunks(left)
            left -= sum(len(chunk.data) for chunk in chunks)
            messages.append(Output(chunks))
        # Output and checkpoints come before the end of what wrote them.
        if self._endings and not self._chunks and not self._notes and (endings := self._take_endings(left)):
            messages.append(Finished(endings))
        for reason, attempts in self._refused.items():
            messages.append(Refused(attempts, reason))
        self._refused.clear()
        messages += self.submissions.take(min(room, FRAME) - weight(messages))
        if self._has_bulk and room > weight(messages):  # else it is ready when something has come to the other side
            self.ready.set()
        return messages

    @property
    def _has_bulk(self) -> bool:
        return bool(self._notes or self._chunks or self._endings or self.submissions.unsent)

    def _take_again(self, room: int) -> list[AgentMessage]:
        """Of what is told again. What was one message of output may be several now."""
        if room <= 0:
            return []
        first = self._put_back[0]
        if isinstance(first, Output) and weight([first]) > room:
            count = _count((len(chunk.data) for chunk in first.chunks), room)
            self._put_back[:1] = [Output(first.chunks[:count]), Output(first.chunks[count:])]
            if not first.chunks[count:]:
                del self._put_back[1]
        count = min(AGAIN_AT_ONCE, _count((weight([message]) for message in self._put_back), room))
        messages, self._put_back = self._put_back[:count], self._put_back[count:]
        if room > weight(messages):
            self.ready.set()
        return messages

    def _take_starts(self) -> list[AgentMessage]:
        if not self._starts_due:
            return []
        self._starts_due = False
        starts = [Start(a.armed.task, a.armed.token, a.started_at) for a in self._starts.values()]
        self._starts.clear()
        return [Started(starts)] if starts else []

    def _take_notes(self, room: int) -> list[Note]:
        """A checkpoint can be as large as a result."""
        notes = list(self._notes.values())
        taken = notes[: _count(map(_note_size, notes), room)]
        for note in taken:
            del self._notes[note.token]
        return taken

    def _take_chunks(self, room: int) -> list[Chunk]:
        taken: list[Chunk] = []
        while self._chunks and room > 0:
            attempt, chunk = self._chunks.popleft()
            if len(chunk.data) > room and chunk.stream:  # a remark of ours stays whole
                self._chunks.appendleft((attempt, replace(chunk, data=chunk.data[room:])))
                chunk = replace(chunk, data=chunk.data[:room])
            attempt.chunks += 1
            taken.append(replace(chunk, number=attempt.chunks))
            room -= len(chunk.data)
        return taken

    def _take_endings(self, room: int) -> list[Ending]:
        """Most are small; some have a result or an error of a megabyte. What weighs nothing needs no room."""
        count = min(ENDINGS, _count(map(_payload, self._endings), max(room, 0), at_least=int(room > 0)))
        taken, self._endings = self._endings[:count], self._endings[count:]
        return taken

    async def run(self, send: Send, crowded: Callable[[], bool], room: Callable[[], int] = lambda: FRAME) -> None:
        """Send whatever is there, whenever something is; while due attempts wait for a slot, in larger batches.

        `room` says how many bytes of output and results may be sent now.
        """
        while True:
            await self.ready.wait()
            if crowded():
                await asyncio.sleep(CROWDED_DELAY)
            if messages := self.take(room()):
                await send(messages)

    # ── across connections ──────────────────────────────────────────────────────────────────────

    def put_back(self, messages: list[AgentMessage]) -> None:
        """These were sent on a connection that is gone, and not acknowledged: they are told again first."""
        # A submission is asked for again by itself, until it is answered.
        reports: list[AgentMessage] = [message for message in messages if not isinstance(message, (Hello, Submit))]
        self._put_back = reports + self._put_back
        if self._put_back:
            self.ready.set()

    def holdings(self) -> list[Holding]:
        """Attempts that have ended, and whose end no server has acknowledged."""
        told = [ending for message in self._put_back if isinstance(message, Finished) for ending in message.endings]
        return [Holding(ending.task, ending.token, ending.state) for ending in (*told, *self._endings)]


def weight(messages: Iterable[AgentMessage]) -> int:
    """Bytes of output, checkpoints and results in these: all that can be large."""
    size = 0
    for message in messages:
        match message:
            case Progress(notes):
                size += sum(map(_note_size, notes))
            case Output(chunks):
                size += sum(len(chunk.data) for chunk in chunks)
            case Finished(endings):
                size += sum(map(_payload, endings))
            case Submit():
                size += size_of(message)
    return size


def _note_size(note: Note) -> int:
    return len(note.progress or "") + len(note.checkpoint or "")


def _payload(ending: Ending) -> int:
    return len(ending.result or "") + len(ending.error or "")


def _count(sizes: Iterable[int], room: int, at_least: int = 1) -> int:
    """How many of these fit."""
    return max(at_least, sum(1 for _ in takewhile(lambda size: size <= room, accumulate(sizes))))
