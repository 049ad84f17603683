"""Bulk submit: a stream of lines, each a new task, committed chunk by chunk.

While one chunk is committed the next is read, and none beyond that: a source is read no faster than its tasks are
stored, and what is held does not grow with its length. What was answered is durable.
Next: operations/requests/lines.py
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Literal

import msgspec

from mainspring.errors import (
    BatchEnded,
    BatchNotFound,
    JobNotFound,
    MainspringError,
    QueueFull,
    TooLarge,
    ValidationError,
)
from mainspring.model.access.actors import Actor
from mainspring.model.tasks.states import PENDING
from mainspring.operations import Connections
from mainspring.operations.parts.slices import in_slices
from mainspring.operations.requests import new_tasks
from mainspring.operations.requests.lines import Chunk, Lines, Read, read
from mainspring.operations.requests.new_tasks import NewTask, Submitted
from mainspring.store.postgres.connection import Connection
from mainspring.store.submission import drivers
from mainspring.store.submission.submissions import BulkSubmission

FLUSH_AFTER = 0.1  # seconds that a line waits for more
MOST_ATOMIC = 10_000  # lines in one transaction
MOST_ATOMIC_BYTES = 64 * 1024 * 1024
MOST_ERRORS = 100  # of a refused transaction that are reported
LONGEST_KEY = 180  # characters: the line's number comes behind it

OnError = Literal["continue", "stop"]
MayContinue = Callable[[], Awaitable[MainspringError | None]]  # None: yes
Receive = Callable[[], Awaitable[bytes | None]]  # what comes next; None: there is no more


class Committed(msgspec.Struct, frozen=True):
    """Lines that were committed together; `ids` has one for each, null for one that was blank or refused."""

    lines: tuple[int, int]
    ids: list[int | None]


class RefusedLine(msgspec.Struct, frozen=True):
    """Told from the other answers by its member `line`."""

    line: int
    code: str
    message: str
    field: str | None = None
    id: int | None = None  # of the task that has the key


class Done(msgspec.Struct, frozen=True):
    """The last one. `done` is false if not all lines were read: the rest has to be sent again."""

    done: bool
    accepted: int
    refused: int


Answer = Committed | RefusedLine | Done


async def chunks(receive: Receive) -> AsyncIterator[Chunk]:
    """Full ones, or what has come when a line has waited for FLUSH_AFTER."""
    lines = Lines()
    coming: asyncio.Future[bytes | None] | None = None
    loop = asyncio.get_running_loop()
    flush_at = 0.0
    try:
        while True:
            while lines.is_full:
                yield lines.take()
            coming = coming or asyncio.ensure_future(receive())
            timeout = max(0.0, flush_at - loop.time()) if lines.has_lines else None
            if not (await asyncio.wait([coming], timeout=timeout))[0]:
                yield lines.take()
                continue
            data, coming = coming.result(), None
            if data is None:
                break
            had_lines = lines.has_lines
            lines.feed(data)
            if lines.has_lines and not had_lines:
                flush_at = loop.time() + FLUSH_AFTER
        lines.end()
        while lines.has_lines:
            yield lines.take()
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.wait([coming])


class _Ahead:
    """The next chunk, read while the last is committed, in slices: the event loop has others to serve."""

    def __init__(self, source: AsyncIterator[Chunk], key: str | None) -> None:
        self._source = source
        self._key = key
        self._coming = asyncio.ensure_future(self._next())

    async def _next(self) -> Read | None:
        async for chunk in self._source:
            return await in_slices(read(chunk, self._key))
        return None

    async def take(self) -> Read | None:
        found = await self._coming
        if found is not None:
            self._coming = asyncio.ensure_future(self._next())
        return found

    async def close(self) -> None:
        self._coming.cancel()
        await asyncio.wait([self._coming])
        if not self._coming.cancelled():
            self._coming.exception()
        await self._source.aclose()  # type: ignore[attr-defined]


async def submit_lines(
    connections: Connections,
    actor: Actor,
    receive: Receive,
    *,
    key: str | None = None,
    atomic: bool = False,
    on_error: OnError = "continue",
    may_continue: MayContinue | None = None,
) -> AsyncIterator[Answer]:
    """Submit each line that `receive` brings; yields what became of them.

    With `key` the task in line n has the key KEY:n, so the whole can be sent again and nothing is created twice.
    `may_continue` is asked before each chunk, and says why not.
    """
    ahead = _Ahead(chunks(receive), None if key is None else _shortened(key))
    answers = (
        _at_once(connections, actor, ahead)
        if atomic
        else _by_chunk(connections, actor, ahead, may_continue, stops=on_error == "stop")
    )
    try:
        async for answer in answers:
            yield answer
    finally:
        await ahead.close()


def _shortened(key: str) -> str:
    """The key, or as long a beginning of it as leaves room for its hash."""
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key[: LONGEST_KEY - 65]}#{hashlib.sha256(key.encode()).hexdigest()}"


async def _by_chunk(
    connections: Connections, actor: Actor, ahead: _Ahead, may_continue: MayContinue | None, *, stops: bool
) -> AsyncIterator[Answer]:
    accepted = refused = 0
    while (found := await ahead.take()) is not None:
        first, last = found.chunk.first, found.chunk.last
        why_not = None if may_continue is None else await may_continue()
        if why_not is None:
            try:
                async with connections.acquire() as conn:
                    outcomes = await _submit(conn, actor, found, stops=stops)
            except MainspringError as error:  # of the whole chunk: whether it was committed is not known
                if first == 1:
                    raise
                why_not = error
            finally:
                await found.release()
        if why_not is not None:
            yield RefusedLine(first, why_not.code, why_not.message, why_not.field)
            yield Done(False, accepted, refused)
            return
        wrong = {line: outcome for line, outcome in outcomes.items() if isinstance(outcome, MainspringError)}
        if wrong and stops:
            last = max(wrong)  # what stands behind it was not tried
        if len(wrong) < len(outcomes):
            yield Committed((first, last), [_id(outcomes.get(number)) for number in range(first, last + 1)])
        for line in sorted(wrong):
            yield _refused(line, wrong[line])
        accepted += len(outcomes) - len(wrong)
        refused += len(wrong)
        if wrong and stops:
            yield Done(False, accepted, refused)
            return
    yield Done(True, accepted, refused)


Outcomes = dict[int, Submitted | MainspringError]  # by line; one that was not tried is left out


async def _submit(conn: Connection, actor: Actor, found: Read, *, stops: bool) -> Outcomes:
    plain = found.plain
    if plain is not None and actor.reaches(plain.job) and not (actor.jobs and plain.batch is not None):
        # If it is refused, nothing of it was submitted: then each line gets its own error below.
        try:
            async with conn.transaction() if conn.is_in_transaction() else nullcontext():
                many = BulkSubmission(
                    plain.job, plain.args, plain.priority, batch=plain.batch, submitter=new_tasks.submitter(actor)
                )
                ids = await drivers.submit(conn, many)
            return {number: Submitted(id, PENDING.label, True) for number, id in zip(found.numbers, ids, strict=True)}
        except QueueFull as full:
            if len(found.numbers) == 1:  # asked again, it would be counted as refused twice
                return {**found.refused, found.numbers[0]: full}
        except (JobNotFound, BatchNotFound, BatchEnded, ValidationError):
            pass
    if not stops:
        return {**found.refused, **await _each(conn, actor, found.numbers, found.tasks)}
    first = min(found.refused, default=None)
    if first is not None:
        before = sum(number < first for number in found.numbers)
        found = found._replace(numbers=found.numbers[:before], tasks=found.tasks[:before])
    try:
        async with conn.transaction():
            outcomes = await _each(conn, actor, found.numbers, found.tasks)
            wrong = [line for line, outcome in outcomes.items() if isinstance(outcome, MainspringError)]
            if wrong:
                raise _Wrong(min(wrong), outcomes[min(wrong)])
    except _Wrong as stop:  # what stands before it is submitted, what stands behind it is not
        before = found.numbers.index(stop.line)
        outcomes = await _each(conn, actor, found.numbers[:before], found.tasks[:before])
        return {**outcomes, stop.line: stop.outcome}
    return outcomes if first is None else {**outcomes, first: found.refused[first]}


class _Wrong(Exception):
    def __init__(self, line: int, outcome: Submitted | MainspringError) -> None:
        self.line, self.outcome = line, outcome


async def _each(conn: Connection, actor: Actor, numbers: Sequence[int], given: Sequence[NewTask]) -> Outcomes:
    found = await new_tasks.submit_each(conn, actor, given) if given else []
    return dict(zip(numbers, found, strict=True))


def _id(outcome: Submitted | MainspringError | None) -> int | None:
    return outcome.id if isinstance(outcome, Submitted) else None


def _refused(line: int, error: MainspringError) -> RefusedLine:
    id = error.details.get("id")
    return RefusedLine(line, error.code, error.message, error.field, id if isinstance(id, int) else None)


async def _at_once(connections: Connections, actor: Actor, ahead: _Ahead) -> AsyncIterator[Answer]:
    """All lines in one transaction, which begins once all have come."""
    parts: list[Read] = []
    size = 0
    while (found := await ahead.take()) is not None:
        parts.append(found)
        size += sum(len(line) for line in found.chunk.lines if line is not None)
        if found.chunk.last > MOST_ATOMIC or size > MOST_ATOMIC_BYTES:
            raise TooLarge(
                f"body: more than {MOST_ATOMIC:,} lines or 64 MB; send it without atomic, or in parts", field="body"
            )
    answers: list[Answer] = []
    accepted = 0
    async with connections.acquire() as conn, conn.transaction():
        wrong: Outcomes = {}
        for part in parts:
            outcomes = await _submit(conn, actor, part, stops=False)
            wrong |= {line: outcome for line, outcome in outcomes.items() if isinstance(outcome, MainspringError)}
            ids = [_id(outcomes.get(number)) for number in range(part.chunk.first, part.chunk.last + 1)]
            answers.append(Committed((part.chunk.first, part.chunk.last), ids))
            accepted += len(outcomes)
            await part.release()
        if wrong:
            raise _nothing(wrong)
    for answer in answers:
        yield answer
    yield Done(True, accepted, 0)


def _nothing(wrong: Outcomes) -> MainspringError:
    """The error of the first line; the others are in `errors`."""
    told = [_refused(line, error) for line, error in sorted(wrong.items()) if isinstance(error, MainspringError)]
    first = told[0]
    error = wrong[first.line]
    assert isinstance(error, MainspringError)
    return type(error)(
        f"line {first.line}: {first.message}; nothing was submitted",
        field=first.field,
        line=first.line,
        errors=[msgspec.to_builtins(one) for one in told[:MOST_ERRORS]],
    )
