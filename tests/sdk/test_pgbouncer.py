"""Clients through a real PgBouncer in transaction mode, whose two connections they share; and who must not try."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio

from mainspring import App, ValidationError
from mainspring.cli.main import main
from mainspring.errors import SchemaMismatch
from mainspring.store.postgres import migrate as migrations
from mainspring.store.postgres.database import Database
from mainspring.store.postgres.dsn import at_database
from tests.conftest import Databases, directory_for_a_server
from tests.pgbouncer import needs_pgbouncer, pgbouncer

pytestmark = needs_pgbouncer

CALLERS = 40
_BACKENDS = """
    select count(*) from pg_stat_activity
     where datname = current_database() and pid <> pg_backend_pid() and application_name = 'mainspring'
"""


@pytest.fixture
def dsn(databases: Databases, template: str) -> Iterator[str]:
    """A database of the test's own: PgBouncer keeps its connections to it."""
    with databases.one(template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def bouncer(server_dsn: str) -> Iterator[str]:
    with directory_for_a_server() as directory, pgbouncer(server_dsn, directory) as dsn:
        yield dsn


def through(bouncer: str, dsn: str) -> str:
    return at_database(bouncer, dsn.partition(":///")[2].partition("?")[0])


@pytest.fixture
def pooled(bouncer: str, dsn: str) -> str:
    """The DSN of the test's database, by way of PgBouncer."""
    return through(bouncer, dsn)


def shop(dsn: str) -> App:
    """The same application for the worker and for its clients."""
    app = App("shop", dsn=dsn, poll=0.1, stop_patience=0.2)

    @app.job
    async def double(number: int) -> int:
        return 2 * number

    app.command("echo", ["echo", "hello"], cron="@daily")
    return app


async def test_many_at_once_submit_and_get_their_results(dsn: str, pooled: str) -> None:
    worker, client = shop(dsn), shop(pooled)
    double = client["double"]

    async def call(number: int) -> int:
        task = await double.using(key=f"call {number}").enqueue(number)
        value: int = await task.result(timeout=30)
        assert (await task.status()).state == "succeeded"
        return value

    async with worker.running(), client:
        assert await asyncio.gather(*map(call, range(CALLERS))) == [2 * number for number in range(CALLERS)]
        many = await double.enqueue_many([{"number": number} for number in range(100)])
        assert [await task.result(timeout=30) for task in many] == [2 * number for number in range(100)]
        sync = await asyncio.to_thread(double.enqueue_sync, 4)
        assert await sync.result(timeout=30) == 8
        late = await double.using(delay="1h").enqueue(1)
        await late.cancel()
        assert (await late.status()).state == "cancelled"
        assert client.database.behind_pooler


_ONE_SUBMISSION = """
import asyncio, sys, mainspring

async def main():
    app = mainspring.App("shop", dsn=sys.argv[1])
    job = app.command("echo", ["echo", "hello"])
    async with app:
        await asyncio.gather(*(job.enqueue() for _ in range(8)))

asyncio.run(main())
"""


def test_processes_do_not_meet_in_the_names_of_statements(pooled: str) -> None:
    """A driver counts its statements from one in each process, and PgBouncer gives them the same connections."""
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", _ONE_SUBMISSION, pooled], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr


async def test_clients_share_the_connections(dsn: str, pooled: str) -> None:
    database, direct = Database(pooled), await Database(dsn, application="observer").connect()
    meeting = asyncio.Barrier(8)

    async def ask(number: int) -> int:
        async with database.acquire() as conn:
            await meeting.wait()  # all have a connection of their own to PgBouncer
            for _ in range(20):
                assert await conn.fetchval("select $1::int", number) == number
            async with conn.transaction():
                await conn.execute("set local statement_timeout = 0")
                return int(await conn.fetchval("select $1::int + 1", number))

    assert await asyncio.gather(*map(ask, range(8))) == list(range(1, 9))
    assert await direct.fetchval(_BACKENDS) <= 2
    await database.close()
    await direct.close()


async def test_clients_pin_the_search_path_of_each_transaction_and_of_no_other_client(pooled: str) -> None:
    database = Database(pooled)
    async with database.acquire() as conn:
        assert await conn.fetchval("show search_path") == "pg_catalog, pg_temp"
        async with conn.transaction():
            async with conn.transaction():
                assert await conn.fetchval("select current_setting('search_path') || $1", "") == "pg_catalog, pg_temp"
            await conn.execute("select 1")
            assert (await conn.fetchrow("show search_path"))[0] == "pg_catalog, pg_temp"
        with pytest.raises(asyncpg.DivisionByZeroError):
            await conn.fetch("select 1 / 0")
        assert not conn.is_in_transaction()
    for _ in range(4):
        other = await asyncpg.connect(pooled, statement_cache_size=0)
        assert await other.fetchval("show search_path") == '"$user", public'
        await other.close()
    await database.close()


async def test_a_handler_has_its_transaction_through_pgbouncer(dsn: str, pooled: str) -> None:
    """As on an agent with --dsn."""
    database = Database(pooled)
    handlers = database.for_handlers()
    async with handlers.acquire(translated=False) as conn:
        async with conn.transaction():
            await conn.execute("create table booked (number int)")
        with pytest.raises(ZeroDivisionError):
            async with conn.transaction():
                await conn.execute("insert into booked values ($1)", 1)
                raise ZeroDivisionError
        assert await conn.fetchval("select count(*) from booked") == 0
        await conn.execute("drop table booked")
    await handlers.close()


# ── in transactions of the caller's own: each driver set up as its manual says for PgBouncer ──────────────


@asynccontextmanager
async def by_asyncpg(dsn: str) -> AsyncIterator[Any]:
    conn = await asyncpg.connect(dsn, statement_cache_size=0)
    async with conn.transaction():
        yield conn
    await conn.close()


@asynccontextmanager
async def by_psycopg(dsn: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, prepare_threshold=None) as conn:
        yield conn


def by_sqlalchemy(driver: str, **arguments: Any) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Any]:
        url = dsn.replace("postgresql://", f"postgresql+{driver}://", 1)
        engine = sqlalchemy.ext.asyncio.create_async_engine(url, poolclass=sqlalchemy.NullPool, connect_args=arguments)
        async with engine.begin() as conn:
            yield conn

    return opened


