"""Handlers that behave oddly harm nobody else; and a few promises of the SDK at its edges."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import App, Conflict, TaskFailed, ValidationError


@dataclass
class Point:
    x: int
    y: int = 0


@pytest.mark.parametrize("raised", [StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("sync", [False, True])
async def test_whatever_a_handler_raises_its_task_fails_and_the_slot_lives(
    dsn: str, raised: type[BaseException], sync: bool
) -> None:
    app = App(dsn=dsn, slots=1)

    def odd_sync() -> None:
        raise raised

    async def odd_async() -> None:
        raise raised

    odd = app.job(name="odd", retries=0)(odd_sync if sync else odd_async)

    @app.job
    async def innocent() -> int:
        return 1

    async with app.running():
        task = await odd.enqueue()
        with pytest.raises(TaskFailed) as failed:
            await task.result(timeout=10)
        assert failed.value.error_code == "handler_error"
        assert await (await innocent.enqueue()).result(timeout=10) == 1


async def test_a_cancel_that_outlives_its_attempt_does_not_reach_the_next(dsn: str) -> None:
    app = App(dsn=dsn, slots=1)

    @app.job
    async def cancels_itself() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return 1

    @app.job
    async def innocent() -> int:
        await asyncio.sleep(0.01)
        return 2

    async with app.running():
        for _ in range(3):
            assert await (await cancels_itself.enqueue()).result(timeout=10) == 1
            assert await (await innocent.enqueue()).result(timeout=10) == 2


async def test_a_result_comes_back_as_its_annotated_type(dsn: str) -> None:
    app = App(dsn=dsn)

    @app.job
    async def point(x: int) -> Point:
        return Point(x)

    async with app.running():
        assert await (await point.enqueue(3)).result(timeout=10) == Point(3)


async def test_tasks_of_one_instant_start_in_the_order_of_their_priority(dsn: str) -> None:
    app = App(dsn=dsn, slots=1)
    order: list[int] = []

    @app.job
    async def note(level: int) -> None:
        order.append(level)

    async with app.running():
        instant = datetime.now(UTC) + timedelta(seconds=1)
        tasks = []
        async with app.database.acquire() as conn, conn.transaction():  # they become visible together
            for level in (0, 9, 5, 3):
                tasks.append(await note.using(run_at=instant, priority=level, conn=conn).enqueue(level))
        for task in tasks:
            await task.result(timeout=10)
    assert order == [9, 5, 3, 0]


async def test_a_job_name_belongs_to_one_application(dsn: str) -> None:
    one, two = App("one", dsn=dsn), App("two", dsn=dsn)
    for app in (one, two):
        app.job(name="same")(_nothing)
    async with one:
        with pytest.raises(Conflict, match="belongs to the application 'one'"):
            await two.open()


async def _nothing() -> None:
    return None


async def test_a_job_that_requires_a_label_runs_where_the_agent_has_it(dsn: str) -> None:
    app = App(dsn=dsn, labels={"gpu": "a100"})
    job = app.command("train", ["true"], requires={"gpu": "a100"})
    async with app.running():
        assert await (await job.enqueue()).result(timeout=10) == {"exit_code": 0}


@pytest.mark.parametrize("after", ["abc", 0, -1, [None], True, 2**63])
async def test_what_is_no_task_cannot_be_waited_for(dsn: str, after: Any) -> None:
    app = App(dsn=dsn)
    job = app.job(_nothing)
    with pytest.raises(ValidationError, match="^after: "):
        job.using(after=after)
