"""`figures` of one schedule: from its ledger, each task at its plan time, and of so many plan times at most."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from tests.operations.conftest import ACTOR, echo

from mainspring.errors import ScheduleNotFound, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.condition import cluster
from mainspring.operations.definitions import jobs, schedules
from mainspring.store.figures import schedule_series
from mainspring.store.figures.series import Series, Spread
from mainspring.store.postgres.database import Connection

MINUTE = timedelta(minutes=1)

# Six plan times, 20 s apart: those of the first minute succeeded 1, 2 and 3 ms late; of the second one failed at its
# third attempt, one was not run, and one is of another schedule.
_FIRES = """
    insert into mainspring.fire (schedule_id, plan_time, scope, task_id, reason)
    select case when n = 5 then $2::integer else $1::integer end, $3::timestamptz + n * interval '20 s', '',
           case when n <> 4 then 1000 + n end, case when n = 4 then 'overlap' end
      from generate_series(0, 5) n
"""
_TASKS = """
    insert into mainspring.task_history
        (id, run_at, created_at, started_at, finished_at, recorded_at, job_id, pool, state, priority, attempt, crashes,
         args)
    select f.task_id, f.plan_time, f.decided_at, f.plan_time + (f.task_id - 999) * interval '1 ms',
           f.plan_time + (f.task_id - 999) * interval '1 ms' + interval '2 s', mainspring.now(), j.id, j.pool,
           case when f.task_id < 1003 then 10 else 11 end, 5, case when f.task_id < 1003 then 1 else 3 end, 0, '{}'
      from mainspring.fire f, mainspring.job j where f.task_id is not null
"""


@pytest.fixture
async def first(conn: Connection) -> datetime:
    """The minute of the first plan time of `nightly`."""
    await jobs.put(conn, ACTOR, "hello", echo())
    for name in ("nightly", "other"):
        await schedules.put(conn, ACTOR, name, ScheduleSpec(job="hello", every="1m"))
    ids = [row["id"] for row in await conn.fetch("select id from mainspring.schedule order by name")]
    now: datetime = await conn.fetchval("select mainspring.now()")
    minute = now.replace(second=0, microsecond=0) - 3 * MINUTE
    await conn.execute(_FIRES, *ids, minute)
    await conn.execute(_TASKS)
    return minute


async def of(conn: Connection, first: datetime) -> Series:
    return await schedule_series.schedule_series(
        conn, await _id(conn, "nightly"), first - MINUTE, first + 2 * MINUTE, MINUTE
    )


async def _id(conn: Connection, name: str) -> int:
    id: int = await conn.fetchval("select id from mainspring.schedule where name = $1", name)
    return id


async def test_each_task_counts_at_its_plan_time(conn: Connection, first: datetime) -> None:
    before, early, late = (await of(conn, first)).points
    assert [point.at for point in (before, early, late)] == [first - MINUTE, first, first + MINUTE]
    assert (before.ended, before.fired, before.planned_lateness_ms, before.duration) == ({}, 0, None, None)
    assert (early.ended, early.retried, early.fired) == ({"succeeded": 3}, 0, 3)
    assert early.planned_lateness_ms == Spread(2.0, 2.8, 2.98, 3.0)
    assert early.duration == Spread(2.0, 2.0, 2.0, 2.0)
    assert (late.ended, late.retried, late.fired) == ({"failed": 1}, 2, 1)
    assert late.planned_lateness_ms is None, "the start of the first attempt is not known"


async def test_it_is_asked_for_by_name(conn: Connection, first: datetime) -> None:
    found = await cluster.figures(conn, ACTOR, schedule="nightly", start=first, end=first + MINUTE)
    assert found.points[0].ended == {"succeeded": 3}
    whole = await cluster.figures(conn, ACTOR, schedule="nightly", start=first - timedelta(days=40), step="1h")
    assert sum(point.ended.get("succeeded", 0) for point in whole.points) == 3


@pytest.mark.usefixtures("first")
async def test_a_schedule_of_another_actor_is_not_found(conn: Connection) -> None:
    for actor, name in ((Actor("token:bank", jobs=("bank.*",)), "nightly"), (ACTOR, "unknown")):
        with pytest.raises(ScheduleNotFound, match="no schedule named"):
            await cluster.figures(conn, actor, schedule=name)
    with pytest.raises(ValidationError, match="not both"):
        await cluster.figures(conn, ACTOR, schedule="nightly", job="hello")


async def test_too_many_plan_times_are_refused_before_they_are_read(
    conn: Connection, first: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_series, "MOST", 5)
    await of(conn, first)
    monkeypatch.setattr(schedule_series, "MOST", 4)
    with pytest.raises(ValidationError, match="more than 4 plan times"):
        await of(conn, first)
