"""Workers: tasks of the event loop that are reused, each for one attempt after another.

A new asyncio task for each attempt would cost more than a short handler does. Each attempt still has its own context,
and a cancellation reaches the attempt that it is meant for, never the next one.
Next: agent/executors/python.py (commands: agent/executors/command.py, HTTP: agent/executors/http.py)
"""

from __future__ import annotations

import asyncio
import types
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any

from mainspring.agent.attempt import Attempt, ChunkCall
from mainspring.wire.clock import boottime

BURST = 0.001  # seconds that a worker goes from one attempt to the next before it yields to the loop
AT_ONCE = 64  # workers that are woken together, at most

Work = Attempt | ChunkCall
Run = Callable[[Attempt, float], Coroutine[Any, Any, None]]  # takes the boot time at which it begins
RunChunk = Callable[[ChunkCall, float], Coroutine[Any, Any, None]]


class Workers:
    """`suspended` is called when an attempt waits for something for the first time; most short ones never do. `emptied`
    is called when a worker finds that no attempt waits for its turn.
    `lease_expired` takes the boot time. A call for a chunk is run by `run_chunk`, which also reports its starts.

    Attempts wait in one line: the most important first; of equal ones those that fire at an instant, which a queue must
    not make late; then those that have waited longest. A worker *serves* it: it runs one attempt after another until
    one suspends, and then the next worker serves. To wake a worker for each attempt would cost more than a short
    handler does. While attempts keep suspending, more workers are woken at a time.
    """

    run_chunk: RunChunk

    def __init__(
        self,
        limit: int,
        run: Run,
        lease_expired: Callable[[float], bool],
        suspended: Callable[[Attempt], None],
        emptied: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._run = run
        self._lease_expired = lease_expired
        self._suspended = suspended
        self._emptied = emptied
        self._tasks: list[asyncio.Task[None]] = []
        self._idle: list[tuple[asyncio.Task[None], asyncio.Future[None]]] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._at_once = 1  # workers that are woken together
        self.waiting: deque[Work] = deque()
        self._closing = False

    def start(self, attempt: Work, at: float) -> None:
        """Run the attempt, which is due at this boot time, as soon as a worker is free."""
        attempt.waiting_since = at
        waiting, armed = self.waiting, attempt.armed
        last = waiting[-1] if waiting else attempt
        if (
            armed.priority <= last.armed.priority
            and armed.rank is last.armed.rank is None
            and (not _fires(attempt) or _fires(last))
        ):
            waiting.append(attempt)  # as most: no search
        else:
            waiting.insert(bisect_right(waiting, _rank(attempt), key=_rank), attempt)
        if not self._serving:
            self._at_once = 1
            self._wake()

    def _wake(self) -> None:
        """Let free workers serve. If none is free, the next one whose attempt ends serves the line."""
        for _ in range(min(self._at_once, len(self.waiting))):
            if self._idle:
                task, offer = self._idle.pop()
                offer.set_result(None)
            elif len(self._tasks) < self._limit:
                task = self._loop.create_task(self._work())
                self._tasks.append(task)
            else:
                return
            self._serving.add(task)

    @property
    def busy(self) -> int:
        """How many workers wait inside an attempt."""
        return len(self._tasks) - len(self._idle) - len(self._serving)

    def take_overdue(self, before: float) -> list[Work]:
        """Take out those that have waited since before this time (boot time)."""
        overdue = [attempt for attempt in self.waiting if attempt.waiting_since < before]
        if overdue:
            self.waiting = deque(attempt for attempt in self.waiting if attempt.waiting_since >= before)
        return overdue

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while True:
                await self._serve(task)
                self._serving.discard(task)
                self._emptied()
                await self._next(task)
        except BaseException:  # no handler's error gets here; if one does, it must not cost a slot
            self._tasks.remove(task)
            self._serving.discard(task)
            if self.waiting and not self._closing:
                self._wake()
            raise

    async def _serve(self, task: asyncio.Task[None]) -> None:
        """Run attempts until none waits."""
        began = now = boottime()
        while self.waiting:
            attempt = self.waiting.popleft()
            attempt.handle = task
            if self._lease_expired(now):
                self._void(attempt)  # it ends before its first step
            if type(attempt) is Attempt:
                context, coroutine = copy_context(), self._run(attempt, now)
            else:
                assert type(attempt) is ChunkCall
                context, coroutine = copy_context(), self.run_chunk(attempt, now)
            try:
                waits_for = context.run(coroutine.send, None)
            except StopIteration:
                pass  # it waited for nothing, as most short handlers do
            else:
                await self._suspend(task, attempt, context, coroutine, waits_for)
            if task.cancelling():
                await self._forget_cancels(task)
            if self.waiting:
                now = boottime()
                if now - began > BURST:
                    await asyncio.sleep(0)
                    began = now = boottime()

    async def _suspend(
        self,
        task: asyncio.Task[None],
        attempt: Work,
        context: Context,
        coroutine: Coroutine[Any, Any, None],
        waits_for: Any,
    ) -> None:
        """Wait with an attempt until it has ended. Others serve meanwhile."""
        self._serving.discard(task)
        if self.waiting and not self._serving:
            self._at_once = min(2 * self._at_once, AT_ONCE)
            self._wake()
        if type(attempt) is Attempt:
            self._suspended(attempt)
        await self._resumed(attempt, context, coroutine, waits_for)
        self._serving.add(task)

    def _void(self, attempt: Work) -> None:
        """A process resumed after its lease expired (SIGSTOP, a VM) must not run one more step of a handler."""
        attempt.stopping = attempt.stopping or "lost"

    @types.coroutine
    def _resumed(
        self, attempt: Work, context: Context, coroutine: Coroutine[Any, Any, None], waits_for: Any
    ) -> Generator[Any, Any, None]:
        """Run the rest of an attempt in its own context, within the task that awaits it; cancel it once it is void."""
        while True:
            step: Callable[[Any], Any] = coroutine.send
            value: Any
            try:
                value = yield waits_for
                if self._lease_expired(boottime()):
                    self._void(attempt)
                    raise asyncio.CancelledError
            except BaseException as error:
                step, value = coroutine.throw, error
            try:
                waits_for = context.run(step, value)
            except StopIteration:
                return

    async def _next(self, task: asyncio.Task[None]) -> None:
        """Wait to be woken. A cancellation in here was meant for an attempt that has ended."""
        while True:
            offer: asyncio.Future[None] = self._loop.create_future()
            self._idle.append((task, offer))
            try:
                return await offer
            except asyncio.CancelledError:
                if self._closing:
                    raise
                if (task, offer) in self._idle:
                    self._idle.remove((task, offer))
                while task.cancelling():
                    task.uncancel()
                if offer.done() and not offer.cancelled():
                    return None

    async def _forget_cancels(self, task: asyncio.Task[None]) -> None:
        """The cancelled attempt has ended: the next one must not be cancelled in its place."""
        try:
            await asyncio.sleep(0)  # a pending cancellation is delivered here
        except asyncio.CancelledError:
            if self._closing:
                raise
        while task.cancelling():
            task.uncancel()

    def close(self) -> None:
        self._closing = True
        for task in list(self._tasks):
            task.cancel()


def _fires(attempt: Work) -> bool:
    """Whether it was armed before its instant."""
    return type(attempt) is Attempt and attempt.lead > 0.0


def _rank(attempt: Work) -> tuple[int, bool]:
    armed = attempt.armed
    return -armed.priority if armed.rank is None else -armed.rank, not _fires(attempt)
