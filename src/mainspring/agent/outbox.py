"""Outbox: what the agent has to report, gathered into frames and kept until the server has it committed.

Sends  Started, Finished, Progress, Output, Refused
Next:  wire/link.py, then server/recorder.py
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from mainspring.agent.attempt import Attempt
from mainspring.model.messages import (
    AgentMessage,
    Chunk,
    Ending,
    Finished,
    Held,
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

Send = Callable[[list[AgentMessage]], Awaitable[int]]


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

    def take(self) -> list[AgentMessage]:
        """All that is there to send, as messages. Starts come along once their delay is over."""
        self.ready.clear()
        messages: list[AgentMessage] = []
        if self._starts_due:
            self._starts_due = False
            if self._starts:
                starts = [Start(a.armed.task, a.armed.token, a.started_at) for a in self._starts.values()]
                messages.append(Started(starts))
                self._starts.clear()
        if self._notes:
            messages.append(Progress(list(self._notes.values())))
            self._notes.clear()
        if self._chunks:
            messages.append(Output(self._chunks))
            self._chunks = []
        if self._endings:
            messages.append(Finished(self._endings))
            self._endings = []
        for reason, attempts in self._refused.items():
            messages.append(Refused(attempts, reason))
        self._refused.clear()
        return messages

    async def run(self, send: Send, crowded: Callable[[], bool]) -> None:
        """Send whatever is there, whenever something is; while due attempts wait for a slot, in larger batches."""
        while True:
            await self.ready.wait()
            if crowded():
                await asyncio.sleep(CROWDED_DELAY)
            if messages := self.take():
                await send(messages)
