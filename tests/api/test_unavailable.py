"""PostgreSQL is there and cannot do it: no free connection, a full disk, another schema. The answer names which."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from mainspring.api.make import make_api
from mainspring.model.access.actors import Role
from mainspring.store.access import tokens
from mainspring.store.postgres.database import API_POOL_SIZE, Connection, Database
from tests.api.conftest import Caller, over
from tests.api.test_app import assert_problem


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Database]:
    """That of the API, as a server makes it."""
    database = Database(dsn)
    pool = database.for_api()
    yield pool
    await pool.close()
    await database.close()


@pytest.fixture
async def caller(pool: Database, conn: Connection) -> AsyncIterator[Caller]:
    api = make_api(pool)
    _, secret = await tokens.create(conn, "admin", role=Role.ADMIN)
    async with over(api, headers={"Authorization": f"Bearer {secret}"}) as client:
        yield client
    await api.close()


@asynccontextmanager
async def all_connections_held(pool: Database) -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as held:
        for _ in range(API_POOL_SIZE):
            await held.enter_async_context(pool.acquire())
        yield held


async def test_a_request_waits_for_a_free_connection_and_is_then_told_busy(
    pool: Database, caller: Caller, job: str
) -> None:
    submitting = [("POST", {"job": job}), ("POST", {"job": job})]  # at once: they share a statement
    assert (await caller.get("/api/v1/tasks")).status_code == 200, "from here on the token is known"
    async with all_connections_held(pool):
        answers = await asyncio.gather(
            *(caller.request(method, "/api/v1/tasks", json=body) for method, body in [("GET", None), *submitting])
        )
    for answer in answers:
        told = assert_problem(answer, 503, "busy")
        assert "no connection to PostgreSQL was free within 1 s" in told["message"]
        assert int(answer.headers["retry-after"]) >= 1
    assert (await caller.get("/api/v1/tasks")).json()["items"] == [], "nothing was submitted"


async def test_a_request_gets_a_connection_that_becomes_free_while_it_waits(
    pool: Database, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_pool_wait", 60.0)
    assert (await caller.get("/api/v1/tasks")).status_code == 200
    async with all_connections_held(pool) as held:
        asking = asyncio.create_task(caller.get("/api/v1/tasks"))
        while not (pool._pool_places._waiters or asking.done()):
            await asyncio.sleep(0)
        assert not asking.done()
        await held.aclose()
        assert (await asking).status_code == 200


_NO_SPACE = """
    create function pg_temp.fail() returns trigger language plpgsql as
        $$ begin raise exception 'could not extend file "base/5/1234"' using errcode = '53100'; end $$;
    create trigger fail before insert on mainspring.task for each row execute function pg_temp.fail()
"""


async def test_a_full_disk_is_told_without_the_file_that_could_not_grow(
    caller: Caller, conn: Connection, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    await conn.execute(_NO_SPACE)
    bodies = [{"job": job}, {"job": job}, {"job": job, "concurrency_key": "alone"}]
    for answer in await asyncio.gather(*(caller.post("/api/v1/tasks", json=body) for body in bodies)):
        told = assert_problem(answer, 503, "store_full")
        assert told["message"] == "PostgreSQL's disk is full; make room there, then requests are taken again"
        assert int(answer.headers["retry-after"]) >= 1
    assert "base/5/1234" in caplog.text, "the log has it"
    await conn.execute("drop trigger fail on mainspring.task")
    assert (await caller.post("/api/v1/tasks", json={"job": job})).status_code == 201


async def test_a_database_without_the_schema_is_told_with_what_to_type(
    empty_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Database(empty_dsn).for_api()
    api = make_api(pool)
    async with over(api, headers={"Authorization": "Bearer ms_any"}) as caller:
        for path in ("/api/v1/tasks", "/api/v1/health"):
            answer = await caller.get(path)
            told = assert_problem(answer, 503, "schema_mismatch")
            assert told["message"].endswith("run `mainspring migrate`")
            assert "relation" not in told["message"], "PostgreSQL's own words are for the log"
            assert int(answer.headers["retry-after"]) >= 1
    assert 'relation "mainspring.' in caplog.text
    await api.close()
    await pool.close()


@pytest.mark.parametrize(
    "change",
    [
        "alter table mainspring.task rename column priority to rank",
        "alter function mainspring.enqueue rename to submit",
        "alter schema mainspring rename to other",
    ],
    ids=["column", "function", "schema"],
)
async def test_a_schema_of_another_version_is_told_as_such(
    caller: Caller, conn: Connection, job: str, change: str
) -> None:
    assert (await caller.post("/api/v1/tasks", json={"job": job})).status_code == 201
    await conn.execute(change)
    answer = await caller.post("/api/v1/tasks", json={"job": job})
    assert_problem(answer, 503, "schema_mismatch")
