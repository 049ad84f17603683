"""Search path: what another user defines in `public`, or this session as temporary, reaches no statement of ours."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from tests.hostile import HIJACK

import mainspring
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.dsn import at_database

CALLS = [
    "enqueue('report', '{\"n\": 12345678901234567.5}')",  # its check computes numeric % integer
    "enqueue('report', key => 'k', key_ttl => '1 hour', priority => 'high')",
    "enqueue('report', delay => '1 minute', concurrency_key => 'c')",
    "enqueue('report', after => array[mainspring.enqueue('report')])",
    "enqueue_many('report', array['{}', '{\"n\": 1}']::pg_catalog.jsonb[], run_at => '2030-01-01Z')",
]


async def _define(dsn: str) -> mainspring.App:
    app = mainspring.App("search path", dsn=dsn)

    @app.job(name="report", retries=0)
    async def report(n: float = 0) -> float:
        async with mainspring.current_task().transaction() as conn:
            await conn.execute("insert into booked values ($1)", n)  # found by the path of the role
        return n

    async with app:
        pass
    return app


@pytest.fixture(scope="module")
def hostile(server_dsn: str, template: str) -> Iterator[str]:
    """One database for the attacks: to define all that takes seconds."""
    name = f"mainspring_hostile_{os.getpid()}"
    asyncio.run(_execute(server_dsn, f"create database {name} template {template}"))
    dsn = at_database(server_dsn, name)
    asyncio.run(_define(dsn))
    asyncio.run(_execute(dsn, "create table public.booked (n float8)", HIJACK))
    yield dsn
    asyncio.run(_execute(server_dsn, f"drop database {name} with (force)"))


async def _execute(dsn: str, *statements: str) -> None:
    conn = await asyncpg.connect(dsn)
    for statement in statements:
        await conn.execute(statement)
    await conn.close()


async def test_the_attack_does_what_it_says(hostile: str) -> None:
    attacked = await asyncpg.connect(hostile)
    for statement in ("select 1::bigint % 2::integer", "select 1.5::numeric % 1", "select unnest(array[1::bigint])"):
        with pytest.raises(asyncpg.RaiseError, match="hijacked"):
            await attacked.execute(statement)
    await attacked.close()


@pytest.mark.parametrize("path", ['"$user", public', "public, pg_catalog", "pg_temp, public", ""])
async def test_no_search_path_of_a_caller_reaches_what_a_function_calls(hostile: str, path: str) -> None:
    caller = await asyncpg.connect(hostile)
    await caller.execute("select pg_catalog.set_config('search_path', $1, false)", path)
    for table in ("job", "task", "pool", "task_key", "dependency"):
        await caller.execute(f"create temp table {table} (id int, name text, namespace text, definition jsonb)")
    await caller.execute("create domain pg_temp.jsonb as text check (false)")
    await caller.execute(
        "create function pg_temp.clock_timestamp() returns timestamptz language sql as 'select null::timestamptz'"
    )
    await caller.execute("begin")
    for call in CALLS:
        assert await caller.fetchval(f"select mainspring.{call}"), call
    await caller.execute("rollback")
    await caller.close()


async def test_an_engine_runs_beside_a_hostile_public_schema(hostile: str) -> None:
    name = hostile.rpartition("/")[2].partition("?")[0]
    await _execute(hostile, f"alter database {name} set search_path = public, pg_catalog")
    app = await _define(hostile)
    async with app.running():
        job: Any = app.jobs["report"]
        tasks = [await job.enqueue(1.5), *await job.enqueue_many([2, 3]), await job.using(key="k").enqueue(4)]
        assert [await task.result(timeout=20) for task in tasks] == [1.5, 2, 3, 4]
        later = await job.using(delay="1h").enqueue(5)
        await later.cancel()
        assert (await later.status()).state == "cancelled"


async def test_the_connections_of_clients_and_engines_are_pinned_and_those_of_handlers_are_not(dsn: str) -> None:
    database = Database(dsn)
    handlers = database.for_handlers()
    dedicated = database.dedicated()
    async with (
        database.acquire() as pooled,
        dedicated as engine,
        handlers.acquire() as theirs,
        database.brief() as one,
    ):
        pinned = [await conn.fetchval("show search_path") for conn in (pooled, engine, one)]
        assert pinned == ["pg_catalog, pg_temp"] * 3
        assert await theirs.fetchval("show search_path") == '"$user", public'
    for each in (database, handlers):
        await each.close()


async def test_a_handler_has_its_search_path_until_its_commit(conn: Connection, dsn: str) -> None:
    """A deferred constraint of the application runs at the commit, after our statement."""
    await conn.execute("""
        create table public.booked (n float8);
        create table public.audited (n float8);
        create function public.audit() returns trigger language plpgsql as
            'begin insert into audited values (new.n); return null; end';
        create constraint trigger audit after insert on public.booked initially deferred
            for each row execute function public.audit();
    """)
    app = await _define(dsn)
    async with app.running():
        job: Any = app.jobs["report"]
        assert await (await job.enqueue(7)).result(timeout=20) == 7
    assert await conn.fetchval("select n from public.audited") == 7
