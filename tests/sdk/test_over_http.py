"""An application with the URL of a server in place of a database: it submits tasks and waits for them over HTTP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

import mainspring
from mainspring import App, errors
from mainspring.api.make import make_api
from mainspring.model.access.actors import Role
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Database
from tests.served import losing_answers, served


@asynccontextmanager
async def api_of(dsn: str, role: Role = Role.OPERATOR) -> AsyncIterator[tuple[str, str]]:
    """The URL, and a token of that role."""
    database = Database(dsn)
    api = make_api(database)
    async with database.acquire() as conn:
        _, token = await tokens.create(conn, "producer", role=role)
    try:
        async with served(api) as url:
            yield url, token
    finally:
        await api.close()
        await database.close()


def define(app: App) -> mainspring.Job[[int], int]:
    @app.job(retries=0)
    async def double(number: int) -> int:
        if number < 0:
            raise mainspring.Fail("negative")
        return 2 * number

    return double


async def test_a_producer_without_a_database_submits_waits_and_asks(app: App, dsn: str) -> None:
    define(app)
    async with app.running(), api_of(dsn) as (url, token), App("test", url=url, token=token) as producer:
        double = define(producer)
        task = await double.enqueue(21)
        assert await task.result(timeout=20) == 42
        assert (await task.status()).state == "succeeded"
        assert await producer.task(task.id).result() == 42
        many = await double.enqueue_many([1, 2, 3])
        assert [await one.result(timeout=20) for one in many] == [2, 4, 6]
        failed = await double.enqueue(-1)
        with pytest.raises(mainspring.TaskFailed, match="negative"):
            await failed.result(timeout=20)
        await failed.retry()
        with pytest.raises(errors.JobNotFound):
            await producer.command("unknown", ["true"]).enqueue()


async def test_options_of_submission_go_with_it(app: App, dsn: str) -> None:
    define(app)
    async with app, api_of(dsn) as (url, token), App("test", url=url, token=token) as producer:
        double = define(producer)
        at = datetime(2030, 1, 1, 12, tzinfo=UTC)
        first = await double.using(run_at=at, priority="high", key="k", key_ttl="1h", concurrency_key="c").enqueue(1)
        again = await double.using(key="k").enqueue(2)
        assert again.id == first.id
        status = await first.status()
        assert (status.run_at, status.priority, status.key, status.concurrency_key) == (at, 7, "k", "c")
        assert status.args == {"number": 1}
        later = await double.using(after=first, delay="1h").enqueue(3)
        assert (await later.status()).waiting_for == [first.id]
        [bulk] = await double.using(delay="1h", priority=9, timeout=5, retries=2, stalls_after=3).enqueue_many([4])
        status = await bulk.status()
        assert (status.priority, status.timeout, status.retries, status.stalls_after) == (9, 5, 2, 3)
        assert status.run_at - status.created_at > timedelta(minutes=59)
        with pytest.raises(mainspring.WaitTimeout):
            await first.result(timeout=0.05)
        await first.cancel()
        with pytest.raises(mainspring.TaskFailed, match="cancelled"):
            await first.result(timeout=20)
        with pytest.raises(errors.InvalidTransition):
            await first.pause()


async def test_sync_code_does_the_same(app: App, dsn: str) -> None:
    define(app)
    async with app.running(), api_of(dsn) as (url, token):
        producer = App("test", url=url, token=token)
        double = define(producer)

        def work() -> tuple[int, str, list[int]]:
            task = double.enqueue_sync(21)
            result = task.result_sync(timeout=20)
            many = double.enqueue_many_sync([1, 2])
            later = double.using(delay="1h").enqueue_sync(1)
            later.cancel_sync()
            return result, later.status_sync().state, [one.result_sync(timeout=20) for one in many]

        assert await asyncio.to_thread(work) == (42, "cancelled", [2, 4])
        assert await (await double.enqueue(3)).result(timeout=20) == 6  # async code takes over
        await producer.close()
        producer._sync.close()


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
async def test_a_submitter_is_told_by_the_submission_that_no_agent_is_there(
    app: App, dsn: str, number: int, *, is_sync: bool
) -> None:
    define(app)

    async def submit() -> list[int]:
        able = double.using(require_agents=True)
        if is_sync:
            many = await asyncio.to_thread(lambda: able.enqueue_many_sync(range(number)))
        else:
            many = [await able.enqueue(0)] if number == 1 else await able.enqueue_many(range(number))
        return [task.id for task in many]

    async with app, api_of(dsn, Role.SUBMITTER) as (url, token), App("test", url=url, token=token) as producer:
        double = define(producer)
        with pytest.raises(errors.NoAgents, match="no agent could run a task of 'double' now"):
            await submit()
        async with app.database.acquire() as conn:
            assert await conn.fetchval("select count(*) from mainspring.task") == 0
        async with app.running():
            ids = await submit()
            assert [await producer.task(id).result(timeout=20) for id in ids] == [2 * n for n in range(number)]


@pytest.mark.parametrize("number", [1, 3])
async def test_a_submission_whose_answer_is_lost_makes_its_tasks_once(app: App, dsn: str, number: int) -> None:
    define(app)
    async with app, api_of(dsn) as (url, token), losing_answers(url, 2) as (line, lost):
        async with App("test", url=line, token=token) as producer:
            double = define(producer)
            made = [await double.enqueue(1)] if number == 1 else await double.enqueue_many(range(number))
            assert lost.cut == 2
            lost.left = 0
        async with app.database.acquire() as conn:
            ids = [row[0] for row in await conn.fetch("select id from mainspring.task order by id")]
    assert [task.id for task in made] == ids
    assert len(ids) == number


async def test_more_tasks_than_one_transaction_takes_go_in_parts(app: App, dsn: str) -> None:
    define(app)
    async with app, api_of(dsn) as (url, token), App("test", url=url, token=token) as producer:
        made = await define(producer).enqueue_many(range(10_500))
        async with app.database.acquire() as conn:
            rows = await conn.fetch("select id, args->>'number' as number from mainspring.task order by id")
    assert [int(row["number"]) for row in rows] == list(range(10_500))
    assert [task.id for task in made] == [row["id"] for row in rows]


async def test_a_server_that_restarts_while_a_task_is_waited_for_is_waited_for(app: App, dsn: str) -> None:
    define(app)
    async with app, api_of(dsn) as (url, token), losing_answers(url, 0) as (line, lost):
        producer = App("test", url=line, token=token)
        task = await define(producer).enqueue(4)
        waiting = asyncio.create_task(task.result(timeout=30))
        await asyncio.sleep(0)
        lost.left = 4  # more than a request is sent again
        async with app.running():
            assert await waiting == 8
        assert lost.cut == 4
        await producer.close()


async def test_what_needs_a_database_says_so(dsn: str, app: App) -> None:
    define(app)
    async with app, api_of(dsn) as (url, token), App("test", url=url, token=token) as producer:
        double = define(producer)
        async with app.database.acquire() as conn:
            with pytest.raises(errors.ValidationError, match="needs a database"):
                await double.using(conn=conn).enqueue(1)
        with pytest.raises(errors.ValidationError, match="needs a database"):
            async with producer.running():
                pass
        for ask in (lambda: producer.dsn, lambda: producer.database):
            with pytest.raises(errors.ValidationError, match="needs a database"):
                ask()
        with pytest.raises(errors.ValidationError, match="needs a database"):
            await producer.opened_database()


async def test_jobs_of_a_producer_are_not_registered_and_its_resources_are_opened(app: App, dsn: str) -> None:
    opened: list[str] = []
    async with app, api_of(dsn) as (url, token):
        producer = App("test", url=url, token=token)
        define(producer)

        @producer.while_open
        async def resource() -> AsyncIterator[None]:
            opened.append("open")
            yield
            opened.append("closed")

        async with producer.lifespan(None):
            assert opened == ["open"]
            with pytest.raises(errors.JobNotFound):
                await producer["double"].enqueue(1)
        assert opened == ["open", "closed"]


@pytest.mark.parametrize("given", [{"dsn": "postgresql://x"}, {"poll": 1.0}])
def test_a_url_and_a_database_are_not_given_together(given: dict[str, object]) -> None:
    with pytest.raises(errors.ValidationError, match="give one of them"):
        App(url="http://127.0.0.1:7070", **given)  # type: ignore[arg-type]


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(errors.ValidationError):
        App(url="127.0.0.1:7070")


@pytest.mark.parametrize("url", ["", "url='http://127.0.0.1:1'"])
def test_only_an_application_with_a_url_loads_the_client(url: str) -> None:
    """And MAINSPRING_URL is the command line's: an application reads none from the environment."""
    code = (
        f"import sys, mainspring; mainspring.App({url}); "
        "print([name for name in ('aiohttp', 'mainspring.api', 'mainspring.client') if name in sys.modules])"
    )
    environment = {"MAINSPRING_URL": "http://127.0.0.1:1", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout.strip() == "[]") == (url == "")
