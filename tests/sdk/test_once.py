"""Delivery: what `transaction()` commits, it commits together with the completion, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, ResultLost, StaleAttempt, Task, TaskFailed, WaitTimeout, current_task
from mainspring.store.postgres.database import Connection
from tests.conftest import eventually


@pytest.fixture
async def effects(conn: Connection) -> Any:
    """A table of the user's; gives its rows."""
    await conn.execute("drop table if exists public.effect; create table public.effect (task bigint, attempt int)")

    async def rows() -> list[tuple[int, int]]:
        return [tuple(row) for row in await conn.fetch("select task, attempt from public.effect")]

    return rows


async def write_effect(conn: Any) -> None:
    task = current_task()
    await conn.execute("insert into public.effect values ($1, $2)", task.id, task.attempt)


async def test_the_effect_and_the_completion_are_committed_together(app: App, effects: Any, conn: Connection) -> None:
    seen: dict[str, Any] = {}

    @app.job(delivery="effectively_once")
    async def pay() -> int:
        async with current_task().transaction() as own:
            await write_effect(own)
            seen["inside"] = await conn.fetchval("select count(*) from public.effect")
            seen["live"] = await conn.fetchval("select count(*) from mainspring.task")
        seen["after"] = await conn.fetchval("select count(*) from public.effect")
        seen["ended"] = await conn.fetchval("select state from mainspring.task_history")
        return 42

    async with app.running():
        task = await pay.enqueue()
        assert await task.result(timeout=10) == 42
        assert await effects() == [(task.id, 1)]
    assert seen == {"inside": 0, "live": 1, "after": 1, "ended": 10}


async def test_a_result_is_waited_for_until_the_handler_has_returned(app: App, conn: Connection) -> None:
    committed, may_return = asyncio.Event(), asyncio.Event()

    @app.job(delivery="effectively_once")
    async def pay() -> int:
        async with current_task().transaction():
            pass
        committed.set()
        await may_return.wait()
        return 42

    async with app.running():
        task = await pay.enqueue()
        waiting = asyncio.create_task(task.result(timeout=10))
        await committed.wait()
        assert (await task.status()).state == "succeeded"
        assert (await task.status()).result_due
        with pytest.raises(WaitTimeout):
            await task.result(timeout=0.3)
        assert not waiting.done()
        may_return.set()
        assert await waiting == 42
        status = await task.status()
        assert (status.result, status.result_due) == (42, False)


async def test_a_result_is_lost_with_the_process_of_its_handler(app: App, conn: Connection) -> None:
    committed = asyncio.Event()

    @app.job(delivery="effectively_once")
    async def pay() -> int:
        async with current_task().transaction():
            pass
        committed.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async with app.running(stop_patience=0):
        task = await pay.enqueue()
        waiting = asyncio.create_task(task.result(timeout=10))
        await committed.wait()
        await conn.execute("update mainspring.agent set ended_at = mainspring.now()")  # as if it had died
        with pytest.raises(ResultLost, match="there is no result"):
            await waiting


async def test_an_exception_inside_rolls_both_back(app: App, effects: Any) -> None:
    @app.job(delivery="effectively_once", retries=1, retry_delay=0)
    async def pay() -> None:
        async with current_task().transaction() as own:
            await write_effect(own)
            if current_task().attempt == 1:
                raise RuntimeError("after the write")

    async with app.running():
        task = await pay.enqueue()
        await task.result(timeout=10)
        assert await effects() == [(task.id, 2)]


async def test_an_exception_after_the_commit_changes_nothing(app: App, effects: Any, conn: Connection) -> None:
    @app.job(delivery="effectively_once", retries=3, retry_delay=0)
    async def pay() -> None:
        async with current_task().transaction() as own:
            await write_effect(own)
        raise RuntimeError("too late")

    async with app.running():
        task = await pay.enqueue()
        with pytest.raises(ResultLost):
            await task.result(timeout=10)
        assert not (await task.status()).result_due
    assert await effects() == [(task.id, 1)]
    assert (await conn.fetchval("select count(*) from mainspring.task")) == 0
    assert (await conn.fetchval("select count(*) from mainspring.attempt")) == 0


