"""Output of a task: read once, or followed in order and each chunk once until the task has ended.

Reads   store.tasks.tasks
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from time import monotonic

import msgspec

from mainspring.errors import StoreUnavailable
from mainspring.model.access.actors import Actor
from mainspring.model.tasks.states import TERMINAL, TaskState
from mainspring.operations import Connections
from mainspring.operations.requests.task_filters import check_reach
from mainspring.store.postgres.connection import Connection
from mainspring.store.tasks import tasks
from mainspring.store.tasks.tasks import Piece

SOONEST, LATEST = 0.05, 0.5  # seconds between polls
GAP = 15.0  # seconds to wait for a missing chunk, as long as a lease: another server may still record it


class NewAttempt(msgspec.Struct, frozen=True):
    """The chunks that follow are of another attempt."""

    number: int
    agent: str | None


class Interrupted(msgspec.Struct, frozen=True):
    """PostgreSQL does not answer; the follower waits for it."""


Event = Piece | NewAttempt | Interrupted


async def has_output(conn: Connection, actor: Actor, id: int) -> bool:
    await check_reach(conn, actor, id)
    return bool(await tasks.output(conn, id))


async def follow(connections: Connections, id: int, *, wait: bool, gap: float = GAP) -> AsyncIterator[Event]:
    """The output of a task in order and each chunk once; with `wait` until the task has ended.

    At a missing chunk it waits `gap` seconds and then skips it: retention may have dropped it.
    """
    cursor = Cursor(gap if wait else 0.0)
    interval, away = SOONEST, False
    while True:
        found = 0
        try:
            async with connections.acquire() as conn:
                view = await tasks.get(conn, id)
            # Before the output is read: output is recorded before the end, so what is read after the end is complete.
            ended = TaskState.from_label(view.state) in TERMINAL
            while chunks := await _next_chunks(connections, id, cursor):
                for event in chunks:
                    yield event
                found += len(chunks)
        except StoreUnavailable:
            if not wait or cursor.is_new:
                raise
            if not away:
                yield Interrupted()
            away = True
            await asyncio.sleep(LATEST)
            continue
        away = False
        if (ended and not cursor.at_gap) or not wait:
            return
        interval = SOONEST if found else min(interval * 1.2, LATEST)
        await asyncio.sleep(interval)


async def _next_chunks(connections: Connections, id: int, cursor: Cursor) -> list[Event]:
    """The chunks behind the cursor; a `NewAttempt` comes before the first chunk of each further attempt."""
    last_token = cursor.after[0]
    async with connections.acquire() as conn:
        read = await tasks.output(conn, id, after=cursor.after)
        later = any(piece.token != last_token for piece in read)
        attempts = {attempt.token: attempt for attempt in await tasks.attempts(conn, id)} if later else {}
    events: list[Event] = []
    for piece in cursor.take(read, monotonic()):
        if last_token and piece.token != last_token and (attempt := attempts.get(piece.token)) is not None:
            events.append(NewAttempt(attempt.number, attempt.agent))
        last_token = piece.token
        events.append(piece)
    return events


class Cursor:
    """How far a follower has read, and since when the next chunk is missing."""

    def __init__(self, patience: float) -> None:
        self.after = (0, 0)  # token, number
        self._patience = patience
        self._missing_since: float | None = None
        self.is_new = True

    @property
    def at_gap(self) -> bool:
        return self._missing_since is not None

    def take(self, pieces: Sequence[Piece], now: float) -> list[Piece]:
        """Those of `pieces`, which are in order, up to the first gap."""
        self.is_new = False
        taken: list[Piece] = []
        for piece in pieces:
            token, number = self.after
            is_next = piece.number == (number + 1 if piece.token == token else 1)
            if not is_next and not self._has_waited(now):
                break
            self._missing_since = None
            self.after = (piece.token, piece.number)
            taken.append(piece)
        return taken

    def _has_waited(self, now: float) -> bool:
        if self._missing_since is None:
            self._missing_since = now
        return now - self._missing_since >= self._patience
