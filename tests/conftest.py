"""What the tests share: one PostgreSQL for the run, a fresh schema for each test that asks for one.

The server is the embedded one in a directory of the run's own; `MAINSPRING_TEST_DSN` names another, such as
Debian's PostgreSQL 15.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest

from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.pools import blocked
from mainspring.model.tasks.states import TaskState
from mainspring.store.embedded.server import Embedded
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.dsn import at_database
from mainspring.store.postgres.migrate import migrate
from mainspring.store.tasks import jobs, partitions
from tests.cluster import DISOWN_ALL, OWN_ALL
from tests.lanes import lanes, missing, turn, unit
from tests.places import memory
from tests.rollback import RolledBack

_TEMPLATE = "mainspring_template"

hypothesis.settings.register_profile("mainspring", deadline=None)  # no test asserts a time
hypothesis.settings.load_profile("mainspring")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests log lone surrogates on purpose; a report that holds one cannot pass from a worker to the run."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_configure() -> None:
    """A run in the background of a shell ignores SIGINT, and so would the processes that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests live as long as the run: the garbage collector need not look at them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first: a run on two cores is over when the last file is."""
    assert not missing(), f"tests/lanes.py names what is not there: {missing()}"
    paths = {item.path for item in items}
    markers, turns = {path: lanes(path) for path in paths}, {path: turn(path) for path in paths}
    for item in items:
        for lane in markers[item.path]:
            item.add_marker(lane)
    items.sort(key=lambda item: turns[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, by tests/lanes.py."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class ByUnit(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    return ByUnit(config, log)


@contextmanager
def directory_for_a_server(parent: str | None = None) -> Iterator[Path]:
    """A temporary directory that a PostgreSQL server of ours can run in."""
    parent = parent or ("/var/lib" if os.geteuid() == 0 else None)  # where the server's own account can reach it
    directory = Path(tempfile.mkdtemp(prefix="mainspring-test-", dir=parent))
    directory.chmod(0o711)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def server_directory() -> Iterator[Path]:
    """For a server of the test's own."""
    with directory_for_a_server() as directory:
        yield directory


# A server that is thrown away writes nothing through, and nothing but the tests works in their databases.
_THROWN_AWAY = (
    "alter system set fsync = off",
    "alter system set full_page_writes = off",  # each new database is a checkpoint, after which pages would be logged
    "alter system set autovacuum_naptime = '1d'",
    "select pg_reload_conf()",
)


@pytest.fixture(scope="session")
def server_dsn() -> Iterator[str]:
    """A PostgreSQL server for the whole run."""
    given = os.environ.get("MAINSPRING_TEST_DSN")
    if given:
        yield given
        return
    with directory_for_a_server(memory()) as directory:
        embedded = Embedded.start(directory)
        asyncio.run(_execute(embedded.dsn, *_THROWN_AWAY))
        os.environ["MAINSPRING_DATA_DIRECTORY"] = str(directory / "servers")
        os.environ["MAINSPRING_TEST_DSN"] = embedded.dsn  # for mainspring.testing, here and in child processes
        try:
            yield embedded.dsn
        finally:
            del os.environ["MAINSPRING_TEST_DSN"], os.environ["MAINSPRING_DATA_DIRECTORY"]
            embedded.stop()


async def _execute(dsn: str, *statements: str) -> None:
    conn = await Database(dsn).connect()
    try:
        for statement in statements:
            await conn.execute(statement)
    finally:
        await conn.close()


class Databases:
    """Makes and drops databases, on one connection: to open one takes as long as to copy a small database."""

    def __init__(self, server_dsn: str) -> None:
        self._dsn = server_dsn
        self._conn = psycopg.connect(server_dsn, autocommit=True)
        # By copying files where it can be chosen: quicker for a small database.
        self._strategy = "strategy file_copy" if self._conn.info.server_version >= 150_000 else ""
        self._counter = 0

    @contextmanager
    def one(self, template: str | None, name: str | None = None) -> Iterator[str]:
        """The DSN of a database, copied from `template` or empty, that is dropped at the end of the block."""
        self._counter += 1
        name = f"mainspring_{os.getpid()}_{name or self._counter}"
        self._execute(f"create database {name}" + (f" template {template} {self._strategy}" if template else ""))
        yield at_database(self._dsn, name)
        self._execute(f"drop database if exists {name} with (force)")

    def _execute(self, statement: str) -> None:
        self._conn.execute(statement.encode())

    def close(self) -> None:
        self._conn.close()


