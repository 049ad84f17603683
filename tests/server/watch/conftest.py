"""What the tests of this room share: a clock that a test sets, a planner, and starts that agents would report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cluster import server_lease

from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.server.planning.planner import Planner
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs, partitions, transitions

NOON = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


async def set_clock(conn: Connection, at: datetime) -> None:
    await conn.execute(
        f"create or replace function mainspring.now() returns timestamptz language sql volatile"
        f" as $$ select '{at.isoformat()}'::timestamptz $$"
    )


@pytest.fixture(autouse=True)
async def at_noon(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await set_clock(conn, NOON)
    await partitions.make_ahead(conn, days=3)
    await conn.execute("update mainspring.ledger_audit set since = $1, began_at = $1", NOON)


@pytest.fixture
async def planner(database: Database) -> Any:
    planner = Planner(database, server_lease(), None, {})
    yield planner
    await planner.close()


async def plan(conn: Connection, planner: Planner, at: datetime) -> None:
    """The planner looks at this instant."""
    await set_clock(conn, at)
    while await planner.step():
        pass


async def start(conn: Connection, late: float = 0.0, *, state: TaskState = TaskState.SUCCEEDED) -> None:
    """The tasks that are there start so many seconds late, and end."""
    rows = await conn.fetch("select id, plan_time, job_id from mainspring.task where state = 1")
    await conn.execute("update mainspring.task set state = 2, token = id, attempt = 1 where state = 1")
    for row in rows:
        at = row["plan_time"].timestamp() + late
        ending = Ending(row["id"], row["id"], row["job_id"], 1, state, at, at + 0.1)
        await partitions.write(conn, lambda ending=ending: transitions.finish(conn, [ending]))  # type: ignore[misc]
