"""Aging in a running application: a low task starts although critical ones come faster than they can run."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from mainspring import App
from mainspring.operations import settings
from mainspring.operations.actors import this_user
from tests.sdk.test_holds import until

LONG = 0.05  # seconds of each critical task, in two slots: 40 a second


async def set_aging(app: App, value: str) -> None:
    async with app.database.acquire() as conn:
        await settings.edit(conn, this_user(), {"aging": value})
    assert app.engine is not None
    await app.engine.server.catalogue.refresh()


@pytest.mark.parametrize("labels", [{}, {"zone": "a"}], ids=["in one pool", "in another pool"])
async def test_a_low_task_starts_beside_steady_critical_work_beyond_capacity(app: App, labels: dict[str, str]) -> None:
    started: list[str] = []

    @app.job(priority="critical", retries=0)
    async def critical() -> None:
        started.append("critical")
        await asyncio.sleep(LONG)

    @app.job(priority="low", retries=0, requires=labels)
    async def low() -> None:
        started.append("low")

    async def overload() -> None:
        while True:
            await critical.enqueue_many([()] * 25)
            await asyncio.sleep(0.5)  # 50 a second, and 40 can run

    async with app.running(slots=2, labels={"zone": "a"}):
        await set_aging(app, "200ms")
        producing = asyncio.create_task(overload())
        try:
            await until(lambda: len(started) > 50)
            await (await low.enqueue()).result(timeout=30)
        finally:
            producing.cancel()
            with suppress(asyncio.CancelledError):
                await producing
        assert "low" in started
        engine = app.engine
        assert engine is not None
        if not labels:
            assert engine.server.dispatcher.tally.aged >= 1


async def test_without_aging_a_low_task_waits_for_all_that_is_more_important(app: App) -> None:
    started: list[str] = []
    all_wait = asyncio.Event()  # all that are more important are submitted

    @app.job(priority="critical")
    async def critical() -> None:
        started.append("critical")
        await all_wait.wait()

    @app.job(priority="low")
    async def low() -> None:
        started.append("low")

    async with app.running(slots=1):
        await set_aging(app, "off")
        await critical.enqueue_many([()] * 100)
        await until(lambda: len(started) > 0)
        task = await low.enqueue()
        await critical.enqueue_many([()] * 100)
        all_wait.set()
        await task.result(timeout=30)
        assert app.engine is not None
        assert app.engine.server.dispatcher.tally.aged == 0
    assert started.index("low") == 200, "the last"


async def test_a_task_says_what_it_counts_as(app: App) -> None:
    from mainspring.operations.work import tasks

    @app.job(priority="low", requires={"gpu": "yes"})
    async def nowhere() -> None: ...

    async with app.running():
        await set_aging(app, "1h")
        task = await nowhere.enqueue()
        async with app.database.acquire() as conn:
            assert (await tasks.show(conn, this_user(), task.id)).counts_as == 2
            await conn.execute("update mainspring.task set run_at = run_at - interval '150 min' where id = $1", task.id)
            assert (await tasks.show(conn, this_user(), task.id)).counts_as == 4
