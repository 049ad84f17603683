"""Backfill: step by step, each plan time once."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from tests.operations.conftest import ACTOR, echo

from mainspring.errors import ValidationError
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.operations import backfill, jobs, schedules, tasks
from mainspring.store.postgres.database import Connection


@pytest.fixture
async def range_of_three(conn: Connection) -> tuple[datetime, datetime]:
    """An hourly schedule, and a range of the past with three of its plan times."""
    await jobs.create(conn, ACTOR, "hello", echo())
    await schedules.create(conn, ACTOR, define_schedule("hourly", "hello", {"every": "1h"}), enabled=True)
    now: datetime = await conn.fetchval("select date_trunc('hour', mainspring.now())")
    return now - timedelta(hours=4), now - timedelta(hours=2)


async def test_so_many_tasks_at_a_time_until_all_have_ended(
    conn: Connection, range_of_three: tuple[datetime, datetime]
) -> None:
    run = await backfill.plan(conn, ACTOR, "hourly", *range_of_three)
    assert (run.plan.total, run.plan.already, run.plan.to_run) == (3, 0, 3)
    assert (run.plan.first, run.plan.last) == range_of_three
    assert await run.step(conn, ACTOR, 2)
    assert (run.submitted, len(run.in_flight), run.done) == (2, 2, 0)
    assert not await run.step(conn, ACTOR, 2), "no room, and none has ended"
    for task in list(run.in_flight):
        await tasks.cancel(conn, ACTOR, task)
    while not run.is_complete:
        await run.step(conn, ACTOR, 2)
        for task in list(run.in_flight):
            await tasks.cancel(conn, ACTOR, task)
    assert (run.submitted, run.done) == (3, 3)
    assert list(run.failed.values()) == ["cancelled"] * 3


async def test_a_second_backfill_finds_nothing_to_run(
    conn: Connection, range_of_three: tuple[datetime, datetime]
) -> None:
    await (await backfill.plan(conn, ACTOR, "hourly", *range_of_three)).step(conn, ACTOR, 10)
    again = await backfill.plan(conn, ACTOR, "hourly", *range_of_three)
    assert (again.plan.already, again.plan.to_run, again.is_complete) == (3, 0, True)


async def test_the_future_cannot_be_filled(conn: Connection, range_of_three: tuple[datetime, datetime]) -> None:
    start, _ = range_of_three
    with pytest.raises(ValidationError, match="have not all come"):
        await backfill.plan(conn, ACTOR, "hourly", start, start + timedelta(days=1))
    with pytest.raises(ValidationError, match="is not after"):
        await backfill.plan(conn, ACTOR, "hourly", start, start)
