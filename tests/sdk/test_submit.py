"""Submission: when, how urgent, under which key, after which tasks; one, many, and from sync code."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import App, Job, JobNotFound, Task, TaskFailed, ValidationError
from mainspring.compose import stores
from mainspring.store.postgres.database import Connection
from tests.conftest import eventually


@pytest.fixture
def echo(app: App) -> Job[..., Any]:
    @app.job
    async def echo(value: Any = None, *, extra: int = 0) -> Any:
        return [value, extra]

    return echo


async def count(conn: Connection) -> int:
    return int(await conn.fetchval("select count(*) from mainspring.task"))


# ── when ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_delay_is_counted_from_the_databases_now(app: App, echo: Job[..., Any], conn: Connection) -> None:
    async with app:
        task = await echo.using(delay="1h30m").enqueue()
        apart = await conn.fetchval("select run_at - created_at from mainspring.task where id = $1", task.id)
    assert apart == timedelta(minutes=90)


async def test_run_at_is_kept_to_the_microsecond(app: App, echo: Job[..., Any]) -> None:
    at = datetime(2100, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    async with app:
        assert (await (await echo.using(run_at=at).enqueue()).status()).run_at == at


async def test_a_delayed_task_does_not_start_before_its_time(app: App, echo: Job[..., Any]) -> None:
    async with app.running():
        task = await echo.using(delay="300ms").enqueue()
        await task.result(timeout=10)
        status = await task.status()
    assert status.lateness_ms is not None
    assert status.lateness_ms >= 0


@pytest.mark.parametrize(
    ("using", "field"),
    [
        ({"delay": 1, "run_at": datetime(2026, 11, 15, tzinfo=UTC)}, "run_at"),
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"delay": "11y"}, "delay"),
        ({"run_at": datetime(2026, 11, 15)}, "run_at"),
        ({"run_at": "2026-11-15"}, "run_at"),
        ({"run_at": datetime(1969, 12, 31, tzinfo=UTC)}, "run_at"),
        ({"run_at": datetime(2200, 1, 1, tzinfo=UTC)}, "run_at"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": -1}, "priority"),
        ({"key": ""}, "key"),
        ({"key": "k" * 201}, "key"),
        ({"key": "a\nb"}, "key"),
        ({"key": "k", "key_ttl": 0}, "key_ttl"),
    ],
)
def test_a_bad_way_to_submit_is_refused_by_name(using: dict[str, Any], field: str) -> None:
    @App().job
    async def report() -> None: ...

    with pytest.raises(ValidationError) as refused:
        report.using(**using)
    assert refused.value.field == field


# ── priorities, keys, dependencies ──────────────────────────────────────────────────────────────────


async def test_the_more_urgent_goes_first_and_equals_in_the_order_of_submission(app: App) -> None:
    order: list[str] = []

    @app.job(priority=1)
    async def step(name: str) -> None:
        order.append(name)

    async with app:
        tasks = [
            await step.enqueue("least"),
            await step.using(priority="low").enqueue("low"),
            await step.using(priority="normal").enqueue("first normal"),
            await step.using(priority=5).enqueue("second normal"),
            await step.using(priority="critical").enqueue("critical"),
            await step.using(priority="high").enqueue("high"),
        ]
        async with app.running(slots=1):
            for task in tasks:
                await task.result(timeout=10)
    assert order == ["critical", "high", "first normal", "second normal", "low", "least"]


async def test_a_second_submission_of_a_key_gives_the_first_task(app: App, echo: Job[..., Any]) -> None:
    async with app.running():
        first = await echo.using(key="r:15").enqueue(1)
        assert (await echo.using(key="r:15").enqueue(2)).id == first.id
        assert await first.result(timeout=10) == [1, 0]
        assert (await echo.using(key="r:15").enqueue(3)).id == first.id, "also when it has ended"
        assert (await echo.using(key="r:16").enqueue(3)).id != first.id
        assert (await first.status()).key == "r:15"


async def test_an_expired_key_is_free_again(app: App, echo: Job[..., Any]) -> None:
    async with app:
        first = await echo.using(key="k", key_ttl="1ms").enqueue()

        async def given_anew() -> bool:
            return (await echo.using(key="k", key_ttl="1ms").enqueue()).id != first.id

        await eventually(given_anew)


async def test_submissions_of_one_key_at_once_make_one_task(app: App, echo: Job[..., Any], conn: Connection) -> None:
    async with app:
        tasks = await asyncio.gather(*(echo.using(key="k").enqueue(number) for number in range(20)))
    assert len({task.id for task in tasks}) == 1
    assert await count(conn) == 1


async def test_a_task_waits_for_those_it_comes_after(app: App) -> None:
    ended: list[str] = []
    gate = asyncio.Event()

    @app.job
    async def slow() -> None:
        await gate.wait()
        ended.append("slow")

    @app.job
    async def quick(name: str) -> None:
        ended.append(name)

    async with app.running():
        parents = [await slow.enqueue(), await quick.enqueue("quick")]
        child = await quick.using(after=parents).enqueue("child")
        grandchild = await quick.using(after=child).enqueue("grandchild")
        await parents[1].result(timeout=10)

        async def waits_for_one() -> bool:
            return (await child.status()).waiting_for == [parents[0].id]

        await eventually(waits_for_one)
        assert (await child.status()).state == "blocked"
        gate.set()
        await grandchild.result(timeout=10)
    assert ended == ["quick", "slow", "child", "grandchild"]


async def test_what_comes_after_a_failed_task_is_skipped_with_all_that_follows(app: App) -> None:
    @app.job(retries=0)
    async def fails() -> None:
        raise RuntimeError("no")

    @app.job
    async def never() -> None:
        raise AssertionError("ran")

    async with app:
        parent = await fails.enqueue()
        child = await never.using(after=parent).enqueue()
        grandchild = await never.using(after=child).enqueue()
        async with app.running():
            for task, cause in ((child, parent), (grandchild, child)):
                with pytest.raises(TaskFailed, match=f"task {cause.id}, which it waits for") as failed:
                    await task.result(timeout=10)
                assert (failed.value.state, failed.value.error_code) == ("skipped", "dependency")


async def test_to_come_after_a_task_that_failed_or_never_was_is_refused(
    app: App, echo: Job[..., Any], conn: Connection
) -> None:
    @app.job(retries=0)
    async def fails() -> None:
        raise RuntimeError("no")

    async with app.running():
        failed = await fails.enqueue()
        with pytest.raises(TaskFailed):
            await failed.result(timeout=10)
        with pytest.raises(ValidationError, match="did not succeed") as refused:
            await echo.using(after=failed).enqueue()
        assert refused.value.field == "after"
        assert await count(conn) == 0


# ── many ────────────────────────────────────────────────────────────────────────────────────────────


async def test_many_calls_may_be_tuples_dicts_or_single_arguments(app: App, echo: Job[..., Any]) -> None:
    async with app.running():
        tasks = await echo.enqueue_many([("a",), {"value": "b", "extra": 2}, "c", [1, 2], ()])
        assert [await task.result(timeout=10) for task in tasks] == [
            ["a", 0],
            ["b", 2],
            ["c", 0],
            [[1, 2], 0],
            [None, 0],
        ]
        assert [task.id for task in tasks] == sorted(task.id for task in tasks)


async def test_many_tasks_are_one_statement(app: App, echo: Job[..., Any], conn: Connection) -> None:
    async with app:
        await echo.enqueue_many(["warm"])
        async with app.database.acquire() as own:
            queries: list[str] = []
            own.add_query_logger(lambda record: queries.append(record.query))  # type: ignore[attr-defined]
        await echo.using(priority="high", delay="1h").enqueue_many(range(500))
    assert len(queries) == 1, queries
    assert "mainspring.enqueue_many" in queries[0]
    assert await conn.fetchval("select count(*) from mainspring.task where priority = 7") == 500


async def test_a_bad_item_is_named_and_nothing_is_written(app: App, echo: Job[..., Any], conn: Connection) -> None:
    async with app:
        with pytest.raises(ValidationError, match=r"^calls\[2\]: args: ") as refused:
            await echo.enqueue_many(["a", "b", {"unknown": 1}, "d"])
        assert refused.value.field == "args"
        with pytest.raises(ValidationError, match=r"^calls\[1\]: args: .* not a JSON number"):
            await echo.enqueue_many([1.0, float("nan")])
    assert await count(conn) == 0


async def test_many_of_nothing_is_nothing(app: App, echo: Job[..., Any]) -> None:
    assert await echo.enqueue_many([]) == []


@pytest.mark.parametrize("field", ["key", "after"])
async def test_a_key_or_a_parent_belongs_to_one_task(app: App, echo: Job[..., Any], field: str) -> None:
    using: dict[str, Any] = {"key": "k"} if field == "key" else {"after": []}
    with pytest.raises(ValidationError, match="belong to a single task"):
        await echo.using(**using).enqueue_many([1])


# ── opening by itself ───────────────────────────────────────────────────────────────────────────────


async def test_the_first_submission_opens_the_application(app: App, echo: Job[..., Any], conn: Connection) -> None:
    await echo.enqueue()
    assert await count(conn) == 1
    await app.close()


async def test_first_submissions_at_once_open_it_once(
    app: App, echo: Job[..., Any], conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    register = stores.register

    async def counted(*given: Any) -> None:
        opened.append(given)
        await register(*given)

    monkeypatch.setattr(stores, "register", counted)
    await asyncio.gather(*(echo.enqueue(number) for number in range(10)))
    assert len(opened) == 1
    assert await count(conn) == 10
    await app.close()  # of all connections, or the fixture `dsn` says so


async def test_a_status_opens_the_application_as_a_submission_does(app: App, echo: Job[..., Any]) -> None:
    task = await echo.enqueue()
    await app.close()
    with pytest.raises(ValidationError, match="`async with app:`"):
        _ = app.database
    assert (await task.status()).state == "pending"
    await task.cancel()
    await app.close()


# ── from sync code ──────────────────────────────────────────────────────────────────────────────────

SCRIPT = """
import threading
import mainspring

