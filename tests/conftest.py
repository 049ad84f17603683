"""What the tests share: one PostgreSQL for the run, a fresh schema for each test that asks for one.

The server is the embedded one in a directory of the run's own; `MAINSPRING_TEST_DSN` names another, such as
Debian's PostgreSQL 15.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
from tests.lanes import lanes, missing
from tests.places import memory
from tests.rollback import RolledBack

_TEMPLATE = "mainspring_template"


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Journeys first: they take longest, and a run on two cores is over when the last of them is."""
    assert not missing(), f"tests/lanes.py names what is not there: {missing()}"
    for item in items:
        for lane in lanes(item.path):
            item.add_marker(lane)
    items.sort(key=lambda item: "journey" not in item.path.parts)


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


@pytest.fixture(scope="session")
def server_dsn() -> Iterator[str]:
    """A PostgreSQL server for the whole run."""
    given = os.environ.get("MAINSPRING_TEST_DSN")
    if given:
        yield given
        return
    with directory_for_a_server(memory()) as directory:
        embedded = Embedded.start(directory)
        asyncio.run(_execute(embedded.dsn, "alter system set fsync = off", "select pg_reload_conf()"))  # thrown away
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


async def _copy(server_dsn: str, template: str, name: str) -> None:
    """By copying files where it can be chosen: quicker for a small database."""
    conn = await Database(server_dsn).connect()
    try:
        strategy = "strategy file_copy" if conn.get_server_version().major >= 15 else ""
        await conn.execute(f"create database {name} template {template} {strategy}")
    finally:
        await conn.close()


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


_counter = 0


@pytest.fixture
def dsn(server_dsn: str, template: str) -> Iterator[str]:
    """A database of the test's own, with the schema in it."""
    global _counter
    _counter += 1
    name = f"mainspring_{os.getpid()}_{_counter}"
    asyncio.run(_copy(server_dsn, template, name))
    yield at_database(server_dsn, name)
    asyncio.run(_execute(server_dsn, f"drop database if exists {name} with (force)"))


@pytest.fixture
def empty_dsn(server_dsn: str) -> Iterator[str]:
    """A database of the test's own, with nothing in it."""
    global _counter
    _counter += 1
    name = f"mainspring_{os.getpid()}_{_counter}"
    asyncio.run(_execute(server_dsn, f"create database {name}"))
    yield at_database(server_dsn, name)
    asyncio.run(_execute(server_dsn, f"drop database if exists {name} with (force)"))


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
def shared_dsn(server_dsn: str, template: str) -> Iterator[str]:
    """One database for all tests that use a single connection: what they write is rolled back."""
    name = f"mainspring_{os.getpid()}_shared"
    asyncio.run(_copy(server_dsn, template, name))
    yield at_database(server_dsn, name)
    asyncio.run(_execute(server_dsn, f"drop database if exists {name} with (force)"))


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


async def eventually(check: Callable[[], Awaitable[Any]], timeout: float = 10.0) -> Any:
    """Ask until the answer is true, and return it; fail after `timeout` seconds."""
    async with asyncio.timeout(timeout):
        while True:
            if answer := await check():
                return answer
            await asyncio.sleep(0.01)


Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture(name="eventually")
def eventually_fixture() -> Eventually:
    return eventually