@pytest.fixture(scope="session")
def databases(server_dsn: str) -> Iterator[Databases]:
    databases = Databases(server_dsn)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def template(server_dsn: str) -> str:
    """A database with the schema, to copy from: quicker than migrating for each test."""

    async def make() -> None:
        await _execute(
            server_dsn,
            f"drop database if exists {_TEMPLATE} with (force)",
            f"create database {_TEMPLATE}",
        )
        database = Database(at_database(server_dsn, _TEMPLATE))
        await migrate(database)
        conn = await database.connect()
        await partitions.make_ahead(conn, days=3)
        await conn.execute(OWN_ALL)
        await conn.close()

    asyncio.run(make())
    return _TEMPLATE


@pytest.fixture
def dsn(databases: Databases, template: str) -> Iterator[str]:
    """A database of the test's own, with the schema in it."""
    with databases.one(template) as dsn:
        yield dsn


@pytest.fixture
def empty_dsn(databases: Databases) -> Iterator[str]:
    """A database of the test's own, with nothing in it."""
    with databases.one(None) as dsn:
        yield dsn


@pytest.fixture
def no_servers(dsn: str) -> None:
    """No server has ever been in this database."""
    asyncio.run(_execute(dsn, DISOWN_ALL))


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    database = Database(dsn)
    await database.open()
    yield database
    await database.close()


# What needs a database of its own: it connects a second time, or says so with `pytestmark = usefixtures("dsn")`.
_OWN = {"dsn", "database"}


@pytest.fixture(scope="session")
def shared_dsn(databases: Databases, template: str) -> Iterator[str]:
    """One database for all tests that use a single connection: what they write is rolled back."""
    with databases.one(template, "shared") as dsn:
        yield dsn


@pytest.fixture
def _conn_dsn(request: pytest.FixtureRequest) -> tuple[str, bool]:
    is_shared = not _OWN & set(request.fixturenames)
    return request.getfixturevalue("shared_dsn" if is_shared else "dsn"), is_shared


@pytest.fixture
async def conn(_conn_dsn: tuple[str, bool]) -> AsyncIterator[Connection]:
    """A connection, to the test's own database if it has one, else in a transaction that is rolled back."""
    dsn, is_shared = _conn_dsn
    conn = await Database(dsn).connect()
    yield await RolledBack.begin(conn) if is_shared else conn
    await conn.close()


MakeTask = Callable[..., Awaitable[int]]


@pytest.fixture
def make_task(conn: Connection) -> MakeTask:
    """Insert a task in any state: `await make_task(state, token=7, session=1)` gives its id."""

    async def make(state: TaskState = TaskState.PENDING, **columns: Any) -> int:
        await jobs.register(conn, {"job": Definition(Python("job"))})
        id = int(await conn.fetchval("select mainspring.enqueue('job')"))
        if state in (TaskState.ASSIGNED, TaskState.RUNNING):
            columns = {"token": 1, "session": 1, "attempt": 1, **columns}
        columns["state"] = int(state)
        names = list(columns)
        assignments = [f"{name} = ${number}" for number, name in enumerate(names, 2)]
        if state is TaskState.BLOCKED:
            assignments.append(f"pool = {blocked('pool')}")
        await conn.execute(f"update mainspring.task set {', '.join(assignments)} where id = $1", id, *columns.values())
        return id

    return make


def pause(waited: float) -> float:
    """Seconds until who has waited so long looks again: looking takes CPU time from what is waited for."""
    return min(max(0.01, waited / 10), 0.05)


async def eventually(check: Callable[[], Awaitable[Any]], timeout: float = 30.0) -> Any:
    """Ask until the answer is true, and return it; fail after `timeout` seconds: far more than a busy machine takes."""
    began = time.monotonic()
    async with asyncio.timeout(timeout):
        while True:
            if answer := await check():
                return answer
            await asyncio.sleep(pause(time.monotonic() - began))


Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture(name="eventually")
def eventually_fixture() -> Eventually:
    return eventually
