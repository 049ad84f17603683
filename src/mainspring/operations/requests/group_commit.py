"""Group commit: submissions that are made at once share a statement, and so a commit.

A submission waits until the event loop has run what is ready, and goes out with all that were made meanwhile. Those
that come while a statement is under way gather, and the next one takes them all. Each is answered for itself:

    one is left out or refused         it goes alone, and gets its own error; so do all that one made PostgreSQL refuse
    a connection is lost meanwhile     the outcome of each is unknown, as if it had been submitted alone
    a caller is cancelled              the statement continues for the others

A key may have to wait for another transaction, so submissions with keys do not hold up those without.
Next: store/submission/enqueue.py
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from mainspring.errors import StoreUnavailable
from mainspring.store.submission.submissions import Submission

PATIENCE = 0.1  # seconds after which what has gathered no longer waits for a statement that has no answer
MOST = 256  # submissions in one statement
MOST_BYTES = 100_000  # of their arguments; a larger one goes alone

Answer = TypeVar("Answer")  # to one submission: its id, and whatever else its sender tells

# Returns the answers. None: it must be sent alone, where it gets an answer or an error.
Send = Callable[[Sequence[Submission]], Awaitable[Sequence[Answer | None]]]


class Gathered(NamedTuple, Generic[Answer]):
    submission: Submission
    answer: asyncio.Future[Answer]


class Submissions(Generic[Answer]):
    """`send` submits in one statement. Belongs to one event loop."""

    def __init__(self, send: Send[Answer]) -> None:
        self._plain = Lane(send)
        self._others = Lane(send)

    async def submit(self, submission: Submission) -> Answer:
        """The answer, once the task is committed."""
        return await (self._plain if submission.is_plain else self._others).submit(submission)


class Lane(Generic[Answer]):
    """One statement at a time: NOTIFY makes commits wait for each other, so that a second one would gain little."""

    def __init__(self, send: Send[Answer]) -> None:
        self._send = send
        self._gathered: deque[Gathered[Answer]] = deque()
        self._under_way: object | None = None  # the statement that the next one waits for
        self._patience: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, submission: Submission) -> Answer:
        if self._under_way is not None:
            return await self._gather(submission, asyncio.get_running_loop())
        self._under_way = leader = object()
        try:
            await asyncio.sleep(0)
            if not self._gathered:
                [answer] = await self._send([submission])  # alone: no task of its own, and cancelled with its caller
                assert answer is not None
                return answer
            mine: Gathered[Answer] = Gathered(submission, asyncio.get_running_loop().create_future())
            self._gathered.appendleft(mine)
        finally:
            self._next(leader)
        return await mine.answer

    async def _gather(self, submission: Submission, loop: asyncio.AbstractEventLoop) -> Answer:
        mine: Gathered[Answer] = Gathered(submission, loop.create_future())
        self._gathered.append(mine)
        if self._patience is None:
            self._patience = loop.call_later(PATIENCE, self._next, self._under_way)
        return await mine.answer  # cancelled with its caller: what has not been sent then is dropped

    def _take(self) -> list[Gathered[Answer]]:
        """The next ones, in the order of their calls."""
        batch: list[Gathered[Answer]] = []
        size = 0
        while self._gathered and len(batch) < MOST:
            size += len(self._gathered[0].submission.args)
            if batch and size > MOST_BYTES:
                break
            if not (gathered := self._gathered.popleft()).answer.done():
                batch.append(gathered)
        return batch

    def _next(self, ended: object) -> None:
        """`ended` is over, or takes too long: send what has gathered."""
        if self._under_way is not ended:
            return
        self._under_way = None
        self._wait_no_longer()
        if batch := self._take():
            self._start(batch)

    def _start(self, batch: list[Gathered[Answer]]) -> None:
        loop = asyncio.get_running_loop()
        self._under_way = statement = object()
        self._wait_no_longer()
        if self._gathered:
            self._patience = loop.call_later(PATIENCE, self._next, statement)
        running = loop.create_task(self._run(batch, statement), name="mainspring submit")
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def _wait_no_longer(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def _run(self, batch: list[Gathered[Answer]], statement: object) -> None:
        try:
            alone = await self._share(batch)
        finally:
            self._next(statement)
        if alone:
            await asyncio.gather(*(self._share([each]) for each in alone if not each.answer.done()))

    async def _share(self, batch: list[Gathered[Answer]]) -> list[Gathered[Answer]]:
        """Submit them in one statement; returns those that must be submitted alone."""
        try:
            answers = await self._send([each.submission for each in batch])
        except BaseException as error:
            for each in batch:
                _fail(each, error)
            if isinstance(error, Exception):
                return []
            raise
        for each, answer in zip(batch, answers, strict=True):
            if answer is not None and not each.answer.done():
                each.answer.set_result(answer)
        return [each for each, answer in zip(batch, answers, strict=True) if answer is None]


def _fail(each: Gathered[Answer], error: BaseException) -> None:
    if each.answer.done():
        return
    if isinstance(error, StoreUnavailable):
        each.answer.set_exception(error.for_another_caller())  # not one error with the traces of all callers
    elif isinstance(error, Exception):
        each.answer.set_exception(error)
    else:
        each.answer.cancel()
