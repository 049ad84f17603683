"""Submission inside the caller's own transaction, through every driver we know: it commits or goes with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from psycopg.rows import dict_row

from mainspring import App, Job, JobNotFound, ValidationError
from mainspring.store.postgres.database import Connection
from mainspring.store.views.task_views import TaskView


class Undo(Exception):
    """Leaves a transaction by its back door."""


# ── async ───────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def by_asyncpg(dsn: str) -> AsyncIterator[Any]:
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction():
            yield conn
    finally:
        await conn.close()


@asynccontextmanager
async def by_asyncpg_pool(dsn: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(dsn, min_size=1) as pool, pool.acquire() as conn, conn.transaction():
        yield conn


@asynccontextmanager
async def by_psycopg_async(dsn: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        yield conn


@asynccontextmanager
async def by_psycopg_async_with_dicts(dsn: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as conn:
        yield conn


def _sqlalchemy(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


@asynccontextmanager
async def _async_engine(dsn: str, driver: str) -> AsyncIterator[sqlalchemy.ext.asyncio.AsyncEngine]:
    url, arguments = _sqlalchemy(dsn, driver), {}
    if driver == "asyncpg":  # SQLAlchemy hands a socket's directory on only when it is told apart
        made = sqlalchemy.make_url(url)
        host = made.query.get("host")
        if host:
            url = str(made.difference_update_query(["host"]).render_as_string(hide_password=False))
            arguments = {"host": host}
    engine = sqlalchemy.ext.asyncio.create_async_engine(url, connect_args=arguments)
    try:
        yield engine
    finally:
        await engine.dispose()


def by_sqlalchemy_connection(driver: str) -> Callable[[str], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Any]:
        async with _async_engine(dsn, driver) as engine, engine.begin() as conn:
            yield conn

    return opened


def by_sqlalchemy_session(driver: str) -> Callable[[str], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Any]:
        async with (
            _async_engine(dsn, driver) as engine,
            sqlalchemy.ext.asyncio.AsyncSession(engine) as session,
            session.begin(),
        ):
            yield session

    return opened


ASYNC = {
    "asyncpg": by_asyncpg,
    "asyncpg pool": by_asyncpg_pool,
    "psycopg": by_psycopg_async,
    "psycopg, rows as dicts": by_psycopg_async_with_dicts,
    "sqlalchemy connection, asyncpg": by_sqlalchemy_connection("asyncpg"),
    "sqlalchemy session, asyncpg": by_sqlalchemy_session("asyncpg"),
    "sqlalchemy connection, psycopg": by_sqlalchemy_connection("psycopg"),
    "sqlalchemy session, psycopg": by_sqlalchemy_session("psycopg"),
}

# ── sync ────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def by_psycopg(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn) as conn:
        yield conn


@contextmanager
def by_psycopg_with_dicts(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, row_factory=dict_row) as conn:
        yield conn


@contextmanager
def by_sqlalchemy_sync_connection(dsn: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(_sqlalchemy(dsn, "psycopg"))
    try:
        with engine.begin() as conn:
            yield conn
    finally:
        engine.dispose()


@contextmanager
def by_sqlalchemy_sync_session(dsn: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(_sqlalchemy(dsn, "psycopg"))
    try:
        with sqlalchemy.orm.Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


SYNC = {
    "psycopg": by_psycopg,
    "psycopg, rows as dicts": by_psycopg_with_dicts,
    "sqlalchemy connection": by_sqlalchemy_sync_connection,
    "sqlalchemy session": by_sqlalchemy_sync_session,
}

# ── the tests ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def report(app: App) -> Job[..., Any]:
    @app.job
    async def report(day: str, *, force: bool = False) -> str:
        return f"{day} {force}"

    return report


RUN_AT = datetime(2026, 1, 1, tzinfo=UTC)
GONE = ", or is not kept any longer; `mainspring task list` has those that are"  # of a task to run after

AsyncOpened = Callable[[str], AbstractAsyncContextManager[Any]]
SyncOpened = Callable[[str], AbstractContextManager[Any]]


def assert_as_submitted(status: TaskView) -> None:
    assert (status.args, status.run_at, status.priority, status.key) == (
        {"day": "mön%:d", "force": True},
        RUN_AT,
        7,
        "k",
    )


@pytest.mark.parametrize("opened", ASYNC.values(), ids=ASYNC.keys())
async def test_a_task_runs_once_the_callers_transaction_commits(
    app: App, dsn: str, report: Job[..., Any], opened: AsyncOpened
) -> None:
    async with app.running():
        first = await report.using(delay="1h").enqueue("parent")
        async with opened(dsn) as conn:
            task = await report.using(conn=conn, run_at=RUN_AT, priority="high", key="k").enqueue("mön%:d", force=True)
            many = await report.using(conn=conn, delay=0).enqueue_many(["a", ("b",), {"day": "c", "force": True}])
            child = await report.using(conn=conn, after=[task, first]).enqueue("d")
            assert [type(made.id) for made in (task, *many, child)] == [int] * 5
        assert await task.result(timeout=10) == "mön%:d True"
        assert [await made.result(timeout=10) for made in many] == ["a False", "b False", "c True"]
        assert_as_submitted(await task.status())
        assert (await child.status()).state == "blocked"


@pytest.mark.parametrize("opened", ASYNC.values(), ids=ASYNC.keys())
async def test_no_task_is_left_of_a_transaction_that_rolls_back(
    app: App, dsn: str, conn: Connection, report: Job[..., Any], opened: AsyncOpened
) -> None:
    async def submit_and_undo() -> None:
        async with opened(dsn) as own:
            await report.using(conn=own, key="k").enqueue("x")
            await report.using(conn=own).enqueue_many(["x", "y"])
            raise Undo

    async with app:
        with pytest.raises(Undo):
            await submit_and_undo()
        assert await conn.fetchval("select count(*) from mainspring.task") == 0
        assert await conn.fetchval("select count(*) from mainspring.task_key") == 0


@pytest.mark.parametrize("opened", ASYNC.values(), ids=ASYNC.keys())
async def test_errors_of_the_database_come_as_ours(
    app: App, dsn: str, conn: Connection, report: Job[..., Any], opened: AsyncOpened
) -> None:
    async with app:
        unknown = await report.enqueue("x")
        await conn.execute("delete from mainspring.task")
        with pytest.raises(ValidationError) as refused:
            async with opened(dsn) as own:
                await report.using(conn=own, after=unknown).enqueue("x")
        assert refused.value.message == f"after: task {unknown.id} does not exist{GONE}"
        assert refused.value.field == "after"
        await conn.execute("delete from mainspring.job")
        with pytest.raises(JobNotFound, match=r"^no job named 'report'; ") as missing:
            async with opened(dsn) as own:
                await report.using(conn=own).enqueue("x")
        assert "\n" not in missing.value.message


@pytest.mark.parametrize("opened", SYNC.values(), ids=SYNC.keys())
async def test_a_task_runs_once_the_sync_callers_transaction_commits(
    app: App, dsn: str, report: Job[..., Any], opened: SyncOpened
) -> None:
    async with app.running():

        def submit() -> Any:
            with opened(dsn) as conn:
                using = report.using(conn=conn, run_at=RUN_AT, priority="high", key="k")
                return using.enqueue_sync("mön%:d", force=True)

        task = await asyncio.to_thread(submit)
        assert await task.result(timeout=10) == "mön%:d True"
        assert_as_submitted(await task.status())


@pytest.mark.parametrize("opened", SYNC.values(), ids=SYNC.keys())
async def test_no_task_is_left_of_a_sync_transaction_that_rolls_back(
    app: App, dsn: str, conn: Connection, report: Job[..., Any], opened: SyncOpened
) -> None:
    def submit_and_undo() -> None:
        with opened(dsn) as own:
            report.using(conn=own).enqueue_sync("x")
            raise Undo

    async with app:
        with pytest.raises(Undo):
            submit_and_undo()
        assert await conn.fetchval("select count(*) from mainspring.task") == 0


@pytest.mark.parametrize("opened", SYNC.values(), ids=SYNC.keys())
async def test_errors_of_the_database_come_as_ours_from_sync_code(
    app: App, dsn: str, conn: Connection, report: Job[..., Any], opened: SyncOpened
) -> None:
    async with app:
        unknown = await report.enqueue("x")
        await conn.execute("delete from mainspring.task")
        with pytest.raises(ValidationError) as refused, opened(dsn) as own:
            report.using(conn=own, after=unknown).enqueue_sync("x")
        assert refused.value.message == f"after: task {unknown.id} does not exist{GONE}"
        assert refused.value.field == "after"
        await conn.execute("delete from mainspring.job")
        with pytest.raises(JobNotFound, match=r"^no job named 'report'; "), opened(dsn) as own:
            report.using(conn=own).enqueue_sync("x")


async def test_a_connection_of_the_wrong_kind_says_what_to_use(app: App, dsn: str, report: Job[..., Any]) -> None:
    with psycopg.connect(dsn) as sync, pytest.raises(ValidationError, match="use enqueue_sync"):
        await report.using(conn=sync).enqueue("x")
    async with by_asyncpg(dsn) as conn:
        with pytest.raises(ValidationError, match="use `await enqueue"):
            report.using(conn=conn).enqueue_sync("x")
    with pytest.raises(ValidationError, match="str is not a connection of") as refused:
        await report.using(conn=dsn).enqueue("x")
    assert refused.value.field == "conn"


async def test_plain_sql_submits_inside_its_transaction(app: App, conn: Connection, report: Job[..., Any]) -> None:
    async with app.running():
        async with conn.transaction():
            id = await conn.fetchval("""
                select mainspring.enqueue('report', '{"day": "sql"}', priority => 'high', key => 'k',
                                          run_at => '2026-01-01Z')
            """)
        assert await app.wait_for(id, 10) == "sql False"
        status = await app.status(id)
        assert (status.priority, status.key, status.run_at) == (7, "k", RUN_AT)


@pytest.mark.parametrize(
    ("call", "state"),
    [
        ("enqueue('nothing')", "MSJ01"),
        ("enqueue(null)", "MSJ01"),
        ("enqueue('report', '[]')", "MSV01"),
        ("enqueue('report', null)", "MSV01"),
        ("enqueue('report', '{}', priority => 'urgent')", "MSV01"),
        ("enqueue('report', '{}', delay => '-1 second')", "MSV01"),
        ("enqueue('report', '{}', run_at => 'infinity')", "MSV01"),
        ("enqueue('report', '{}', run_at => '1969-01-01Z')", "MSV01"),
        ("enqueue('report', '{}', run_at => '2026-01-01Z', delay => '1 s')", "MSV01"),
        ("enqueue('report', '{}', key => '')", "MSV01"),
        ("enqueue('report', '{}', key => repeat('k', 201))", "MSV01"),
        ("enqueue('report', '{}', key => 'k', key_ttl => '0')", "MSV01"),
        ("enqueue('report', '{}', after => '{999}')", "MSV01"),
        ("""enqueue('report', '{"n": 9007199254740993}')""", "MSV01"),
        ("enqueue('report', jsonb_build_object('s', repeat('x', 1048577)))", "MSV01"),
        ("enqueue('report', ('{\"a\":' || repeat('[', 70) || repeat(']', 70) || '}')::jsonb)", "MSV01"),
        ("enqueue_many('report', array['{}', null]::jsonb[])", "MSV01"),
        ("enqueue_many('report', array['{}', '5']::jsonb[])", "MSV01"),
    ],
)
async def test_bad_input_from_sql_is_refused_with_a_state_of_ours(
    app: App, conn: Connection, report: Job[..., Any], call: str, state: str
) -> None:
    async with app:
        with pytest.raises(asyncpg.PostgresError) as refused:
            await conn.execute(f"select mainspring.{call}")
        assert refused.value.sqlstate == state
        assert await conn.fetchval("select count(*) from mainspring.task") == 0
        assert await conn.fetchval("select count(*) from mainspring.task_key") == 0


# ── what is no connection ───────────────────────────────────────────────────────────────────────────


def _pool(dsn: str) -> Any:
    return asyncpg.create_pool(dsn)  # not awaited: not connected


def _made(make: Callable[[sqlalchemy.ext.asyncio.AsyncEngine], Any]) -> Callable[[str], Any]:
    return lambda dsn: make(sqlalchemy.ext.asyncio.create_async_engine(_sqlalchemy(dsn, "asyncpg")))


class OwnSessions(sqlalchemy.orm.sessionmaker[sqlalchemy.orm.Session]):
    pass


NOT_CONNECTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "engine": (lambda dsn: sqlalchemy.create_engine(_sqlalchemy(dsn, "psycopg")), "with engine.begin() as conn:"),
    "async engine": (_made(lambda engine: engine), "async with engine.begin() as conn:"),
    "sessionmaker": (lambda dsn: OwnSessions(), "with factory.begin() as session:"),
    "async sessionmaker": (_made(sqlalchemy.ext.asyncio.async_sessionmaker), "async with factory.begin() as session:"),
    "asyncpg pool": (_pool, "async with pool.acquire() as conn, conn.transaction():"),
    "session class": (lambda dsn: sqlalchemy.orm.Session, "is not a connection of asyncpg, psycopg 3 or SQLAlchemy"),
    "dsn": (lambda dsn: dsn, "conn: str is not a connection"),
}


@pytest.mark.parametrize("kind", NOT_CONNECTIONS)
async def test_what_is_no_connection_is_refused_with_what_to_pass(app: App, dsn: str, kind: str) -> None:
    make, said = NOT_CONNECTIONS[kind]
    job = app.command("hello", ["true"])
    with pytest.raises(ValidationError) as refused:
        job.using(conn=make(dsn))
    assert said in refused.value.message
    assert refused.value.field == "conn"


def test_a_cursor_is_refused_with_its_connection(app: App, dsn: str) -> None:
    job = app.command("hello", ["true"])
    said = r"Cursor is not a connection; .*conn=cursor.connection"
    with psycopg.connect(dsn) as conn, conn.cursor() as cursor, pytest.raises(ValidationError, match=said):
        job.using(conn=cursor)


def test_many_tasks_are_part_of_a_sync_transaction(app: App, dsn: str) -> None:
    job = app.command("hello", ["true"])
    asyncio.run(app.open())
    with psycopg.connect(dsn) as conn:
        tasks = job.using(conn=conn).enqueue_many_sync([{"n": 1}, {"n": 2}])
        assert len(tasks) == 2
        conn.rollback()
        assert conn.execute("select count(*) from mainspring.task").fetchone() == (0,)
