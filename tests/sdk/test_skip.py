"""Skipping a task by its handle: one that waits, one that an agent has, one that runs."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import App, InvalidTransition, TaskFailed
from tests.sdk.test_cancel import in_state


async def test_a_waiting_task_is_skipped_with_its_children(app: App) -> None:
    @app.job
    async def step() -> None: ...

    async with app:
        parent = await step.using(delay="1h").enqueue()
        child = await step.using(after=parent).enqueue()
        await parent.skip("release night")
        status = await parent.status()
        assert (status.state, status.error_code) == ("skipped", "skipped")
        assert status.error is not None
        assert status.error.startswith("skipped by ")
        assert status.error.endswith(": release night")
        async with app.running():
            with pytest.raises(TaskFailed) as skipped:
                await child.result(timeout=10)
            assert (skipped.value.state, skipped.value.error_code) == ("skipped", "dependency")


async def test_a_task_that_an_agent_has_is_given_back_and_skipped(app: App) -> None:
    started: list[int] = []

    @app.job
    async def soon() -> None:
        started.append(1)

    async with app, app.running():
        task = await soon.using(delay="3s").enqueue()  # within the lead of 5 s: it is armed at once
        await in_state(task, "assigned")
        await task.skip()
        with pytest.raises(TaskFailed) as skipped:
            await task.result(timeout=10)
        assert (skipped.value.state, skipped.value.error_code) == ("skipped", "skipped")
        await task.retry()
        await task.result(timeout=10)
        assert started == [1], "once, by the retry"


async def test_a_running_task_is_refused(app: App) -> None:
    @app.job
    async def endless() -> None:
        await asyncio.sleep(600)

    async with app, app.running():
        task = await endless.enqueue()
        await in_state(task, "running")
        with pytest.raises(InvalidTransition, match="mainspring task cancel"):
            await task.skip()
        assert (await task.status()).state == "running"
        await task.cancel()


async def test_sync_code_skips(app: App) -> None:
    @app.job
    def later() -> None: ...

    async with app:
        task = await later.using(delay="1h").enqueue()
        await asyncio.to_thread(task.skip_sync, "not today")
        assert (await task.status()).state == "skipped"
