"""Submissions that are made at once: they share a statement, and each is answered for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import App, Job, JobNotFound, ValidationError
from mainspring.errors import StoreUnavailable
from mainspring.operations.requests import group_commit
from mainspring.store.postgres.database import Connection
from mainspring.store.submission.submissions import Submission
from tests.conftest import eventually

_EACH_STATEMENT = """
    select array_agg(id order by id) as ids from (
        select id, created_at from mainspring.task union all select id, created_at from mainspring.task_history
    ) made group by created_at order by created_at
"""
# An insert with {"hold": true} waits for a row in public.go, without a lock.
_HOLD = """
    create table public.go ();
    create function public.hold() returns trigger language plpgsql as $$
    begin
        while not exists (select from public.go) loop perform pg_sleep(0.01); end loop;
        return new;
    end $$;
    create trigger hold before insert on mainspring.task
        for each row when (new.args ? 'hold') execute function public.hold();
"""
_RELEASE = "insert into public.go default values"
_UNHOLD = "drop trigger hold on mainspring.task; drop function public.hold(); drop table public.go"
_HELD = "select pid from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"


@pytest.fixture
def echo(app: App) -> Job[..., Any]:
    @app.job
    async def echo(value: Any = None, *, hold: bool | None = None) -> Any:
        return value

    return echo


@pytest.fixture
async def holding(conn: Connection) -> AsyncIterator[None]:
    await conn.execute(_HOLD)
    yield
    await conn.execute(_UNHOLD)


async def statements(conn: Connection) -> list[list[int]]:
    """The tasks that each statement has made, in the order of the statements."""
    return [row["ids"] for row in await conn.fetch(_EACH_STATEMENT)]


@asynccontextmanager
async def started(app: App, kind: str) -> AsyncIterator[None]:
    async with app.running() if kind == "running" else app:
        if app.engine is not None:
            server = app.engine.server
            await eventually(lambda: asyncio.sleep(0, server.catalogue.named("echo") and server.gateway.sessions))
        yield


@pytest.mark.parametrize("kind", ["open", "running"])
async def test_what_is_submitted_at_once_is_one_statement_in_the_order_of_the_calls(
    app: App, echo: Job[..., Any], conn: Connection, kind: str
) -> None:
    async with started(app, kind):
        tasks = await asyncio.gather(*(echo.enqueue(number) for number in range(32)))
        assert await statements(conn) == [[task.id for task in tasks]]
        if kind == "running":
            assert [await task.result(timeout=20) for task in tasks] == list(range(32))


async def test_what_comes_while_a_statement_is_under_way_gathers(
    app: App, echo: Job[..., Any], conn: Connection, holding: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "PATIENCE", 3600.0)
    async with app:
        first = asyncio.create_task(echo.enqueue(hold=True))
        await eventually(lambda: conn.fetchval(_HELD))
        others = [asyncio.create_task(echo.enqueue(number)) for number in range(10)]
        with_key = await echo.using(key="k").enqueue()  # does not wait for those without
        await conn.execute(_RELEASE)
        done = [task.id for task in await asyncio.gather(first, *others)]
    assert sorted(await statements(conn)) == sorted([[done[0]], [with_key.id], done[1:]])


async def test_a_statement_that_hangs_does_not_hold_up_the_next_one_for_long(
    app: App, echo: Job[..., Any], conn: Connection, holding: None
) -> None:
    async with app:
        first = asyncio.create_task(echo.enqueue(hold=True))
        await eventually(lambda: conn.fetchval(_HELD))
        await asyncio.gather(*(echo.enqueue(number) for number in range(3)))
        await echo.enqueue()
        assert not first.done()
        await conn.execute(_RELEASE)
        await first


BAD = [
    (Submission("nobody", "{}"), JobNotFound, "job"),
    (Submission("echo", "[1]"), ValidationError, "args"),
    (Submission("echo", "{}", priority="urgent"), ValidationError, "priority"),
    (Submission("echo", "{}", run_at=datetime(1960, 1, 1, tzinfo=UTC)), ValidationError, "run_at"),
    (Submission("echo", "{}", key="a\nb"), ValidationError, "key"),
    (Submission("echo", "{}", key="k", key_ttl=timedelta(0)), ValidationError, "key_ttl"),
]


@pytest.mark.parametrize("kind", ["open", "running"])
async def test_a_bad_one_fails_alone_with_its_own_error(
    app: App, echo: Job[..., Any], conn: Connection, kind: str
) -> None:
    async with started(app, kind):
        plain = [echo.enqueue(number) for number in range(5)]
        keyed = [echo.using(key=f"key {number}").enqueue(number) for number in range(5)]
        bad = [app.submit(submission, None) for submission, _, _ in BAD]
        answers = await asyncio.gather(*plain, *bad, *keyed, return_exceptions=True)
    for answer, (_, error, field) in zip(answers[5:-5], BAD, strict=True):
        assert isinstance(answer, error)
        assert answer.field == field
    good = [answer.id for answer in answers[:5] + answers[-5:]]
    assert sorted(task for made in await statements(conn) for task in made) == sorted(good)


async def test_a_key_at_once_gives_one_task(app: App, echo: Job[..., Any], conn: Connection) -> None:
    async with app:
        once = echo.using(key="once")
        tasks = await asyncio.gather(*(once.enqueue(number) for number in range(10)), echo.using(key="x").enqueue())
        again = await asyncio.gather(*(once.enqueue(number) for number in range(10)))
    assert len({task.id for task in tasks[:10] + again}) == 1
    assert await conn.fetchval("select count(*) from mainspring.task") == 2


async def test_a_key_that_another_transaction_holds_delays_nobody_else(
    app: App, echo: Job[..., Any], conn: Connection
) -> None:
    async with app:
        async with conn.transaction():
            held = await conn.fetchval("select mainspring.enqueue('echo', key => 'held')")
            waits = asyncio.create_task(echo.using(key="held").enqueue())
            await asyncio.gather(*(echo.using(key=f"key {number}").enqueue() for number in range(5)))
            await echo.using(key="later").enqueue()
            assert not waits.done()
        assert (await waits).id == held


async def test_a_caller_that_is_cancelled_cancels_no_other(
    app: App, echo: Job[..., Any], conn: Connection, holding: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "PATIENCE", 3600.0)
    async with app:
        shared = [asyncio.create_task(echo.enqueue(number, hold=True)) for number in range(3)]
        await eventually(lambda: conn.fetchval(_HELD))
        waiting = [asyncio.create_task(echo.enqueue(number)) for number in range(3)]
        await asyncio.sleep(0)
        for cancelled in (shared[0], waiting[0]):
            cancelled.cancel()
        await conn.execute(_RELEASE)
        tasks = await asyncio.gather(*shared[1:], *waiting[1:])
        assert [task.cancelled() for task in (shared[0], waiting[0])] == [True, True]
        await echo.enqueue()
    first, second, _ = await statements(conn)
    assert first[1:] + second == [task.id for task in tasks], "what had not been sent yet was not submitted"


async def test_the_first_one_may_be_cancelled_before_anything_is_sent(
    app: App, echo: Job[..., Any], conn: Connection
) -> None:
    async with app:
        first, *others = [asyncio.create_task(echo.enqueue(number)) for number in range(4)]
        await asyncio.sleep(0)  # all have called, and the first is about to send
        first.cancel()
        tasks = await asyncio.gather(*others)
        assert await statements(conn) == [[task.id for task in tasks]]
        await echo.enqueue()


async def test_the_loss_of_the_connection_leaves_the_outcome_of_each_unknown(
    app: App, echo: Job[..., Any], conn: Connection, holding: None
) -> None:
    async with app:
        shared = asyncio.gather(*(echo.enqueue(number, hold=True) for number in range(3)), return_exceptions=True)
        pid = await eventually(lambda: conn.fetchval(_HELD))
        await conn.execute("select pg_terminate_backend($1)", pid)
        async with asyncio.timeout(10.0):  # what is repeated would wait again
            answers = await shared
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
        assert len(set(map(id, answers))) == 3
        await echo.enqueue()
    assert len(await statements(conn)) == 1, "nothing was repeated"


async def test_large_arguments_do_not_go_into_one_statement(app: App, echo: Job[..., Any], conn: Connection) -> None:
    async with app:
        sizes = [10, 90_000, 10, 90_000, 10]
        tasks = await asyncio.gather(*(echo.enqueue("x" * size) for size in sizes))
    ids = [task.id for task in tasks]
    assert await statements(conn) == [ids[:3], ids[3:]]


async def test_an_application_that_opens_on_another_loop_starts_with_nothing_under_way(
    app: App, echo: Job[..., Any], conn: Connection
) -> None:
    def elsewhere() -> None:
        async def leave_one_behind() -> None:
            await app.open()
            asyncio.get_running_loop().create_task(echo.enqueue())
            await asyncio.sleep(0)

        asyncio.run(leave_one_behind())

    await asyncio.to_thread(elsewhere)
    async with app:
        await asyncio.gather(*(echo.enqueue(number) for number in range(3)))
