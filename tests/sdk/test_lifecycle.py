"""Opens are counted: who is inside another's `async with app:` uses what is there, and the last close closes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mainspring import App, Conflict, Job, StoreUnavailable, ValidationError, testing
from mainspring.compose import stores
from mainspring.store.cluster import registry
from mainspring.store.postgres.database import Database
from tests.conftest import eventually


@pytest.fixture
def echo(app: App) -> Job[..., Any]:
    @app.job
    async def echo(value: int = 1) -> int:
        return value

    return echo


async def test_a_nested_block_leaves_the_outer_one_open(app: App, echo: Job[..., Any]) -> None:
    async with app:
        outer = app.database
        async with app:
            assert app.database is outer
        assert app.database is outer
        await echo.enqueue()
    assert app.loop is None


async def test_a_block_inside_of_what_runs_the_jobs_leaves_them_running(app: App, echo: Job[..., Any]) -> None:
    async with app.running():
        async with app:
            assert await (await echo.enqueue(5)).result(timeout=10) == 5
        assert await (await echo.enqueue(6)).result(timeout=10) == 6
    assert app.loop is None


async def test_what_runs_the_jobs_inside_of_a_block_leaves_it_open(app: App, echo: Job[..., Any]) -> None:
    async with app:
        async with app.running():
            assert await (await echo.enqueue()).result(timeout=10) == 1
        assert await (await echo.enqueue()).status(), "it is still open"
    assert app.loop is None


@pytest.mark.usefixtures("server_dsn")
async def test_a_block_inside_of_a_tests_own_run_uses_its_database(app: App, echo: Job[..., Any]) -> None:
    async with testing.running(app) as run:
        dsn = app.database.dsn
        async with app:
            assert app.database.dsn == dsn
        task = await echo.enqueue()
        await run.until_idle()
        assert await task.result(timeout=10) == 1


async def test_a_close_too_many_does_not_stop_what_runs(app: App, echo: Job[..., Any]) -> None:
    async with app.running():
        database = app.database
        await app.close()
        await app.close()
        assert app.database is database
        assert await (await echo.enqueue()).result(timeout=10) == 1
    assert app.loop is None
    await app.close()
    async with app:
        await echo.enqueue()
    assert app.loop is None, "and is not counted against a later open"


async def test_what_a_first_submission_opened_is_closed_by_one_close(app: App, echo: Job[..., Any]) -> None:
    await echo.enqueue()
    assert app.loop is not None
    await app.close()
    assert app.loop is None
    await echo.enqueue()
    async with app:
        pass
    assert app.loop is None, "the last who had it open is gone"


class Refused(Exception):
    pass


class Doorway:
    """Stands in for the way to the database: lets the first ones fail, and waits where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failures: int = 0) -> None:
        self.opened = self.closed = 0
        self.passing = asyncio.Event()
        self.leaving = asyncio.Event()
        self.leaving.set()
        self.arrived = asyncio.Event()
        self.left = asyncio.Event()
        self._failures = failures
        self._real = stores.open_database
        monkeypatch.setattr(stores, "open_database", self._open)

    @asynccontextmanager
    async def _open(self, settings: Any) -> AsyncIterator[Database]:
        self.arrived.set()
        await self.passing.wait()
        if self._failures:
            self._failures -= 1
            raise Refused
        async with self._real(settings) as database:
            self.opened += 1
            yield database
            self.left.set()
            await self.leaving.wait()
            self.closed += 1


