"""Output of a task: read once, or followed in order and each chunk once until the task has ended.

Reads   store.tasks.tasks
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from time import monotonic
from typing import NamedTuple

import msgspec

from mainspring.errors import StoreUnavailable, ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.operations import Connections
from mainspring.operations.parts.output_readers import Alone, Reader
from mainspring.operations.requests.task_filters import check_reach
from mainspring.store.postgres.connection import Connection
from mainspring.store.search import lookup, output_looks
from mainspring.store.search.output_looks import Look, Wanted
from mainspring.store.tasks import tasks
from mainspring.store.tasks.tasks import LAST_TOKEN, Piece

SOONEST, LATEST = 0.05, 0.5  # seconds between polls
GAP = 15.0  # seconds to wait for a missing chunk, as long as a lease: another server may still record it


class NewAttempt(msgspec.Struct, frozen=True):
    """The chunks that follow are of another attempt."""

    number: int
    agent: str | None


class Interrupted(msgspec.Struct, frozen=True):
    """PostgreSQL does not answer; the follower waits for it."""


Event = Piece | NewAttempt | Interrupted


async def follow(
    connections: Connections,
    id: int,
    *,
    wait: bool,
    gap: float = GAP,
    after: tuple[int, int] = (0, 0),
    only: int | None = None,
    limit: int = 200,
    patient: bool = False,
    reader: Reader | None = None,
) -> AsyncIterator[Event]:
    """The output of a task in order and each chunk once, behind the chunk `after`; with `wait` until the task ends.

    With `only` the output of the attempt with that token, until it has ended. At a missing chunk it waits `gap` seconds
    and then skips it: retention may have dropped it. With `patient` it waits for PostgreSQL from the first read on.
    """
    cursor = Cursor(gap if wait else 0.0, max(after, (0 if only is None else only, 0)), is_new=not patient)
    reader = Alone(connections) if reader is None else reader
    interval, away, is_known = SOONEST, False, False
    last: Look | None = None  # the last one that has seen all there was
    while True:
        try:
            look = await reader.look(Wanted(id, *cursor.after, only or 0), limit, None if cursor.at_gap else last)
            if look.has_ended and not is_known:
                await _check_exists(connections, id)
            is_known = True
            events = await _marked(connections, id, cursor, look.pieces)
        except StoreUnavailable:
            if not wait or cursor.is_new:
                raise
            if not away:
                yield Interrupted()
            away = True
            await asyncio.sleep(LATEST)
            continue
        away = False
        for event in events:
            yield event
        if len(look.pieces) < limit:
            last = look
        elif events:
            continue
        if (look.has_ended and not cursor.at_gap) or not wait:
            return
        interval = SOONEST if events else min(interval * 1.2, LATEST)
        await asyncio.sleep(interval)


async def _check_exists(connections: Connections, id: int) -> None:
    async with connections.acquire() as conn:
        if await lookup.job_of(conn, id) is None:
            raise tasks.no_task(id)


async def _has_ended(conn: Connection, id: int, only: int | None) -> bool:
    """Whether no more output comes: the task has ended, or the attempt that alone is wanted."""
    return (await output_looks.look(conn, [Wanted(id, LAST_TOKEN, 0, only or 0)], limit=1))[0].has_ended


async def _marked(connections: Connections, id: int, cursor: Cursor, read: Sequence[Piece]) -> list[Event]:
    """The pieces up to the first gap; a `NewAttempt` comes before the first piece of each further attempt."""
    last_token = cursor.after[0]
    taken = cursor.take(read, monotonic())
    events: list[Event] = []
    tokens = {piece.token for piece in taken} - {last_token}
    attempts = {}
    if tokens:
        async with connections.acquire() as conn:
            attempts = {attempt.token: attempt for attempt in await tasks.attempts(conn, id, tokens=sorted(tokens))}
    for piece in taken:
        if last_token and piece.token != last_token and (attempt := attempts.get(piece.token)) is not None:
            events.append(NewAttempt(attempt.number, attempt.agent))
        last_token = piece.token
        events.append(piece)
    return events


# ── one page ────────────────────────────────────────────────────────────────────────────────────

PIECES, BYTES = 100, 256 * 1024  # in one page
MOST_TAIL = 64 * 1024 * 1024
STREAMS = ("remark", "stdout", "stderr")

_CURSOR = re.compile(r"(\d{1,16})\.(\d{1,10})")
_SIZE = re.compile(r"(\d{1,12})\s*([kKmM]?)[bB]?")


class PieceView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chunk of output: `text` if its bytes are UTF-8, else `base64`."""

    token: int
    number: int
    stream: str  # stdout, stderr, or remark: of the agent
    at: datetime
    text: str | None = None
    base64: str | None = None