app = mainspring.App(dsn={dsn!r})

@app.job
async def echo(value: int) -> int:
    return value

ids = []

def submit(value):
    ids.append(echo.using(delay="1h").enqueue_sync(value).id)

threads = [threading.Thread(target=submit, args=[number]) for number in range(5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*ids)
"""


async def test_sync_code_submits_without_an_event_loop_of_its_own(dsn: str, conn: Connection) -> None:
    script = SCRIPT.format(dsn=dsn)
    command = [sys.executable, "-W", "error", "-c", script]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    ids = {row["id"] for row in await conn.fetch("select id from mainspring.task")}
    assert {int(line) for line in ended.stdout.split()} == ids
    assert len(ids) == 5


@pytest.fixture
def closing(app: App) -> Iterator[None]:
    yield
    app._sync.close()


@pytest.mark.usefixtures("closing")
def test_sync_code_gets_the_errors_of_async_code(app: App) -> None:
    @app.job
    async def echo(value: int) -> None: ...

    with pytest.raises(ValidationError):
        echo.enqueue_sync("a", "b")  # type: ignore[call-arg, arg-type]
    with pytest.raises(ValidationError, match="after: task 99 does not exist"):
        echo.using(after=[Task(app, 99, "echo")]).enqueue_sync(1)


async def test_a_thread_submits_to_the_running_application(app: App, echo: Job[..., Any]) -> None:
    async with app.running():
        task = await asyncio.to_thread(echo.enqueue_sync, 5)
        assert await task.result(timeout=10) == [5, 0]


async def test_a_sync_handler_submits_the_next_task(app: App, echo: Job[..., Any]) -> None:
    @app.job
    def first() -> int:
        return echo.enqueue_sync("second").id

    async with app.running():
        second = await (await first.enqueue()).result(timeout=10)
        assert await app.wait_for(second, 10) == ["second", 0]


async def test_sync_submission_in_async_code_is_refused(app: App, echo: Job[..., Any]) -> None:
    async with app:
        with pytest.raises(ValidationError, match="use `await enqueue\\(\\)`") as refused:
            echo.enqueue_sync()
    assert refused.value.field == "enqueue_sync"


async def test_a_job_that_was_deleted_is_not_found(app: App, echo: Job[..., Any], conn: Connection) -> None:
    async with app:
        await conn.execute("delete from mainspring.job")
        with pytest.raises(JobNotFound, match="no job named 'echo'"):
            await echo.enqueue()
        with pytest.raises(JobNotFound, match="no job named 'echo'"):
            await echo.enqueue_many([1])
