"""Waiting for tasks and batches to end: one poll for all tasks, at once by a hint of this process's own recorder.

Reads   store.tasks.tasks
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from mainspring.errors import ServerUnavailable, StoreUnavailable, TaskNotFound, WaitTimeout
from mainspring.model.flows.batches import BatchState
from mainspring.operations import Connections
from mainspring.operations.work.batches import BatchDetail
from mainspring.store.tasks import tasks
from mainspring.store.tasks.tasks import Ended

SOONEST, LATEST = 0.02, 0.5  # seconds between polls, while tasks run in other processes


class Waiting:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._futures: dict[int, list[asyncio.Future[Ended]]] = {}
        self._hint = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None

    def hint(self, ended: Iterable[int]) -> None:
        """These tasks have ended: poll now if a caller waits for one of them."""
        if self._futures and not self._futures.keys().isdisjoint(ended):
            self._hint.set()

    async def wait(self, task: int, timeout: float | None) -> Ended:
        """How the task ended. WaitTimeout if it has not after `timeout` seconds, TaskNotFound if there is none."""
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(task, []).append(future)
        self._hint.set()
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise WaitTimeout(f"task {task} has not ended within {timeout:g} s; it goes on") from None
        finally:
            waiting = self._futures.get(task, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._futures.pop(task, None)

    async def _poll(self) -> None:
        interval = SOONEST
        while self._futures:
            self._hint.clear()
            try:
                if await self._poll_once():
                    interval = SOONEST
            except StoreUnavailable:
                pass  # each waiter has its own timeout
            except Exception as error:
                self._fail_all(error)
                raise
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._hint.wait()
            interval = min(interval * 1.2, LATEST)

    async def _poll_once(self) -> int:
        wanted = list(self._futures)
        async with self._connections.acquire() as conn:
            ended = await tasks.ended(conn, wanted)
            unknown = [task for task in wanted if task not in ended]
            still_open = await tasks.still_open(conn, unknown) if unknown else set()
            gone = [task for task in unknown if task not in still_open]
            if gone:  # it may have ended between the two statements
                ended |= await tasks.ended(conn, gone)
        for task, outcome in ended.items():
            self._settle(task, outcome)
        for task in set(gone) - ended.keys():
            self._settle(task, TaskNotFound(f"no task {task}; it never existed, or retention dropped it"))
        return len(ended)

    def _settle(self, task: int, outcome: Ended | Exception) -> None:
        for future in self._futures.pop(task, []):
            if not future.done():
                future.set_exception(outcome) if isinstance(outcome, Exception) else future.set_result(outcome)

    def _fail_all(self, error: Exception) -> None:
        for task in list(self._futures):
            self._settle(task, error)

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        self._fail_all(StoreUnavailable("the application closed; the task goes on without it"))


async def wait_for_batch(show: Callable[[], Awaitable[BatchDetail]], batch: int, timeout: float | None) -> BatchDetail:
    """The batch, once it has ended. WaitTimeout if it has not after `timeout` seconds."""
    interval = SOONEST
    try:
        async with asyncio.timeout(timeout):
            while True:
                with suppress(StoreUnavailable, ServerUnavailable):  # the waiter has a timeout
                    view = await show()
                    if view.state == BatchState.ENDED.label:
                        return view
                await asyncio.sleep(interval)
                interval = min(interval * 1.3, LATEST)
    except TimeoutError:
        raise WaitTimeout(f"batch {batch} has not ended within {timeout:g} s; it goes on") from None


async def wait(connections: Connections, task: int, timeout: float | None) -> Ended:
    """`Waiting.wait` for one task."""
    waiting = Waiting(connections)
    try:
        return await waiting.wait(task, timeout)
    finally:
        await waiting.close()
