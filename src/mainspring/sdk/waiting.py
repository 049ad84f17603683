"""Waiting for tasks to end: one look for all who wait, at once when this process's own recorder says so.

Next: sdk/app.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from mainspring.errors import ResultLost, StoreUnavailable, TaskFailed, TaskNotFound, ValidationError, WaitTimeout
from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Database
from mainspring.store.tasks import tasks
from mainspring.store.tasks.tasks import Ended

SOONEST, LATEST = 0.02, 0.5  # seconds between looks, while tasks of other processes are waited for


class Waiting:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._futures: dict[int, list[asyncio.Future[Ended]]] = {}
        self._hint = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def hint(self, ended: Iterable[int]) -> None:
        """These have ended: look now if somebody waits for one of them."""
        if self._futures and not self._futures.keys().isdisjoint(ended):
            self._hint.set()

    async def result(self, task: int, timeout: float | None, decode: Callable[[str], Any]) -> Any:
        """The result of a task, once it has succeeded; TaskFailed if it does not."""
        ended = await self.wait(task, timeout)
        if ended.state is not TaskState.SUCCEEDED:
            headline = (ended.error or "no reason was given").partition("\n")[0]
            raise TaskFailed(
                f"task {task} {ended.state.label}: {headline}",
                task_id=task,
                state=ended.state.label,
                error_code=ended.error_code,
            )
        if ended.result_lost:
            raise ResultLost(
                f"task {task} succeeded, and what it wrote is committed; but there is no result: its handler failed "
                "after the commit, or its process died"
            )
        try:
            return None if ended.result is None else decode(ended.result)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ValidationError(
                f"result: what task {task} returned does not fit the annotation of its handler ({error}); "
                "status() has it as it is",
                field="result",
            ) from error

    async def wait(self, task: int, timeout: float | None) -> Ended:
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(task, []).append(future)
        self._hint.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
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

    async def _look(self) -> None:
        interval = SOONEST
        while self._futures:
            self._hint.clear()
            try:
                if await self._look_once():
                    interval = SOONEST
            except StoreUnavailable:
                pass  # it comes back; each waiter has its own timeout
            except Exception as error:
                self._fail_all(error)
                raise
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._hint.wait()
            interval = min(interval * 1.2, LATEST)

    async def _look_once(self) -> int:
        wanted = list(self._futures)
        async with self._database.acquire() as conn:
            ended = await tasks.ended(conn, wanted)
            unknown = [task for task in wanted if task not in ended]
            still_open = await tasks.still_open(conn, unknown) if unknown else set()
            gone = [task for task in unknown if task not in still_open]
            if gone:  # it may have ended between the two looks
                ended |= await tasks.ended(conn, gone)
        for task, outcome in ended.items():
            for future in self._futures.pop(task, []):
                if not future.done():
                    future.set_result(outcome)
        for task in set(gone) - ended.keys():
            for future in self._futures.pop(task, []):
                if not future.done():
                    future.set_exception(TaskNotFound(f"no task {task}; it never existed, or retention dropped it"))
        return len(ended)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        self._fail_all(StoreUnavailable("the application closed; the task goes on without it"))

    def _fail_all(self, error: Exception) -> None:
        for futures in self._futures.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