async def test_an_attempt_that_lost_its_task_commits_nothing(app: App, effects: Any, conn: Connection) -> None:
    caught: list[BaseException] = []

    @app.job(delivery="effectively_once", retries=0)
    async def pay() -> None:
        async with app.database.acquire() as other:
            await other.execute("update mainspring.task set token = token + 1")
        try:
            async with current_task().transaction() as own:
                await write_effect(own)
        except StaleAttempt as error:
            caught.append(error)
            raise

    async with app.running():
        task = await pay.enqueue()

        async def kept_as_evidence() -> Any:
            return await conn.fetchval("select error_code from mainspring.attempt where task_id = $1", task.id)

        assert await eventually(kept_as_evidence) == "stale_attempt"
        assert (await task.status()).state in ("assigned", "running"), "its owner has not reported yet"
    assert "belongs to another attempt now; nothing was committed" in str(caught[0])
    assert await effects() == []


@pytest.mark.parametrize("error", [OSError("mine"), TimeoutError("mine"), ConnectionError("mine"), ValueError("mine")])
async def test_a_handlers_own_error_comes_out_as_it_is(app: App, error: Exception) -> None:
    name = type(error).__name__

    @app.job(delivery="effectively_once", retries=1, retry_delay=0, retry_on=[name])
    async def pay() -> None:
        async with current_task().transaction():
            raise error

    async with app.running():
        task = await pay.enqueue()
        with pytest.raises(TaskFailed, match=f"{name}: mine"):
            await task.result(timeout=10)
        assert (await task.status()).attempt == 2


async def test_a_task_cancelled_inside_its_transaction_leaves_no_effect(app: App, effects: Any) -> None:
    inside = asyncio.Event()

    @app.job(delivery="effectively_once")
    async def pay() -> None:
        async with current_task().transaction() as own:
            await write_effect(own)
            inside.set()
            await asyncio.Event().wait()

    async with app.running():
        task = await pay.enqueue()
        await inside.wait()
        await task.cancel()
        with pytest.raises(TaskFailed) as failed:
            await task.result(timeout=10)
        assert failed.value.state == "cancelled"
    assert await effects() == []


async def test_an_at_most_once_task_that_fails_is_not_tried_again(app: App) -> None:
    ran = []

    @app.job(delivery="at_most_once")
    async def pay() -> None:
        ran.append(1)
        raise RuntimeError("no")

    async with app.running():
        task = await pay.enqueue()
        with pytest.raises(TaskFailed) as failed:
            await task.result(timeout=10)
        assert (failed.value.state, failed.value.error_code) == ("failed", "handler_error")
    assert ran == [1]


async def test_an_at_most_once_task_that_is_stopped_in_the_middle_is_lost(app: App) -> None:
    began = asyncio.Event()

    @app.job(delivery="at_most_once")
    async def pay() -> None:
        began.set()
        await asyncio.Event().wait()

    async with app:
        task = await pay.enqueue()
        async with app.running():
            await began.wait()
        status = await task.status()
    assert (status.state, status.error_code) == ("lost", "shutdown")


async def test_a_task_that_its_agent_must_let_go_of_runs_again_unless_it_runs_at_most_once(app: App) -> None:
    gate = asyncio.Event()

    async def waits() -> int:
        await gate.wait()
        return 1

    repeated = app.job(name="repeated", retries=1, retry_delay="10ms")(waits)
    once = app.job(name="once", delivery="at_most_once")(waits)
    async with app.running():
        tasks = [await repeated.enqueue(), await once.enqueue()]
        for task in tasks:
            await eventually(lambda task=task: is_running(task))  # type: ignore[misc]
        assert app.engine is not None
        gate.set()
        app.engine.agent.runner.stop_all("lost")  # as it does before its lease ends, if it could not renew it
        assert await tasks[0].result(timeout=10) == 1
        with pytest.raises(TaskFailed) as failed:
            await tasks[1].result(timeout=10)
    assert (failed.value.state, failed.value.error_code) == ("lost", "lost")


async def is_running(task: Task[Any]) -> bool:
    return (await task.status()).state == "running"
