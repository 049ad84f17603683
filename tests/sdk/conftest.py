"""An application on a database that the tests of the SDK share, emptied before each of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

import mainspring
from mainspring.store.postgres.database import Database
from mainspring.store.postgres.dsn import at_database

_EMPTY = "; ".join(
    f"delete from mainspring.{table}"
    for table in (
        *("task", "task_history", "attempt", "output", "task_key", "dependency"),
        *("fire", "claim", "agent", "schedule", "app", "job", "pool"),
    )
)


async def _execute(dsn: str, statement: str) -> None:
    conn = await Database(dsn).connect()
    try:
        await conn.execute(statement)
    finally:
        await conn.close()


@pytest.fixture(scope="session")
def shared_dsn(server_dsn: str, template: str) -> Iterator[str]:
    name = f"mainspring_{os.getpid()}_sdk"
    asyncio.run(_execute(server_dsn, f"create database {name} template {template}"))
    yield at_database(server_dsn, name)
    asyncio.run(_execute(server_dsn, f"drop database if exists {name} with (force)"))


@pytest.fixture
def dsn(shared_dsn: str) -> str:
    asyncio.run(_execute(shared_dsn, _EMPTY))
    return shared_dsn


@pytest.fixture
def app(dsn: str) -> mainspring.App:
    """Not open yet: a test defines its jobs, and then opens or runs it."""
    return mainspring.App("test", dsn=dsn, poll=0.1, stop_patience=0.2, agent_name="tester")
