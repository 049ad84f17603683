"""Backfill: step by step, each plan time once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.operations.conftest import ACTOR, echo, same_in_json

from mainspring.errors import BadCursor, ScheduleNotFound, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import jobs, schedules
from mainspring.operations.planning import backfill
from mainspring.operations.planning.backfill import BackfillStep
from mainspring.operations.work import tasks
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import backfill as store

Range = tuple[datetime, datetime]


@pytest.fixture
async def range_of_three(conn: Connection) -> Range:
    """An hourly schedule, and a range of the past with three of its plan times."""
    await jobs.put(conn, ACTOR, "hello", echo())
    await schedules.put(conn, ACTOR, "hourly", ScheduleSpec(job="hello", every="1h", enabled=True))
    now: datetime = await conn.fetchval("select date_trunc('hour', mainspring.now())")
    return now - timedelta(hours=4), now - timedelta(hours=2)


async def test_so_many_tasks_at_a_time_until_all_have_ended(conn: Connection, range_of_three: Range) -> None:
    step = await backfill.step(conn, ACTOR, "hourly", *range_of_three, max_parallel=2)
    assert (step.total, step.already, step.to_run, len(step.submitted)) == (3, 0, 3, 2)
    assert (step.first, step.last) == range_of_three
    assert (step.live, step.complete, step.next is not None) == (2, False, True)
    assert same_in_json(step, BackfillStep)
    where = ("hourly", *range_of_three)
    waiting = step.submitted
    step = await backfill.step(conn, ACTOR, *where, max_parallel=2, awaiting=waiting, cursor=step.next)
    assert (step.total, step.submitted, step.ended, step.live) == (None, [], [], 2), "no room, and none has ended"
    for task in waiting:
        await tasks.cancel(conn, ACTOR, task)
    step = await backfill.step(conn, ACTOR, *where, max_parallel=2, awaiting=waiting, cursor=step.next)
    assert [(one.id, one.state) for one in step.ended] == [(task, "cancelled") for task in waiting]
    assert (len(step.submitted), step.next, step.complete) == (1, None, False)
    await tasks.cancel(conn, ACTOR, step.submitted[0])
    step = await backfill.step(conn, ACTOR, *where)
    assert (step.total, step.already, step.to_run, step.submitted, step.complete) == (3, 3, 0, [], True)


async def test_a_step_that_is_repeated_makes_no_task_twice(conn: Connection, range_of_three: Range) -> None:
    where = ("hourly", *range_of_three)
    first = await backfill.step(conn, ACTOR, *where, max_parallel=1)
    again = [await backfill.step(conn, ACTOR, *where, max_parallel=9, cursor=first.next) for _ in range(3)]
    assert [len(step.submitted) for step in again] == [2, 0, 0]
    assert await conn.fetchval("select count(*) from mainspring.task") == 3


async def test_a_dry_run_counts_and_its_cursor_can_be_used(conn: Connection, range_of_three: Range) -> None:
    where = ("hourly", *range_of_three)
    plan = await backfill.step(conn, ACTOR, *where, max_parallel=2, dry_run=True)
    assert (plan.to_run, plan.submitted, plan.complete) == (3, [], False)
    assert await conn.fetchval("select count(*) from mainspring.task") == 0
    step = await backfill.step(conn, ACTOR, *where, max_parallel=9, cursor=plan.next)
    assert (len(step.submitted), step.next) == (3, None)
    with pytest.raises(BadCursor):
        start, end = range_of_three
        await backfill.step(conn, ACTOR, "hourly", start - timedelta(hours=1), end, cursor=plan.next)


async def test_many_scopes_are_filled_in_order_in_many_steps(conn: Connection, range_of_three: Range) -> None:
    scopes = [f"s{number}" for number in range(7)]
    await schedules.edit(conn, ACTOR, "hourly", {"scopes": scopes})
    where, cursor, made = ("hourly", *range_of_three), None, 0
    for _ in range(30):
        step = await backfill.step(conn, ACTOR, *where, max_parallel=3, cursor=cursor)
        assert len(step.submitted) <= 3
        made += len(step.submitted)
        for task in step.submitted:
            await tasks.cancel(conn, ACTOR, task)
        if (cursor := step.next) is None:
            break
    assert made == 21
    found = await conn.fetch("select plan_time, scope from mainspring.fire order by task_id")
    assert [tuple(row) for row in found] == sorted(tuple(row) for row in found)
    some = await backfill.step(conn, ACTOR, *where, scopes=["s1"], dry_run=True)
    assert (some.total, some.to_run, some.complete) == (3, 0, True)


async def test_the_limit_counts_scopes(
    conn: Connection, range_of_three: Range, monkeypatch: pytest.MonkeyPatch
) -> None:
    await schedules.edit(conn, ACTOR, "hourly", {"scopes": ["eu", "us"]})
    start, end = range_of_three
    for module in (store, backfill):
        monkeypatch.setattr(module, "MOST", 6)
    assert (await backfill.step(conn, ACTOR, "hourly", start, end, dry_run=True)).total == 6
    last = (end - timedelta(hours=1)).isoformat()
    with pytest.raises(ValidationError) as caught:
        await backfill.step(conn, ACTOR, "hourly", start - timedelta(hours=1), end)
    assert "(2 for each plan time); give a later --from" in caught.value.message
    assert f"the first 3 plan times end at {last}" in caught.value.message


async def test_absurd_ranges_are_refused(conn: Connection, range_of_three: Range) -> None:
    start, end = range_of_three
    await schedules.edit(conn, ACTOR, "hourly", {"every": "1s"})
    for first, last, says in (
        (start, start + timedelta(days=1), "have not all come"),
        (start, start, "is not after"),
        (datetime(1971, 1, 1, tzinfo=UTC), end, "more than 100,000 runs"),
    ):
        with pytest.raises(ValidationError, match=says):
            await backfill.step(conn, ACTOR, "hourly", first, last)
    with pytest.raises(ValidationError, match="has no offset"):
        await backfill.step(conn, ACTOR, "hourly", start.replace(tzinfo=None), end)
    for many in (0, 1001):
        with pytest.raises(ValidationError, match="max_parallel"):
            await backfill.step(conn, ACTOR, "hourly", start, end, max_parallel=many)
    with pytest.raises(ScheduleNotFound):
        await backfill.step(conn, Actor("x", jobs=("x",)), "hourly", start, end)
    assert await conn.fetchval("select count(*) from mainspring.task") == 0