class OutputPage(msgspec.Struct, frozen=True):
    items: list[PieceView]
    next: str | None  # `after` of the next page, which may be empty as yet; None: no more will come
    previous: str | None = None  # `before` of the page before it, with `before` only; None: this one is the first


def piece_view(piece: Piece) -> PieceView:
    stream = STREAMS[piece.stream]
    try:
        return PieceView(piece.token, piece.number, stream, piece.at, text=piece.data.decode())
    except UnicodeDecodeError:
        encoded = b64encode(piece.data).decode()
        return PieceView(piece.token, piece.number, stream, piece.at, base64=encoded)


class Range(NamedTuple):
    """Which part of an output is wanted."""

    after: tuple[int, int]
    only: int | None  # the token of an attempt
    skip: int  # bytes of the first piece


async def read(
    conn: Connection,
    actor: Actor,
    id: int,
    *,
    after: str | None = None,
    before: str | None = None,
    attempt: int | None = None,
    tail: str | None = None,
    follow: bool = False,
    download: bool = False,
) -> OutputPage:
    """A page of what a task wrote, from behind `after`, or the one that ends at `before`, a page of JSON.

    `attempt` is the number of one attempt; `tail` begins so many bytes before the end. With `Accept: text/event-stream`
    or `text/plain` the whole output is sent, and with `follow` what is yet to come until the task has ended.
    """
    wanted = await resolve(conn, actor, id, after=after, attempt=attempt, tail=tail)
    if before is not None:
        if after is not None or tail is not None:
            raise ValidationError("before: give it without after and tail", field="before")
        return await _page_before(conn, id, parse_cursor(before, field="before"), wanted.only)
    ended = await _has_ended(conn, id, wanted.only)
    upto = {} if wanted.only is None else {"upto": wanted.only}
    found = await tasks.output(conn, id, after=wanted.after, limit=PIECES + 1, **upto)
    items = _page(found)
    token, number = (items[-1].token, items[-1].number) if items else wanted.after
    return OutputPage(items, None if ended and len(items) == len(found) else f"{token}.{number}")


async def _page_before(conn: Connection, id: int, before: tuple[int, int], only: int | None) -> OutputPage:
    found = await tasks.output_before(conn, id, before, since=only or 0, limit=PIECES + 1)
    items = _page(found)[::-1]
    first, last = (_cursor(items[0]), _cursor(items[-1])) if items else (None, "0.0")
    return OutputPage(items, last, None if len(items) == len(found) else first)


def _cursor(piece: PieceView) -> str:
    return f"{piece.token}.{piece.number}"


def _page(found: Sequence[Piece]) -> list[PieceView]:
    """As many of them, from the first, as a page holds."""
    size, items = 0, []
    for piece in found[:PIECES]:
        items.append(piece_view(piece))
        size += len(piece.data)
        if size >= BYTES:
            break
    return items


async def resolve(
    conn: Connection, actor: Actor, id: int, *, after: str | None, attempt: int | None, tail: str | None
) -> Range:
    """TaskNotFound if there is no such task for this actor; ValidationError if it has no such attempt."""
    await check_reach(conn, actor, id, must_exist=True)
    only = None if attempt is None else await _token(conn, id, attempt)
    if after is not None:
        return Range(max(parse_cursor(after), (only or 0, 0)), only, 0)
    if tail is not None:
        bounds = {} if only is None else {"after": only - 1, "upto": only}
        start = await tasks.tail(conn, id, _size(tail), **bounds)
        return Range(max(start.after, (only or 0, 0)), only, start.skip)
    return Range((only or 0, 0), only, 0)


async def _token(conn: Connection, id: int, number: int) -> int:
    """A task that was retried by a person counts its attempts anew: the last of that number."""
    token = await tasks.token_of(conn, id, number)
    if token is None:
        raise ValidationError(f"attempt: task {id} has had no attempt {number}", field="attempt")
    return token


def parse_cursor(text: str, *, field: str = "after") -> tuple[int, int]:
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise ValidationError(f"{field}: {shown(text)}; give TOKEN.NUMBER of a piece, such as 5120.7", field=field)
    return int(found[1]), min(int(found[2]), 2**31 - 1)


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValidationError(f"tail: {shown(text)}; give bytes, such as 64k or 1m", field="tail")
    size = int(found[1]) * {"": 1, "k": 1024, "m": 1024 * 1024}[found[2].lower()]
    return min(size, MOST_TAIL)


# ── following ───────────────────────────────────────────────────────────────────────────────────


class Cursor:
    """How far a follower has read, and since when the next chunk is missing."""

    def __init__(self, patience: float, after: tuple[int, int] = (0, 0), *, is_new: bool = True) -> None:
        self.after = after  # token, number
        self._patience = patience
        self._missing_since: float | None = None
        self.is_new = is_new

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
