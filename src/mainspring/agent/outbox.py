"""Outbox: what the agent has to report, gathered into frames and kept until the server has it committed.

Sends  Started, Finished, Progress, Output, Refused
Next:  wire/link.py, then server/recorder.py
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import accumulate, takewhile

from mainspring.agent.attempt import Attempt
from mainspring.model.messages import (
    AgentMessage,
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
)
from mainspring.wire.clock import Clock

# A start waits this long for its end, which then says it all: most tasks are over by then.
START_DELAY = 0.02
CROWDED_DELAY = 0.02
FRAME = 512 << 10  # bytes of output, or of results, in one frame
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
        self._chunks: list[Chunk] = []
        self._refused: dict[str, list[Held]] = {}
        self._put_back: list[AgentMessage] = []
        self._delayed: asyncio.TimerHandle | None = None
        self._starts_due = False
        self.ready = asyncio.Event()  # there is something to send now

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

    def refused(self, attempt: Attempt, reason: str) -> None:
        self._refused.setdefault(reason, []).append(Held(attempt.armed.task, attempt.armed.token))
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
        attempt.chunks += 1
        self._chunks.append(Chunk(armed.task, armed.token, attempt.chunks, stream, self._clock.now(), data))
        self.ready.set()

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    def take(self) -> list[AgentMessage]:
        """What there is to send, as the messages of one frame. Starts come along once their delay is over."""
        self.ready.clear()
        if self._put_back:
            messages, self._put_back = self._put_back[:AGAIN_AT_ONCE], self._put_back[AGAIN_AT_ONCE:]
            self.ready.set()
            return messages
        messages = self._take_starts()
        if self._notes:
            messages.append(Progress(list(self._notes.values())))
            self._notes.clear()
        if self._chunks:
            messages.append(Output(self._take_chunks()))
        if self._endings and not self._chunks:  # output comes before the end of what wrote it
            messages.append(Finished(self._take_endings()))
        for reason, attempts in self._refused.items():
            messages.append(Refused(attempts, reason))
        self._refused.clear()
        if self._chunks or self._endings:
            self.ready.set()
        return messages

    def _take_starts(self) -> list[AgentMessage]:
        if not self._starts_due:
            return []
        self._starts_due = False
        starts = [Start(a.armed.task, a.armed.token, a.started_at) for a in self._starts.values()]
        self._starts.clear()
        return [Started(starts)] if starts else []

    def _take_chunks(self) -> list[Chunk]:
        sizes = accumulate(len(chunk.data) for chunk in self._chunks)
        count = max(1, sum(1 for _ in takewhile(lambda size: size <= FRAME, sizes)))
        taken, self._chunks = self._chunks[:count], self._chunks[count:]
        return taken

    def _take_endings(self) -> list[Ending]:
        """Most are small; some have a result or an error of a megabyte."""
        sizes = accumulate(100 + len(ending.result or "") + len(ending.error or "") for ending in self._endings)
        count = max(1, sum(1 for _ in takewhile(lambda size: size <= FRAME, sizes)))
        taken, self._endings = self._endings[:count], self._endings[count:]
        return taken

    async def run(self, send: Send, crowded: Callable[[], bool]) -> None:
        """Send whatever is there, whenever something is; while due attempts wait for a slot, in larger batches."""
        while True:
            await self.ready.wait()
            if crowded():
                await asyncio.sleep(CROWDED_DELAY)
            if messages := self.take():
                await send(messages)

    # ── across connections ──────────────────────────────────────────────────────────────────────

    def put_back(self, messages: list[AgentMessage]) -> None:
        """These were sent on a connection that is gone, and not acknowledged: they are told again first."""
        reports: list[AgentMessage] = [message for message in messages if not isinstance(message, Hello)]
        self._put_back = reports + self._put_back
        if self._put_back:
            self.ready.set()

    def holdings(self) -> list[Holding]:
        """Attempts that have ended, and whose end no server has acknowledged."""
        told = [ending for message in self._put_back if isinstance(message, Finished) for ending in message.endings]
        return [Holding(ending.task, ending.token, ending.state) for ending in (*told, *self._endings)]