DRIVERS = {
    "asyncpg": by_asyncpg,
    "psycopg": by_psycopg,
    "sqlalchemy, asyncpg": by_sqlalchemy("asyncpg", statement_cache_size=0, prepared_statement_name_func=lambda: ""),
    "sqlalchemy, psycopg": by_sqlalchemy("psycopg", prepare_threshold=None),
}


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_task_is_part_of_the_callers_transaction(pooled: str, driver: str) -> None:
    """Eight of them each: psycopg prepares what is repeated."""
    async with (client := shop(pooled)):
        double, opened = client["double"], DRIVERS[driver]

        async def submit(number: int) -> int:
            async with opened(pooled) as conn:
                tasks = [
                    await double.using(conn=conn).enqueue(number) for _ in range(8)
                ]  # drivers prepare repeated ones
                tasks += await double.using(conn=conn).enqueue_many([{"number": number}])
            return len([task for task in tasks if (await task.status()).state == "pending"])

        assert await asyncio.gather(*map(submit, range(4))) == [9] * 4


def test_sync_drivers_submit_as_well(pooled: str) -> None:
    client = shop(pooled)
    double = client["double"]
    assert double.enqueue_sync(1).id > 0  # registers the jobs
    with psycopg.connect(pooled, prepare_threshold=None) as conn:
        ids = [double.using(conn=conn).enqueue_sync(2).id for _ in range(8)]
    engine = sqlalchemy.create_engine(
        pooled.replace("postgresql://", "postgresql+psycopg://", 1),
        poolclass=sqlalchemy.NullPool,
        connect_args={"prepare_threshold": None},
    )
    with engine.begin() as conn:
        ids += [double.using(conn=conn).enqueue_sync(3).id for _ in range(8)]
    assert len(set(ids)) == 16


# ── the command line ────────────────────────────────────────────────────────────────────────────────


def test_commands_work_through_pgbouncer(pooled: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "job create hello -- echo hello",
        "task submit hello",
        "task list",
        "stats",
        "schedule create hourly hello --every 1h",
        "schedule list",
        "agents list",
        "servers",
        "segments",
        "migrate --plan",
        "migrate",
    ):
        assert main(["--dsn", pooled, *line.split()]) == 0, f"{line}: {capsys.readouterr().err}"


# ── what needs PostgreSQL itself says so ───────────────────────────────────────────────────────────────

NEEDS_DIRECT = r"dsn: at 127\.0\.0\.1:\d+ is PgBouncer .* direct connection.*name PostgreSQL itself"


async def test_an_engine_says_that_it_needs_postgresql_itself(pooled: str) -> None:
    app = shop(pooled)
    with pytest.raises(ValidationError, match=NEEDS_DIRECT):
        async with app.running():
            pass


async def test_a_pooler_that_swallows_the_settings_of_the_engine_is_found_out(server_dsn: str, dsn: str) -> None:
    settings = (
        *("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan", "enable_partition_pruning"),
        *("jit", "statement_timeout", "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"),
        "tcp_user_timeout",
    )
    more = f"ignore_startup_parameters = {','.join(settings)}"
    with (
        directory_for_a_server() as directory,
        pgbouncer(server_dsn, directory, more=more) as bouncer,
        pytest.raises(ValidationError, match=NEEDS_DIRECT),
    ):
        await Database(through(bouncer, dsn)).connect()


def test_a_server_is_refused_in_one_line(pooled: str) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "mainspring", "server", "--listen", "127.0.0.1:0", "--dsn", pooled],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    assert re.fullmatch(f"mainspring: {NEEDS_DIRECT}.*\n", refused.stderr), refused.stderr


async def test_a_schema_that_lacks_something_is_not_brought_up_to_date_through_pgbouncer(
    bouncer: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = shop(through(bouncer, empty_dsn))
    with pytest.raises(SchemaMismatch, match="lacks migration 1, .* `mainspring migrate --dsn` .*PostgreSQL itself"):
        await client.open()
    await migrations.migrate(Database(empty_dsn))
    await client.open()
    assert (await client["double"].enqueue(1)).id == 1
    await client.close()


async def test_a_setting_that_pgbouncer_does_not_take_is_named(pooled: str) -> None:
    with pytest.raises(ValidationError, match="does not take the setting work_mem; take it out of the DSN"):
        await Database(f"{pooled}?work_mem=1MB").open()
