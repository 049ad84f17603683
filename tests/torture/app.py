"""The application of the torture run: `tests.torture.app:app`, for servers, agents and workers.

Every run appends what it does to the ledger: `start`, a `beat` now and then, `effect` when its work is done. What
fails by plan writes `fail` instead. An effectively_once handler also writes a row of torture.effect, in the
transaction that ends its task.
Next: tests/torture/command.py, then tests/torture/load.py
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from mainspring import App, CurrentTask, CurrentTasks, current_task, current_tasks
from tests.ledger import Ledger
from tests.torture.timetable import TIMETABLE, Tick

LEDGER = "MAINSPRING_TORTURE_LEDGER"
START, END = "MAINSPRING_TORTURE_START", "MAINSPRING_TORTURE_END"  # of all schedules
BEAT = 0.2  # seconds
BOUND = 6  # tasks of the crowd that may wait
DEADLINE = 1.5  # seconds after its time, until which a hasty task must have started
COMMAND = Path(__file__).with_name("command.py")

# Many, so that whatever happens no task runs out of them.
RETRIES: dict[str, Any] = {"retries": 200, "backoff": "fixed", "retry_delay": "200ms"}


CHUNK: dict[str, Any] = {"chunk": 6, "chunk_wait": "500ms"}


class Piece(TypedDict):
    """What a member of a chunk is to do."""

    number: int
    wait: float
    fails: int


class FailsByPlan(Exception):
    """What a handler raises that was told to."""


def make_app() -> App:
    app = App("torture")
    path = os.environ.get(LEDGER, os.devnull)
    ledger = Ledger(path)

    def note(event: str, *tasks: CurrentTask) -> None:
        for task in tasks or (current_task(),):
            ledger.write(event, task.id, task.attempt, task.token)

    async def last(wait: float, fails: int) -> None:
        """Begin, and be at work for so long. Each line comes after a step of the loop: none follows another unasked."""
        note("start")
        until = time.monotonic() + wait
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, BEAT))
            if until - time.monotonic() > 0:
                note("beat")
        if current_task().attempt <= fails:
            note("fail")
            raise FailsByPlan

    async def last_together(pieces: list[Piece]) -> CurrentTasks:
        """The same for a chunk, as long as the longest of its members."""
        tasks = current_tasks()
        note("start", *tasks)
        until = time.monotonic() + max(piece["wait"] for piece in pieces)
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, BEAT))
            if until - time.monotonic() > 0:
                note("beat", *tasks)
        return tasks

    async def work_together(pieces: list[Piece]) -> list[FailsByPlan | None]:
        """Each member fails or has its effect by itself."""
        outcomes = list[FailsByPlan | None]()
        for task, piece in zip(await last_together(pieces), pieces, strict=True):
            await asyncio.sleep(0)
            is_to_fail = task.attempt <= piece["fails"]
            note("fail" if is_to_fail else "effect", task)
            outcomes.append(FailsByPlan() if is_to_fail else None)
        return outcomes

    async def work(wait: float, fails: int) -> None:
        await last(wait, fails)
        await asyncio.sleep(0)
        note("effect")

    async def pay(wait: float, fails: int) -> None:
        await last(wait, fails)
        task = current_task()
        async with task.transaction() as conn:
            await conn.execute("insert into torture.effect (task, token) values ($1, $2)", task.id, task.token)
            note("effect")  # before the commit, which ends the task

    @app.job(name="work", **RETRIES)
    async def queued(number: int, wait: float = 0.0, fails: int = 0) -> None:
        await work(wait, fails)

    @app.job(**RETRIES)
    async def exclusive(number: int, key: str, wait: float = 0.0, fails: int = 0) -> None:
        await work(wait, fails)

    @app.job(delivery="at_most_once")
    async def launch(number: int, wait: float = 0.0, fails: int = 0) -> None:
        await work(wait, 0)

    @app.job(name="pay", delivery="effectively_once", **RETRIES)
    async def queued_payment(number: int, wait: float = 0.0, fails: int = 0) -> None:
        await pay(wait, fails)

    @app.job(**CHUNK, **RETRIES)
    async def gather(pieces: list[Piece]) -> list[FailsByPlan | None]:
        return await work_together(pieces)

    @app.job(**CHUNK, delivery="at_most_once")
    async def volley(pieces: list[Piece]) -> list[FailsByPlan | None]:
        return await work_together([{**piece, "fails": 0} for piece in pieces])

    @app.job(**CHUNK, delivery="effectively_once", **RETRIES)
    async def pour(pieces: list[Piece]) -> None:
        tasks = await last_together(pieces)
        async with tasks.transaction() as conn:
            rows = [(task.id, task.token) for task in tasks]
            await conn.executemany("insert into torture.effect (task, token) values ($1, $2)", rows)
            note("effect", *tasks)  # before the commit, which ends all of them

    @app.job(retries=0)
    async def doomed(number: int, wait: float = 0.0) -> None:
        """Fails for good, unless its agent dies before."""
        await last(wait, fails=1000)

    @app.job(expires=DEADLINE, **RETRIES)
    async def hasty(number: int, wait: float = 0.0, fails: int = 0) -> None:
        await work(wait, fails)

    @app.job(max_queued=BOUND, max_running=1, **RETRIES)
    async def crowded(number: int, wait: float = 0.0) -> None:
        await work(wait, 0)

    @app.job(**RETRIES)
    async def grow(number: int, wait: float = 0.0) -> None:
        """Adds a task to its batch; a later attempt finds that it is there."""
        await last(wait, 0)
        task = current_task()
        await queued.using(batch=task.batch, key=f"grown by {task.id}").enqueue(number)
        note("effect")

    @app.job(**RETRIES)
    async def told() -> None:
        """The callback of batches."""
        await work(0.0, 0)

    app.command("command", _command(path), grace="1s", **RETRIES)
    for tick in TIMETABLE:
        _define(app, tick, partial(pay if tick.delivery == "effectively_once" else work, tick.wait, 0), path)
    return app


def _define(app: App, tick: Tick, run: Any, path: str) -> None:
    options: dict[str, Any] = {"catch_up": "all", "overlap": tick.overlap, "delivery": tick.delivery}
    options |= {"cron": tick.cron} if tick.cron else {"every": f"{tick.every}s"}
    options |= {"scopes": tick.scopes} if tick.scopes else {}
    options |= {} if tick.delivery == "at_most_once" else RETRIES
    options |= {"start": os.environ[START], "end": os.environ[END]} if START in os.environ else {}
    if tick.command:
        app.command(tick.name, _command(path), args={"wait": tick.wait}, grace="1s", **options)
        return

    async def handler() -> None:
        await run()

    app.job(name=tick.name, **options)(handler)


def _command(path: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(COMMAND), path]


app = make_app()
