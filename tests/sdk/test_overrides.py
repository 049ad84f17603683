"""What a single submission overrides, what the cluster says where a job says nothing, and attempts that stall."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from mainspring import App, NoAgents, TaskFailed, ValidationError, current_task
from mainspring.operations import settings
from mainspring.operations.actors import this_user
from mainspring.operations.work import tasks
from mainspring.store.postgres.database import Connection


async def test_a_submission_has_its_own_timeout_and_retries(app: App) -> None:
    runs: list[int] = []

    @app.job(retries=5, retry_delay="1ms", timeout="1h")
    async def slow(number: int) -> None:
        runs.append(number)
        if number:
            raise ValueError(number)
        await asyncio.sleep(60)

    async with app.running():
        hasty = await slow.using(timeout="50ms", retries=0).enqueue(0)
        with pytest.raises(TaskFailed, match=r"timeout of 0\.05 s") as failed:
            await hasty.result()
        assert failed.value.state == "timed_out"
        twice = await slow.using(retries=1).enqueue(7)
        with pytest.raises(TaskFailed):
            await twice.result()
        view = await twice.status()
        assert (view.attempt, view.retries) == (2, 1)
    assert runs == [0, 7, 7]


async def test_a_job_without_a_timeout_or_retries_has_those_of_the_cluster(app: App, conn: Connection) -> None:
    runs: list[str] = []

    @app.job
    async def hangs() -> None:
        runs.append("hangs")
        await asyncio.sleep(60)

    @app.job(retries=0)
    async def fails() -> None:
        runs.append("fails")
        raise ValueError

    await settings.edit(conn, this_user(), {"default_timeout": 0.05, "default_retries": 1})
    try:
        async with app.running():
            hung = await hangs.enqueue()
            with pytest.raises(TaskFailed, match=r"timeout of 0\.05 s"):
                await hung.result()
            with pytest.raises(TaskFailed):
                await (await fails.enqueue()).result()
    finally:
        await settings.edit(conn, this_user(), {"default_timeout": None, "default_retries": None})
    assert runs == ["hangs", "hangs", "fails"], "the second names its own"


async def test_what_gives_no_sign_for_too_long_is_stopped(app: App) -> None:
    @app.job(stalls_after="150ms", retries=0)
    async def works(how: str) -> str:
        for _ in range(8):
            await asyncio.sleep(0.05)
            if how == "heartbeat":
                current_task().heartbeat()
            elif how == "progress":
                current_task().progress(0.5)
        return how

    async with app.running():
        for how in ("heartbeat", "progress"):
            assert await (await works.enqueue(how)).result() == how
        silent = await works.enqueue("silent")
        with pytest.raises(TaskFailed, match=r"no output, progress or heartbeat for 0\.15 s") as failed:
            await silent.result()
        assert (failed.value.state, failed.value.error_code) == ("timed_out", "stalled")


async def test_a_submission_says_how_long_it_may_give_no_sign(app: App) -> None:
    @app.job(retries=0, stalls_after="1h")
    async def silent() -> None:
        await asyncio.sleep(60)

    async with app.running():
        alone = await silent.using(stalls_after="100ms").enqueue()
        (one_of_many,) = await silent.using(stalls_after=0.1).enqueue_many([()])
        for task in (alone, one_of_many):
            with pytest.raises(TaskFailed, match=r"no output, progress or heartbeat for 0\.1 s"):
                await task.result()
            assert (await task.status()).stalls_after == 0.1
    for wrong in ("soon", 0, -1):
        with pytest.raises(ValidationError, match="^stalls_after: "):
            silent.using(stalls_after=wrong)


async def test_nobody_there_to_run_it_is_an_error_on_request(app: App) -> None:
    @app.job
    async def report() -> None: ...

    async with app:
        with pytest.raises(NoAgents, match="no agent could run a task of 'report' now"):
            await report.using(require_agents=True).enqueue()
        assert (await app.stats()).agents_total == 0
    async with app.running():
        await (await report.using(require_agents=True).enqueue()).result()
        stats = await app.stats()
        assert (stats.agents_total, stats.servers) == (1, {"active": 1})


async def test_a_job_that_is_defined_while_the_application_is_open_is_known_to_the_next_line(app: App) -> None:
    async with app.running():

        @app.job
        async def report() -> int:
            return 7

        assert await (await report.using(require_agents=True).enqueue()).result() == 7


async def test_what_waits_and_is_due_by_then(app: App, conn: Connection) -> None:
    @app.job
    async def report() -> None: ...

    async with app:
        soon = await report.using(delay="1m").enqueue()
        await report.using(delay="1h").enqueue()
        due, found = datetime.now(UTC) + timedelta(minutes=2), []
        page = await tasks.listing(conn, this_user(), due_before=due)
        found += page.items
        while page.next:  # a machine that stalls gives short pages
            page = await tasks.listing(conn, this_user(), due_before=due, cursor=page.next)
            found += page.items
    assert [task.id for task in found] == [soon.id]
