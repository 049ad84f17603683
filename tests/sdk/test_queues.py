"""Full queues and start deadlines, as an application sees them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import App, QueueFull, TaskFailed, ValidationError
from mainspring.errors import InvalidTransition
from mainspring.store.postgres.database import Connection
from tests.conftest import eventually


async def test_an_agent_starts_nothing_after_the_deadline(app: App) -> None:
    started = []

    @app.job
    async def slow(number: int) -> None:
        started.append(number)
        if not number:
            await asyncio.sleep(0.6)

    async with app.running(slots=1):
        first = await slow.enqueue(0)
        late = await slow.using(expires="200ms").enqueue(1)
        with pytest.raises(TaskFailed, match="deadline") as failed:
            await late.result()
        await first.result()
    assert (failed.value.state, failed.value.error_code, started) == ("skipped", "expired", [0])


@pytest.mark.parametrize("wrong", [0, -1, "soon", "11 years"])
async def test_what_is_no_deadline(app: App, wrong: Any) -> None:
    @app.job
    async def slow() -> None: ...

    with pytest.raises(ValidationError) as refused:
        slow.using(expires=wrong)
    assert refused.value.field == "expires"


async def test_a_full_queue_raises_or_is_waited_for(app: App) -> None:
    free = asyncio.Event()

    @app.job(max_queued=2)
    async def import_file(name: str) -> None:
        await free.wait()

    async with app.running(slots=1):
        running = await import_file.enqueue("a")

        async def runs() -> bool:
            return (await running.status()).state == "running"

        await eventually(runs)
        waiting = await import_file.enqueue_many(["b", "c"])
        with pytest.raises(QueueFull) as full:
            await import_file.enqueue("d")
        assert (full.value.limit, full.value.waiting, full.value.retry_after) == (2, 2, 60)
        with pytest.raises(QueueFull):
            await import_file.using(if_full="wait", timeout="100ms").enqueue("d")
        patient = asyncio.create_task(import_file.using(if_full="wait").enqueue("d"))
        await asyncio.sleep(0.1)
        assert not patient.done()
        free.set()
        last = await patient
        await asyncio.gather(running.result(), last.result(), *(task.result() for task in waiting))


async def test_a_waiting_task_gets_another_priority_and_time(app: App) -> None:
    @app.job
    async def import_file(name: str) -> str:
        return name

    async with app.running():
        task = await import_file.using(delay="1h", expires="10m").enqueue("a")
        later = datetime.now(UTC) + timedelta(hours=2)
        await task.edit(priority="high", run_at=later)
        view = await task.status()
        assert (view.priority, view.run_at, view.expires_at) == (7, later, later + timedelta(minutes=10))
        await task.edit(now=True)
        assert await task.result() == "a"
        with pytest.raises(InvalidTransition):
            await task.edit(now=True)


async def test_waiting_and_a_transaction_exclude_each_other(app: App, conn: Connection) -> None:
    @app.job(max_queued=1)
    async def import_file() -> None: ...

    with pytest.raises(ValidationError, match="must not wait"):
        import_file.using(if_full="wait", conn=conn)
    wrong: Any = "drop"
    with pytest.raises(ValidationError, match="use raise or wait"):
        import_file.using(if_full=wrong)


async def test_sync_code_waits_too(app: App) -> None:
    @app.job(max_queued=1)
    async def import_file() -> None: ...

    async with app:
        await import_file.enqueue()
        patient = import_file.using(if_full="wait", timeout="50ms")
        with pytest.raises(QueueFull):
            await asyncio.to_thread(patient.enqueue_sync)


async def test_tags_and_options_are_kept(app: App, conn: Connection) -> None:
    @app.job
    async def build() -> None: ...

    async with app:
        task = await build.using(tags=["nightly", "core"], timeout="5m", retries=7).enqueue()
        options = await conn.fetchval("select options from mainspring.task where id = $1", task.id)
    assert options == '{"tags": ["nightly", "core"], "retries": 7, "timeout": 300}'
    for wrong in (["x"] * 11, ["x" * 51], [""], "word", [7]):
        given: Any = wrong
        with pytest.raises(ValidationError, match="tags"):
            build.using(tags=given)
