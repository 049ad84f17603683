"""Jobs of the demo: three on schedules, and examples that submit the others, one for each thing a task can do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from mainspring.agent.context import RetryAfter, Snooze, current_task
from mainspring.errors import InvalidTransition, ScheduleNotFound
from mainspring.sdk.app import App
from mainspring.sdk.job import Job
from mainspring.sdk.task import Task
from mainspring.store.schedules import schedules
from mainspring.store.tasks import tasks

PREFIX = "demo."  # so that the demo does not take names in a database that it shares


class Demo:
    """The application of the demo, and the tasks it has submitted."""

    def __init__(self) -> None:
        self.app = App("demo")
        self.tasks: list[Task[Any]] = []
        self.exact: set[int] = set()  # tasks that are due at a given instant
        self.planned: set[int] = set()  # tasks of schedules, as they are seen
        self.shows: dict[str, str] = {}  # job → what it demonstrates
        self._later: list[asyncio.Task[None]] = []

    def job(self, name: str, shows: str, **options: Any) -> Callable[[Callable[..., Any]], Job[..., Any]]:
        self.shows[PREFIX + name] = shows
        register: Any = self.app.job(name=PREFIX + name, description=shows, **options)
        return lambda function: register(function)

    def command(self, name: str, shows: str, script: str) -> Job[..., Any]:
        self.shows[PREFIX + name] = shows
        requires = {"app": self.app.name}  # only the demo's agent runs it
        return self.app.command(PREFIX + name, script, shell=True, requires=requires, description=shows)

    async def submit(self, job: Job[..., Any], *args: Any, **using: Any) -> Task[Any]:
        task = await job.using(**using).enqueue(*args)
        self.tasks.append(task)
        if "run_at" in using or "delay" in using:
            self.exact.add(task.id)
        return task

    def later(self, delay: float, call: Callable[[], Awaitable[None]]) -> None:
        async def wait_and_call() -> None:
            await asyncio.sleep(delay)
            await call()

        self._later.append(asyncio.create_task(wait_and_call()))

    async def finish(self) -> None:
        """Wait for the calls of `later`, and end the schedules."""
        await asyncio.gather(*self._later)
        await self._delete_schedules()

    async def _delete_schedules(self) -> None:
        async with self.app.database.acquire() as conn:
            for name in self.app.schedules.all:
                with suppress(ScheduleNotFound):
                    self.planned.update(await schedules.live_tasks(conn, name))
                    await schedules.delete(conn, name)

    async def clear(self) -> None:
        """Cancel what has not ended, so that the next demo starts clean."""
        for later in self._later:
            later.cancel()
        await self._delete_schedules()
        ours = [*self.tasks, *(self.app.task(id) for id in self.planned)]
        async with self.app.database.acquire() as conn:
            live = await tasks.still_open(conn, [task.id for task in ours])
        left = [task for task in ours if task.id in live]
        for task in left:
            with suppress(InvalidTransition):  # it has just ended
                await task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.gather(*(task.result() for task in left), return_exceptions=True)


Example = Callable[[], Awaitable[object]]


def make_demo() -> tuple[Demo, list[Example]]:
    """The demo, and the examples to submit. Schedules run without them."""
    demo = Demo()
    _schedules(demo)
    return demo, [*_basics(demo), *_failures(demo), *_ordering(demo)]


def _schedules(demo: Demo) -> None:
    @demo.job("tick", "every second, exactly", every="1s", catch_up="skip")
    async def tick() -> None:
        return None

    @demo.job("tenants", "cron, one task per scope", cron="*/2 * * * * *", scopes=["eu", "us"], catch_up="skip")
    async def tenants(scope: str) -> str:
        return scope

    @demo.job("cleanup", "overlap=skip: takes 2.4 s", every="1s", overlap="skip", catch_up="skip")
    async def cleanup() -> None:
        await asyncio.sleep(2.4)


def _basics(demo: Demo) -> list[Example]:
    @demo.job("report", "an async handler")
    async def report(day: str) -> str:
        await asyncio.sleep(0.02)
        return f"report of {day}"

    @demo.job("resize", "a sync handler (thread)")
    def resize(picture: str) -> str:
        time.sleep(0.02)
        return picture

    @demo.job("import", "resumes at its checkpoint", retries=1)
    async def load_rows(rows: int) -> int:
        task = current_task()
        for done in range(task.checkpoint or 0, rows):
            await asyncio.sleep(0.05)
            task.progress({"done": done + 1, "of": rows})
            task.checkpoint = done + 1
            if task.attempt == 1 and done == rows // 2:
                raise RetryAfter("200ms", "hung up half way")
        return rows

    @demo.job("ledger", "one commit for it all", delivery="effectively_once")
    async def ledger() -> None:
        async with current_task().transaction() as conn:
            await conn.execute("select 1")

    backup = demo.command("backup", "a command", 'echo "saved by task $MAINSPRING_TASK_ID"')
    return [
        lambda: demo.submit(report, "monday"),
        lambda: demo.submit(resize, "cat.png"),
        lambda: demo.submit(backup),
        lambda: demo.submit(load_rows, 4),
        lambda: demo.submit(ledger),
    ]


def _failures(demo: Demo) -> list[Example]:
    @demo.job("flaky", "fails twice first", retries=3, backoff=["150ms"])
    async def flaky() -> str:
        if current_task().attempt < 3:
            raise OSError("no mail now")
        return "sent"

    @demo.job("patient", "snoozes: costs no attempt")
    async def patient() -> None:
        if not current_task().checkpoint:
            current_task().checkpoint = "asked once"
            raise Snooze("400ms")

    @demo.job("stuck", "stopped by its timeout", timeout=0.3, backoff=[0.1])
    async def stuck() -> None:
        if current_task().attempt == 1:
            await asyncio.sleep(60)

    @demo.job("endless", "cancelled while it runs")
    async def endless() -> None:
        await asyncio.sleep(60)

    async def cancel_it() -> None:
        task = await demo.submit(endless)
        demo.later(0.4, task.cancel)

    return [lambda: demo.submit(flaky), lambda: demo.submit(patient), lambda: demo.submit(stuck), cancel_it]


def _ordering(demo: Demo) -> list[Example]:
    @demo.job("step", "a chain of three")
    async def step(name: str) -> str:
        await asyncio.sleep(0.05)
        return name

    @demo.job("alert", "priority: goes first", priority="critical")
    async def alert() -> None:
        return None

    @demo.job("invoice", "submitted twice, one key")
    async def invoice() -> None:
        return None

    @demo.job("reminder", "delayed by 1.3 s")
    async def reminder() -> None:
        return None

    async def chain() -> None:
        task = await demo.submit(step, "extract")
        for name in ("transform", "load"):
            task = await demo.submit(step, name, after=task)

    async def twice() -> None:
        key = f"invoice {time.time_ns()}"
        await demo.submit(invoice, key=key)
        await demo.submit(invoice, key=key)

    return [
        chain,
        lambda: demo.submit(alert),
        twice,
        lambda: demo.submit(reminder, delay="1.3s"),
    ]
