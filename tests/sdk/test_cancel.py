"""Cancelling a task, wherever it is in its life."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mainspring import App, InvalidTransition, Task, TaskFailed, current_task
from mainspring.server.recovery import rescuer
from mainspring.store.postgres.database import Connection
from tests.conftest import eventually


async def assert_cancelled(task: Task[Any], message: str) -> None:
    with pytest.raises(TaskFailed, match=message) as failed:
        await task.result(timeout=10)
    assert (failed.value.state, failed.value.error_code) == ("cancelled", "cancelled")
    with pytest.raises(InvalidTransition, match=r"has already ended \(cancelled\); nothing to cancel"):
        await task.cancel()


async def in_state(task: Task[Any], state: str) -> None:
    async def there() -> bool:
        return (await task.status()).state == state

    await eventually(there)


async def test_a_blocked_task_is_cancelled_at_once_and_its_children_are_skipped(app: App) -> None:
    @app.job
    async def step() -> None: ...

    async with app:
        parent = await step.using(delay="1h").enqueue()
        child = await step.using(after=parent).enqueue()
        grandchild = await step.using(after=child).enqueue()
        await child.cancel()
        assert (await child.status()).state == "cancelled"
        async with app.running():
            await assert_cancelled(child, "cancelled before it started")
            with pytest.raises(TaskFailed) as skipped:
                await grandchild.result(timeout=10)
            assert skipped.value.state == "skipped"
            assert (await parent.status()).state == "pending"


async def test_a_pending_task_is_cancelled_at_once(app: App) -> None:
    @app.job
    async def later() -> None: ...

    async with app:
        task = await later.using(delay="1h").enqueue()
        await task.cancel()
        status = await task.status()
        assert (status.state, status.attempt, status.started_at) == ("cancelled", 0, None)
        await assert_cancelled(task, "cancelled before it started")


async def test_a_task_that_is_armed_ahead_of_its_time_never_starts(app: App) -> None:
    ran = []

    @app.job
    async def soon() -> None:
        ran.append(1)

    async with app.running(lead=30.0):
        task = await soon.using(delay="20s").enqueue()
        await in_state(task, "assigned")
        await task.cancel()
        await assert_cancelled(task, "cancelled before it started")
        assert (await task.status()).started_at is None
    assert ran == []


async def test_a_running_async_handler_is_interrupted_and_can_clean_up(app: App) -> None:
    cleaned = asyncio.Event()

    @app.job(retries=3, retry_delay=0)
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            assert current_task().cancelled
            cleaned.set()

    async with app.running():
        task = await endless.enqueue()
        await in_state(task, "running")
        await task.cancel()
        await assert_cancelled(task, "cancelled while it ran")
    assert cleaned.is_set()


async def test_a_handler_that_fails_on_the_way_out_is_cancelled_all_the_same(app: App) -> None:
    ran = []

    @app.job(retries=3, retry_delay=0)
    async def clumsy() -> None:
        ran.append(current_task().attempt)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("the clean-up failed") from None

    async with app.running():
        task = await clumsy.enqueue()
        await in_state(task, "running")
        await task.cancel()
        await assert_cancelled(task, "cancelled while it ran")
    assert ran == [1]


async def test_a_running_sync_handler_is_interrupted(app: App) -> None:
    stopped = threading.Event()

    @app.job(retries=3, retry_delay=0)
    def endless() -> None:
        try:
            while True:
                time.sleep(0.005)
        finally:
            stopped.set()

    async with app.running():
        task = await endless.enqueue()
        await in_state(task, "running")
        await task.cancel()
        await assert_cancelled(task, "cancelled while it ran")
    assert stopped.is_set()


async def test_a_sync_handler_may_ask_whether_it_was_cancelled(app: App) -> None:
    @app.job(retries=3, retry_delay=0)
    def asks() -> None:
        while True:
            current_task().raise_if_cancelled()

    async with app.running():
        task = await asks.enqueue()
        await in_state(task, "running")
        await task.cancel()
        await assert_cancelled(task, "cancelled while it ran")


def living(pids: Path) -> list[str]:
    return [pid for pid in pids.read_text().split() if Path("/proc", pid).exists()]


async def test_a_cancelled_command_ends_with_its_whole_process_group(app: App, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"""
        trap '' TERM                                  # neither of them goes by itself
        sleep 600 & echo $! >> {pids}
        (sh -c 'sleep 600 & echo $! >> {pids}; wait') &
        echo $$ >> {pids}; echo ready
        wait; wait; sleep 600
    """
    family = app.command("family", script, shell=True, retries=3, grace="200ms")
    async with app.running():
        task = await family.enqueue()

        async def has_three() -> bool:
            return pids.exists() and len(pids.read_text().split()) == 3

        await eventually(has_three)
        await task.cancel()
        await assert_cancelled(task, "cancelled while it ran")
        assert living(pids) == []


async def test_another_process_may_cancel_what_runs_here(app: App, dsn: str) -> None:
    @app.job
    async def endless() -> None:
        await asyncio.Event().wait()

    async with app.running(), App("elsewhere", dsn=dsn) as other:
        task = await endless.enqueue()
        await in_state(task, "running")
        await Task[None](other, task.id, "endless").cancel()
        await assert_cancelled(task, "cancelled while it ran")


async def test_a_task_that_has_succeeded_is_not_cancelled(app: App, conn: Connection) -> None:
    @app.job
    async def quick() -> int:
        return 1

    async with app.running():
        task = await quick.enqueue()
        await task.result(timeout=10)
        with pytest.raises(InvalidTransition, match="has already succeeded"):
            await task.cancel()
        assert await task.result(timeout=20) == 1


async def test_a_cancelled_task_may_be_run_again(app: App) -> None:
    gate = asyncio.Event()

    @app.job
    async def waits() -> int:
        await gate.wait()
        return 1

    async with app.running():
        task = await waits.enqueue()
        await in_state(task, "running")
        await task.cancel()
        await assert_cancelled(task, "cancelled while it ran")
        gate.set()
        await task.retry()
        assert await task.result(timeout=10) == 1


async def test_an_attempt_that_the_database_takes_from_a_living_agent_is_stopped_there(
    app: App, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent knows of no timeout: so it does not end what, for the server, should have ended."""
    monkeypatch.setattr(rescuer, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(rescuer, "MARGIN", -30.0)  # two leases
    monkeypatch.setattr(rescuer, "STOPS_WITHIN", 0.5)
    stopped = []

    @app.job(retries=1, retry_delay=0)
    async def hang() -> int:
        if current_task().attempt == 1:
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append(time.monotonic())
        return len(stopped)

    async with app.running():
        task = await hang.enqueue()
        await in_state(task, "running")
        await conn.execute("""update mainspring.job set definition = definition || '{"timeout": 0.2, "grace": 0}'""")
        assert await task.result(timeout=10) == 1, "it had stopped before it ran again"
    first = await conn.fetchrow("select state, error, session from mainspring.attempt where task_id = $1", task.id)
    assert first["state"] == 12
    assert first["error"].endswith("did not end it either")
    assert await conn.fetchval("select count(*) from mainspring.stop_order") == 0
