"""An application on a database that the tests of the SDK share, emptied before each of them.

A test that leaves a connection behind, or another clock, fails; those after it get a new database.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

import mainspring
from tests.conftest import Databases

_EMPTY = "; ".join(
    f"delete from mainspring.{table}"
    for table in (
        *("task", "task_history", "attempt", "output", "task_key", "dependency", "dependent"),
        *("fire", "claim", "agent", "schedule", "app", "hold", "job", "pool", "batch", "batch_change"),
        *("setting", "priority_rule", "secret"),
    )
).encode()

_LEFT = b"""
    select format('a connection of %s (%s)', application_name, query) from pg_stat_activity
     where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
    union all
    select format('a clock that is wrong by %s', mainspring.now() - clock_timestamp())
     where abs(extract(epoch from mainspring.now() - clock_timestamp())) > 0.5
"""
_BACKENDS_END = 20.0  # seconds: PostgreSQL ends the backend of a closed connection a moment later


class Shared:
    """The database. It is made anew once a test has left something in it that emptying does not remove."""

    def __init__(self, databases: Databases, template: str) -> None:
        self._databases, self._template = databases, template
        self._made = 0
        self._stack = ExitStack()
        self._conn: psycopg.Connection[tuple[str]] | None = None
        self._dsn = ""

    def empty(self) -> str:
        if self._conn is None:
            self._made += 1
            self._dsn = self._stack.enter_context(self._databases.one(self._template, f"sdk_{self._made}"))
            self._conn = self._stack.enter_context(psycopg.connect(self._dsn, autocommit=True))
        self._conn.execute(_EMPTY)
        return self._dsn

    def left(self) -> list[str]:
        """What is there beside rows, after backends had time to end."""
        assert self._conn is not None
        deadline = time.monotonic() + _BACKENDS_END
        while (found := self._conn.execute(_LEFT).fetchall()) and time.monotonic() < deadline:
            time.sleep(0.005)
        return [what for (what,) in found]

    def discard(self) -> None:
        self._stack.close()
        self._conn = None


@pytest.fixture(scope="session")
def shared(databases: Databases, template: str) -> Iterator[Shared]:
    shared = Shared(databases, template)
    yield shared
    shared.discard()


@pytest.fixture
def dsn(shared: Shared) -> Iterator[str]:
    yield shared.empty()
    if left := shared.left():
        shared.discard()
        pytest.fail(f"the test leaves {', '.join(left)}")


@pytest.fixture
def app(dsn: str) -> mainspring.App:
    """Not open yet: a test defines its jobs, and then opens or runs it."""
    return mainspring.App("test", dsn=dsn, poll=0.1, stop_patience=0.2, agent_name="tester")
