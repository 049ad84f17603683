"""Outbox: the agent's reports, batched into frames and kept until the server has committed them.

Sends  Started, Finished, Progress, Output, Refused, Submit
Next:  server/agents/connection.py
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import accumulate, islice, takewhile

from msgspec.structs import replace

from mainspring.agent.attempt import Attempt
from mainspring.agent.connection.submissions import Submissions
from mainspring.model.messages import (
    AgentMessage,
    Armed,
    AttemptId,
    Chunk,
    Ending,
    Finished,
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

START_DELAY = 0.02  # seconds: a start waits for its ending, which makes it unnecessary; most tasks end within it
CROWDED_DELAY = 0.02  # seconds between batches while due attempts wait for their turn
GATHER = 0.05  # seconds between frames whose endings can all wait: a frame, a flush and a commit cost more than those
GATHERED = 250  # endings that are sent at once
FRAME = 512 << 10  # bytes of output, checkpoints and results in one frame
AT_ONCE = 1000  # items of one kind in one frame: fewer than a server takes, so that none holds its event loop for long
RESENT_AT_ONCE = 4  # messages of the previous connection in one frame

Send = Callable[[list[AgentMessage]], Awaitable[None]]


class Outbox:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._starts: dict[int, Attempt] = {}  # by token, not yet sent
        self._endings: list[Ending] = []
        self._payload = 0  # bytes of results and errors in them
        self._notes: dict[int, Note] = {}  # by token: a later one includes the earlier one
        self._chunks: deque[tuple[Attempt, Chunk]] = deque()  # numbered when taken: large ones are split
        self._refused: dict[str, list[AttemptId]] = {}
        self._unacknowledged: list[AgentMessage] = []  # of the previous connection
        self._delayed: asyncio.TimerHandle | None = None  # for starts
        self._starts_due = False
        self._gathering: asyncio.TimerHandle | None = None  # for endings that can wait
        self._last_frame_at = 0.0  # on the loop's clock
        self.ready = asyncio.Event()  # there is something to send now
        self.uncrowded = asyncio.Event()  # no due attempt waits: what has ended is all that the next frame gets
        self.submissions = Submissions(self.ready.set)

    def started(self, attempt: Attempt) -> None:
        self._starts[attempt.armed.token] = attempt
        if self._delayed is None and not self._starts_due:
            self._delayed = self._loop.call_later(START_DELAY, self._start_delay_over)

    def _start_delay_over(self) -> None:
        self._delayed = None
        if self._starts:  # else all have ended
            self.hurry()

    def hurry(self) -> None:
        """Send now, including starts."""
        if self._delayed is not None:
            self._delayed.cancel()
            self._delayed = None
        self._starts_due = True
        self.ready.set()

    def ended(self, ending: Ending, *, can_wait: bool = False) -> None:
        """Send an ending. One that `can_wait` is sent at once only if no frame was sent for GATHER seconds."""
        self._starts.pop(ending.token, None)
        self._endings.append(ending)
        if ending.result is not None or ending.error is not None:
            self._payload += _payload(ending)
        if not can_wait or len(self._endings) >= GATHERED:
            self.ready.set()
        elif self._gathering is None and not self.ready.is_set():
            left = self._last_frame_at + GATHER - self._loop.time()
            if left <= 0.0:
                self.ready.set()
            else:
                self._gathering = self._loop.call_later(left, self.ready.set)

    def refused(self, armed: Armed, reason: str) -> None:
        self._refused.setdefault(reason, []).append(AttemptId(armed.task, armed.token))
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
        """The messages of the next frame, with at most `room` bytes of payload; the last item may exceed it.
        Starts are included once their delay has passed."""
        self.ready.clear()
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        messages = self._take_unacknowledged(room) if self._unacknowledged else self._take_unsent(room)
        if messages:
            self._last_frame_at = self._loop.time()
        return messages

    def _take_unsent(self, room: int) -> list[AgentMessage]:
        messages = self._take_starts()
        left = min(room, FRAME)
        if self._notes and left > 0:
            messages.append(Progress(self._take_notes(left)))
            left -= weight(messages)
        if self._chunks and left > 0:
            chunks = self._take_chunks(left)
            left -= sum(len(chunk.data) for chunk in chunks)
            messages.append(Output(chunks))
        # Output and checkpoints of an attempt are sent before its ending.
        if self._endings and not self._chunks and not self._notes and (endings := self._take_endings(left)):
            messages.append(Finished(endings))
        messages += self._take_refused()
        taken = weight(messages)
        submissions = self.submissions.take(min(room, FRAME) - taken)
        if self._has_bulk and room > taken + weight(submissions):  # else the next arrival makes room
            self.ready.set()
        return messages + submissions

    @property
    def _has_bulk(self) -> bool:
        return bool(self._notes or self._chunks or self._endings or self._refused or self.submissions.unsent)

    def _take_unacknowledged(self, room: int) -> list[AgentMessage]:
        """A large message of output is split."""
        if room <= 0:
            return []
        first = self._unacknowledged[0]
        if isinstance(first, Output) and weight([first]) > room:
            count = _count((len(chunk.data) for chunk in first.chunks), room)
            self._unacknowledged[:1] = [Output(first.chunks[:count]), Output(first.chunks[count:])]
            if not first.chunks[count:]:
                del self._unacknowledged[1]
        count = min(RESENT_AT_ONCE, _count((weight([message]) for message in self._unacknowledged), room))
        messages, self._unacknowledged = self._unacknowledged[:count], self._unacknowledged[count:]
        if room > weight(messages):
            self.ready.set()
        return messages

    def _take_starts(self) -> list[AgentMessage]:
        if not self._starts_due:
            return []
        taken = list(islice(self._starts.values(), AT_ONCE))
        if len(taken) == len(self._starts):
            self._starts_due = False
            self._starts.clear()
        else:
            for attempt in taken:
                del self._starts[attempt.armed.token]
            self.ready.set()
        return [Started([Start(a.armed.task, a.armed.token, a.started_at) for a in taken])] if taken else []

    def _take_refused(self) -> list[AgentMessage]:
        left, messages = AT_ONCE, list[AgentMessage]()
        while self._refused and left:
            reason = next(iter(self._refused))
            attempts = self._refused.pop(reason)
            messages.append(Refused(attempts[:left], reason))
            if attempts[left:]:
                self._refused[reason] = attempts[left:]
            left -= len(attempts[:left])
        return messages

    def _take_notes(self, room: int) -> list[Note]:
        """A checkpoint can be as large as a result."""
        notes = list(islice(self._notes.values(), AT_ONCE))
        taken = notes[: _count(map(_note_size, notes), room)]
        for note in taken:
            del self._notes[note.token]
        return taken

    def _take_chunks(self, room: int) -> list[Chunk]:
        taken: list[Chunk] = []
        while self._chunks and room > 0 and len(taken) < AT_ONCE:
            attempt, chunk = self._chunks.popleft()
            if len(chunk.data) > room and chunk.stream:  # a remark is not split
                self._chunks.appendleft((attempt, replace(chunk, data=chunk.data[room:])))
                chunk = replace(chunk, data=chunk.data[:room])
            attempt.chunks += 1
            taken.append(replace(chunk, number=attempt.chunks))
            room -= len(chunk.data)
        return taken

    def _take_endings(self, room: int) -> list[Ending]:
        """Most are small; some have a result or an error of a megabyte. Those without payload need no room."""
        count = AT_ONCE
        if self._payload > room:
            count = min(AT_ONCE, _count(map(_payload, self._endings), max(room, 0), at_least=int(room > 0)))
        taken, self._endings = self._endings[:count], self._endings[count:]
        if self._payload:
            self._payload -= sum(map(_payload, taken))
        return taken

    async def run(self, send: Send, crowded: Callable[[], bool], room: Callable[[], int] = lambda: FRAME) -> None:
        """Send reports as they come; while `crowded`, in larger batches, until it no longer is.

        `room` says how many bytes of output and results may be sent now.
        """
        while True:
            await self.ready.wait()
            if crowded():
                self.uncrowded.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(CROWDED_DELAY):
                        await self.uncrowded.wait()
            while messages := self.take(room()):
                has_more = self.ready.is_set()
                await send(messages)
                if not has_more:
                    break
                await asyncio.sleep(0)  # a server in this process takes one frame at a time, others have a turn

    # ── across connections ──────────────────────────────────────────────────────────────────────

    def put_back(self, messages: list[AgentMessage]) -> None:
        """Keep the messages that a lost connection left unacknowledged: they are sent first on the next one."""
        # Submissions resends its own requests.
        reports: list[AgentMessage] = [message for message in messages if not isinstance(message, (Hello, Submit))]
        self._unacknowledged = reports + self._unacknowledged
        if self._unacknowledged:
            self.ready.set()

    def holdings(self) -> list[Holding]:
        """Attempts whose ending no server has acknowledged."""
        sent = [
            ending for message in self._unacknowledged if isinstance(message, Finished) for ending in message.endings
        ]
        return [Holding(ending.task, ending.token, ending.state) for ending in (*sent, *self._endings)]


def weight(messages: Iterable[AgentMessage]) -> int:
    """Bytes of payload: output, progress, checkpoints, results, arguments of submissions."""
    size = 0
    for message in messages:
        match message:
            case Progress(notes):
                size += sum(map(_note_size, notes))
            case Output(chunks):
                size += sum(len(chunk.data) for chunk in chunks)
            case Finished(endings):
                size += sum([_payload(e) for e in endings if e.result is not None or e.error is not None])
            case Submit():
                size += message.size
    return size


def _note_size(note: Note) -> int:
    return len(note.progress or "") + len(note.checkpoint or "")


def _payload(ending: Ending) -> int:
    return len(ending.result or "") + len(ending.error or "")


def _count(sizes: Iterable[int], room: int, at_least: int = 1) -> int:
    """How many of these fit into `room`."""
    return max(at_least, sum(1 for _ in takewhile(lambda size: size <= room, accumulate(sizes))))