async def test_tasks_that_open_at_the_same_time_open_once_and_the_last_closes(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    doorway = Doorway(monkeypatch)
    inside, leave = [], [asyncio.Event(), asyncio.Event()]

    async def use(number: int) -> None:
        async with app:
            inside.append(number)
            await leave[number].wait()
            assert app.database is not None

    users = [asyncio.create_task(use(number)) for number in (0, 1)]
    doorway.passing.set()
    while len(inside) < 2:
        await asyncio.sleep(0)
    leave[0].set()
    await users[0]
    assert (doorway.opened, doorway.closed) == (1, 0)
    leave[1].set()
    await users[1]
    assert (doorway.opened, doorway.closed) == (1, 1)


async def test_an_open_that_fails_is_not_counted(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    doorway = Doorway(monkeypatch, failures=1)
    doorway.passing.set()
    with pytest.raises(Refused):
        await app.open()
    assert app.loop is None
    async with app:
        assert doorway.opened == 1
    assert (app.loop, doorway.closed) == (None, 1)


async def test_an_open_that_is_cancelled_leaves_the_next_one_to_it(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    doorway = Doorway(monkeypatch)
    first = asyncio.create_task(app.open())
    await doorway.arrived.wait()
    second = asyncio.create_task(app.open())
    await asyncio.sleep(0)
    first.cancel()
    doorway.passing.set()
    await second
    assert doorway.opened == 1
    await app.close()
    assert app.loop is None


async def test_who_opens_while_it_closes_gets_a_new_one(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    doorway = Doorway(monkeypatch)
    doorway.passing.set()
    doorway.leaving.clear()
    await app.open()
    closing = asyncio.create_task(app.close())
    await doorway.left.wait()
    opening = asyncio.create_task(app.open())
    await asyncio.sleep(0)
    assert doorway.opened == 1
    doorway.leaving.set()
    await closing
    await opening
    assert (doorway.opened, doorway.closed) == (2, 1)
    await app.close()


async def test_an_application_that_is_about_to_run_does_not_run_twice(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    doorway = Doorway(monkeypatch)
    stop = asyncio.Event()

    async def run() -> None:
        async with app.running():
            await stop.wait()

    first = asyncio.create_task(run())
    await doorway.arrived.wait()
    with pytest.raises(ValidationError, match="slots: this application is running already"):
        async with app.running(slots=7):
            pass
    doorway.passing.set()
    async with app.running():  # opens, and starts no second engine
        pass
    stop.set()
    await first
    assert app.engine is None


async def test_async_code_takes_over_what_a_submission_of_sync_code_has_opened(app: App) -> None:
    @app.job
    async def double(number: int) -> int:
        return 2 * number

    first = await asyncio.to_thread(double.enqueue_sync, 21)  # no event loop has the application open: its own does
    async with app.running():
        assert await first.result(timeout=20) == 42
        second = await asyncio.to_thread(double.enqueue_sync, 4)
        assert await second.result(timeout=20) == 8
    assert (await asyncio.to_thread(first.status_sync)).state == "succeeded"
    await app.close()
    assert app.loop is None
    app._sync.close()


async def test_another_database_than_the_open_one_is_refused(app: App) -> None:
    async with app:
        with pytest.raises(ValidationError, match="dsn: the application is open on another database"):
            await app.open(dsn="postgresql:///elsewhere")
    assert app.loop is None


def test_what_was_left_open_ends_with_its_event_loop(
    app: App, echo: Job[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def leave_open() -> Database:
        await app.open()
        await echo.enqueue()
        return app.database

    left = [asyncio.run(leave_open()), asyncio.run(leave_open())]
    assert [database._closed for database in left] == [True, True]
    assert echo.enqueue_sync().status_sync().state == "pending"
    app._sync.close()
    assert app.loop is None
    asyncio.run(app.close())
    assert not caplog.records


async def test_on_another_event_loop_it_is_neither_opened_nor_closed(app: App) -> None:
    async with app:
        for use in (app.open, app.close):
            with pytest.raises(ValidationError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, use())
        assert app.database is not None


# ── what the application has while it is open ─────────────────────────────────────────────────────────


async def test_what_the_application_needs_is_there_while_it_is_open(app: App, echo: Job[..., Any]) -> None:
    story: list[str] = []

    @app.while_open
    async def first() -> AsyncIterator[None]:
        story.append(f"first on {app.dsn == app.database.dsn}")
        await echo.enqueue()
        yield
        await echo.enqueue()
        story.append("first off")

    @app.while_open
    async def second() -> AsyncIterator[None]:
        story.append("second on")
        yield
        story.append("second off")

    async with app.running():
        async with app:
            assert story == ["first on True", "second on"]
        assert len(story) == 2
    assert story[2:] == ["second off", "first off"]
    with pytest.raises(ValidationError, match="not open"):
        _ = app.dsn


async def test_what_the_application_needs_and_cannot_have_leaves_it_closed(app: App) -> None:
    story: list[str] = []

    @app.while_open
    async def good() -> AsyncIterator[None]:
        yield
        story.append("left")

    @app.while_open
    async def bad() -> AsyncIterator[None]:
        raise Refused
        yield

    with pytest.raises(Refused):
        await app.open()
    assert (app.loop, story) == (None, [])
    with pytest.raises(ValidationError, match="not open"):
        _ = app.database
    with pytest.raises(ValidationError, match="`async def` with a `yield`"):
        app.while_open(lambda: None)  # type: ignore[arg-type,return-value]


# ── sync code ───────────────────────────────────────────────────────────────────────────────────────


def test_a_sync_program_submits_waits_and_asks(app: App, dsn: str) -> None:
    app.command("hello", ["echo", "hello"])

    @app.job
    def double(value: int) -> int:
        return 2 * value

    stop, running = threading.Event(), threading.Event()

    async def work() -> None:
        worker = App("test", dsn=dsn, poll=0.1)
        worker.job(double.function)
        async with worker.running():
            running.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    try:
        assert running.wait(30)
        task = double.enqueue_sync(21)
        assert task.result_sync(timeout=30) == 42
        assert task.status_sync().state == "succeeded"
        assert [one.result_sync(timeout=30) for one in double.enqueue_many_sync([1, double.call(2)])] == [2, 4]
        assert app.task(task.id).result_sync(timeout=30) == 42
        later = double.using(delay="1h").enqueue_sync(1)
        with pytest.raises(TimeoutError, match="has not ended within 0.05 s"):
            later.result_sync(timeout=0.05)
        later.cancel_sync()
        assert later.status_sync().state == "cancelled"
        later.retry_sync()
        assert later.result_sync(timeout=30) == 2
    finally:
        stop.set()
        thread.join()
        app._sync.close()
    assert app.loop is None


async def test_a_thread_waits_for_a_result_while_the_application_runs(app: App, echo: Job[..., Any]) -> None:
    @app.job
    def parent() -> int:
        return int(echo.enqueue_sync(20).result_sync(timeout=10)) + 1

    async with app.running():
        assert await (await parent.enqueue()).result(timeout=20) == 21
        task = await echo.enqueue(3)
        assert await asyncio.to_thread(task.result_sync, 10) == 3
        with pytest.raises(ValidationError, match=r"result_sync: this is async code; use `await result\(\)`"):
            task.result_sync()


async def test_a_thread_that_waits_is_told_when_the_application_closes(app: App, echo: Job[..., Any]) -> None:
    async with app:
        task = await echo.enqueue()
        waiting = asyncio.create_task(asyncio.to_thread(task.result_sync))
        while not app._lifecycle.waiting._futures:  # type: ignore[union-attr]
            await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="the application closed"):
        await waiting


async def test_two_workers_of_a_host_have_agents_with_different_names(dsn: str, tmp_path: Path) -> None:
    def make(**settings: Any) -> App:
        return App("test", dsn=dsn, data_directory=str(tmp_path), poll=0.1, stop_patience=0.2, **settings)

    def name(app: App) -> str:
        assert app.engine is not None
        return app.engine.agent.name

    host = socket.gethostname()
    async with make().running() as first, make().running() as second, make(agent_name="own").running() as third:
        assert [name(app) for app in (first, second, third)] == [host, f"{host}-2", "own"]
        async with first.database.acquire() as conn:
            assert {view.name for view in await registry.listing(conn)} == {host, f"{host}-2", "own"}
    async with make().running() as again:
        assert name(again) == host


# ── what is defined while it is open ────────────────────────────────────────────────────────────


async def test_a_job_defined_while_the_application_runs_is_known_at_once(app: App, dsn: str) -> None:
    async with app.running():

        @app.job
        async def late(value: int) -> int:
            return value

        assert await (await late.enqueue(1)).result(timeout=10) == 1
        again = app.command("again", ["true"])
        conn = await Database(dsn).connect()
        try:
            task = await again.using(conn=conn).enqueue()  # a connection of the caller's
        finally:
            await conn.close()
        assert await task.result(timeout=10) == {"exit_code": 0}
        in_thread = app.command("in a thread", ["true"])
        await asyncio.to_thread(in_thread.enqueue_sync)


async def test_a_schedule_defined_while_the_application_runs_fires(app: App) -> None:
    fired = asyncio.Event()
    async with app.running():

        @app.job
        async def late() -> None:
            fired.set()

        late.schedule("often", every="100ms")
        await asyncio.wait_for(fired.wait(), 10)


async def test_a_definition_from_a_thread_or_while_it_opens_is_registered_too(app: App, dsn: str) -> None:
    @app.while_open
    async def define() -> AsyncIterator[None]:
        await app.command("while it opens", ["true"]).enqueue()
        yield

    async with app:
        await asyncio.to_thread(app.command, "in a thread", ["true"])

        async def registered() -> bool:
            async with app.database.acquire() as conn:
                names = {row["name"] for row in await conn.fetch("select name from mainspring.job")}
            return names == {"while it opens", "in a thread"}

        await eventually(registered)


async def test_a_refused_definition_leaves_nothing_behind(app: App) -> None:
    async with app:
        for options in ({"every": "1h", "retries": -1}, {"daemon": True, "max_running": 1}):
            with pytest.raises(ValidationError):
                app.command("bad", ["true"], **options)
        assert (app.jobs, app.schedules.all) == ({}, {})
        await app.command("good", ["true"]).enqueue()


async def test_what_cannot_be_registered_is_said_to_whoever_submits_it(app: App, dsn: str) -> None:
    other = App("other", dsn=dsn)
    taken = other.command("taken", ["true"], every="1h")
    async with other, app:
        await taken.enqueue()
        ours = app.command("ours", ["true"])
        ours.schedule("taken", every="1h")
        with pytest.raises(Conflict, match="belongs to the application 'other'"):
            await ours.enqueue()


# ── handles ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_is_found_by_its_number_with_the_type_of_its_job(app: App) -> None:
    @app.job
    async def unique(values: list[int]) -> set[int]:
        return set(values)

    hello = app.command("hello", ["echo", "hello"])
    async with app.running():
        task = await unique.enqueue([1, 1])
        found = app.task(task.id)
        assert (found.id, found.job, repr(found)) == (task.id, None, f"<Task {task.id}>")
        assert await found.result(timeout=10) == {1}
        assert found.job == "unique"
        assert await unique.task(task.id).result(timeout=10) == {1}
        assert (await found.status()).state == "succeeded"
        command = app.task((await hello.enqueue()).id)
        assert await command.result(timeout=10) == {"exit_code": 0}


async def test_a_task_of_an_unknown_job_gives_plain_json(app: App, dsn: str) -> None:
    @app.job
    async def unique() -> set[int]:
        return {1}

    async with app.running():
        task = await unique.enqueue()
        await task.result(timeout=10)
        other = App("other", dsn=dsn)
        async with other:
            assert await other.task(task.id).result(timeout=10) == [1]


@pytest.mark.parametrize("id", [0, -1, True, "7", None, 2**63])
def test_what_is_no_number_of_a_task_is_refused(app: App, id: Any) -> None:
    with pytest.raises(ValidationError, match="is not the number of a task"):
        app.task(id)
