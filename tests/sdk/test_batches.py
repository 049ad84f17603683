"""Batches: tasks that are counted together, with callbacks when they end; from async and sync code, and over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import psycopg
import pytest

import mainspring
from mainspring import App, BatchEnded, BatchNotFound, Job, JobNotFound, ValidationError, WaitTimeout, current_task
from mainspring.model.flows.batches import TaskBatch
from mainspring.store.postgres.database import Connection
from tests.conftest import eventually
from tests.sdk.test_over_http import api_of


class Work:
    """Jobs that tell what they saw."""

    def __init__(self, app: App) -> None:
        self.called: list[tuple[str, TaskBatch | None]] = []
        self.ran: list[int] = []
        self.release = asyncio.Event()

        @app.job(retries=0)
        async def load(number: int) -> None:
            self.ran.append(number)
            batch = current_task().batch
            if number == 100:
                await self.load.using(batch=batch).enqueue_many([101, 102])
            if number == 13:
                raise mainspring.Fail("unlucky")
            if number == 7:
                await self.release.wait()

        @app.job
        async def told(word: str = "nothing") -> None:
            self.called.append((word, current_task().batch))

        self.load: Job[[int], None] = load
        self.told: Job[..., Any] = told

    @property
    def callbacks(self) -> dict[str, Any]:
        return {f"on_{event}": self.told.with_args(event) for event in ("success", "complete", "failure")}

    async def words(self, *expected: str) -> list[str]:
        """Once there are as many."""

        async def there() -> bool:
            return len(self.called) >= len(expected)

        await eventually(there)
        return sorted(word for word, _ in self.called)


@pytest.fixture
def work(app: App) -> Work:
    return Work(app)


# ── its life ────────────────────────────────────────────────────────────────────────────────────


async def test_a_batch_ends_with_its_last_task_and_calls_back(app: App, work: Work) -> None:
    async with app.running():
        async with app.batch("import", **work.callbacks) as batch:
            await work.load.using(batch=batch).enqueue_many(range(5))
            single = await work.load.using(batch=batch, delay="10ms").enqueue(5)
        view = await batch.wait(timeout=20)
        assert (view.state, view.outcome, view.total, view.succeeded) == ("ended", "succeeded", 6, 6)
        assert (await single.status()).batch == batch.id
        assert await work.words("success", "complete") == ["complete", "success"]
        _, seen = work.called[0]
        assert seen is not None
        assert (seen.id, seen.name, seen.counts and seen.counts.succeeded) == (batch.id, "import", 6)
        called = {one.event: one.task for one in view.callbacks if one.task}
        assert called.keys() == {"success", "complete"}
        shown = await app.task(called["success"]).status()
        assert (shown.batch, shown.callback_of) == (None, batch.id)


async def test_tasks_of_a_batch_add_to_it_while_it_is_closed(app: App, work: Work) -> None:
    async with app.running():
        async with app.batch("grows", on_complete=work.told) as batch:
            await work.load.using(batch=batch).enqueue(100)
        view = await batch.wait(timeout=20)
        assert (view.total, view.succeeded) == (3, 3)
        assert sorted(work.ran) == [100, 101, 102]
        with pytest.raises(BatchEnded) as refused:
            await work.load.using(batch=batch).enqueue(1)
        assert refused.value.details["id"] == batch.id
        with pytest.raises(BatchEnded):
            await work.load.using(batch=batch.id).enqueue_many([1, 2])
        with pytest.raises(BatchNotFound):
            await work.load.using(batch=4711).enqueue(1)
        with pytest.raises(BatchNotFound):
            await app.existing_batch(4711).status()


async def test_what_failed_is_named_and_retried(app: App, work: Work) -> None:
    async with app.running():
        async with app.batch("unlucky", **work.callbacks) as batch:
            [bad, _] = await work.load.using(batch=batch).enqueue_many([13, 1])
        view = await batch.wait(timeout=20)
        assert (view.outcome, view.failed, view.failed_ids) == ("failed", 1, [bad.id])
        assert await work.words("failure", "complete") == ["complete", "failure"]
        seen = dict(work.called)["complete"]
        assert seen is not None
        assert seen.failed_ids == (bad.id,)
        await batch.retry_failed()
        view = await batch.wait(timeout=20)
        assert (view.outcome, view.failed, len(work.called)) == ("failed", 1, 2)
        await batch.retry_failed(callbacks_again=True)
        await batch.wait(timeout=20)
        assert await work.words(*"1234") == ["complete", "complete", "failure", "failure"]


async def test_a_batch_is_cancelled_with_what_waits_and_what_runs(app: App, work: Work) -> None:
    async with app.running():
        async with app.batch("gone", **work.callbacks) as batch:
            running = await work.load.using(batch=batch).enqueue(7)
            await work.load.using(batch=batch, delay="1h").enqueue_many([1, 2, 3])
        await eventually(lambda: _is_running(running))
        view = await batch.status()
        assert (view.live, view.progress) == (4, 0.0)
        await batch.cancel()
        view = await batch.wait(timeout=20)
        assert (view.outcome, view.cancelled) == ("cancelled", 4)
        assert await work.words("complete") == ["complete"]
        with pytest.raises(BatchEnded, match="nothing to cancel"):
            await batch.cancel()


async def _is_running(task: mainspring.Task[Any]) -> bool:
    return (await task.status()).state == "running"


async def test_an_exception_in_the_block_cancels_the_batch(app: App, work: Work) -> None:
    async with app.running():
        with pytest.raises(ZeroDivisionError):
            async with app.batch("half", **work.callbacks) as batch:
                await work.load.using(batch=batch, delay="1h").enqueue(1)
                raise ZeroDivisionError
        assert (await batch.wait(timeout=20)).outcome == "cancelled"
        assert await work.words("complete") == ["complete"]


async def test_batches_within_a_batch(app: App, work: Work) -> None:
    async with app.running():
        async with app.batch("outer", on_success=work.told.with_args("outer")) as outer:
            for number in range(3):
                async with app.batch(f"inner {number}", parent=outer) as inner:
                    await work.load.using(batch=inner).enqueue_many([1, 2])
        view = await outer.wait(timeout=20)
        assert (view.outcome, view.total, view.succeeded) == ("succeeded", 3, 3)
        assert (await inner.status()).parent == outer.id
        assert await work.words("outer") == ["outer"]


async def test_a_wait_gives_up_in_time_and_the_batch_goes_on(app: App, work: Work) -> None:
    async with app:
        async with app.batch("slow") as batch:
            await work.load.using(batch=batch, delay="1h").enqueue(1)
        with pytest.raises(WaitTimeout, match="it goes on"):
            await batch.wait(timeout=0.05)
        assert (await batch.status()).state == "closed"


async def test_a_task_that_completes_by_transaction_counts_once(app: App, work: Work) -> None:
    @app.job
    async def once() -> None:
        async with current_task().transaction() as conn:
            await conn.execute("select 1")

    async with app.running():
        async with app.batch("once") as batch:
            await once.using(batch=batch).enqueue_many([(), ()])
        view = await batch.wait(timeout=20)
        assert (view.outcome, view.total, view.succeeded) == ("succeeded", 2, 2)


# ── in the caller's own transaction, and from sync code ─────────────────────────────────────────


async def test_a_batch_in_the_callers_transaction_commits_or_goes_with_it(app: App, work: Work, dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    async with app:
        with pytest.raises(ZeroDivisionError):
            async with conn.transaction():
                async with app.batch("undone", conn=conn) as batch:
                    await work.load.using(batch=batch, conn=conn).enqueue(1)
                raise ZeroDivisionError
        with pytest.raises(BatchNotFound):
            await batch.status()
        async with conn.transaction(), app.batch("done", conn=conn) as batch:
            await work.load.using(batch=batch, conn=conn).enqueue(1)
            with pytest.raises(BatchNotFound):
                await app.existing_batch(batch.id).status()  # by another connection
        assert ((await batch.status()).state, (await batch.status()).total) == ("closed", 1)
    await conn.close()


def test_sync_code_uses_with(app: App, work: Work, dsn: str) -> None:
    with app.batch("sync", on_complete=work.told) as batch:
        work.load.using(batch=batch, delay="1h").enqueue_sync(1)
    assert batch.status_sync().state == "closed"
    batch.cancel_sync()
    with psycopg.connect(dsn) as conn, app.batch("psycopg", conn=conn) as theirs:
        work.load.using(batch=theirs, conn=conn).enqueue_many_sync([1, 2])
    assert theirs.status_sync().total == 2
    with pytest.raises(ZeroDivisionError), app.batch("half") as half:
        raise ZeroDivisionError
    assert half.status_sync().cancelled_at is not None
    by_hand = app.batch("by hand").open_sync()
    assert by_hand.close_sync()
    assert not by_hand.close_sync()
    assert by_hand.wait_sync(timeout=5).outcome == "succeeded"
    app.call_sync("close", app.close)


# ── over HTTP, and from an agent without a database ─────────────────────────────────────────────


async def test_a_producer_without_a_database_has_batches_too(app: App, work: Work, dsn: str) -> None:
    async with app.running(), api_of(dsn) as (url, token), App("test", url=url, token=token) as producer:
        there = Work(producer)
        async with producer.batch("remote", on_success=there.told.with_args("success")) as batch:
            await there.load.using(batch=batch).enqueue_many([1, 2, 3])
            await there.load.using(batch=batch).enqueue(4)
        view = await batch.wait(timeout=20)
        assert (view.outcome, view.total, view.created_by) == ("succeeded", 4, "token:producer")
        assert await work.words("success") == ["success"]
        assert not await batch.close()
        with pytest.raises(BatchEnded):
            await there.load.using(batch=batch).enqueue_many([1])
        with pytest.raises(JobNotFound):
            await producer.batch("x", on_success=producer.command("unknown", ["true"])).open()
        conn = await asyncpg.connect(dsn)
        with pytest.raises(ValidationError, match="needs a database"):
            await producer.batch("x", conn=conn).open()
        await conn.close()


# ── what is refused ─────────────────────────────────────────────────────────────────────────────


def test_a_wrong_callback_is_refused_by_name(app: App, work: Work) -> None:
    for given, why in (
        (work.load, "with_args"),
        ("load", "not a job"),
        (lambda: None, "not a job"),
    ):
        with pytest.raises(ValidationError, match=why) as refused:
            app.batch("x", on_failure=given)  # type: ignore[arg-type]
        assert refused.value.field == "on_failure"
    with pytest.raises(ValidationError, match="on_failure: .* priority only"):
        app.batch("x", on_failure=work.told.using(delay="1h").with_args())
    assert work.told.using(priority="high").with_args("x").priority == "7"
    for name in ("", "a\nb", "n" * 201):
        with pytest.raises(ValidationError):
            app.batch(name)
    with pytest.raises(ValidationError):
        work.load.using(batch="import")  # type: ignore[arg-type]


async def test_a_callback_has_the_priority_that_was_given(app: App, work: Work, conn: Connection) -> None:
    async with app, app.batch("urgent", on_success=work.told.using(priority="critical").with_args("now")):
        pass
    assert await conn.fetchval("select priority from mainspring.task") == 9


async def test_without_a_batch_there_is_none(app: App) -> None:
    seen: list[object] = []

    @app.job
    async def plain() -> None:
        seen.append(current_task().batch)

    async with app.running():
        await (await plain.enqueue()).result(timeout=20)
    assert seen == [None]
