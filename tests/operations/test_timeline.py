"""Timeline: decided plan times with what came of them, and bins where there are too many."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.operations.conftest import ACTOR, echo

from mainspring.errors import ScheduleNotFound, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations import jobs, schedules
from mainspring.operations.planning import timeline
from mainspring.store.postgres.database import Connection

NINE = datetime(2026, 11, 17, 9, tzinfo=UTC)


async def scheduled(conn: Connection, name: str = "nightly") -> int:
    await jobs.put(conn, ACTOR, "hello", echo())
    await schedules.put(conn, ACTOR, name, ScheduleSpec(job="hello", every="1m"))
    id: int = await conn.fetchval("select id from mainspring.schedule where name = $1", name)
    return id


async def decided(conn: Connection, schedule: int, minutes: int) -> None:
    await conn.execute(
        """
        insert into mainspring.fire (schedule_id, plan_time, task_id, reason)
        select $1, $2::timestamptz + n * interval '1 minute', case when n % 2 = 0 then 1000 + n end,
               case when n % 2 = 1 then 'overlap' end
          from generate_series(0, $3 - 1) n
        """,
        schedule,
        NINE,
        minutes,
    )


async def test_each_plan_time_has_its_decision_and_what_came_of_it(conn: Connection) -> None:
    id = await scheduled(conn)
    await decided(conn, id, 3)
    await conn.execute(
        """
        insert into mainspring.task_history
            (id, run_at, created_at, started_at, finished_at, recorded_at, job_id, pool, state, priority, attempt,
             crashes, args)
        select 1000, $1::timestamptz, $1, $1::timestamptz + interval '2 ms', $1::timestamptz + interval '1 s',
               mainspring.now(), j.id, j.pool, 10, 5, 1, 0, '{}'
          from mainspring.job j
        """,
        NINE,
    )
    found = await timeline.show(conn, ACTOR, schedule=["nightly"], start=NINE, end=NINE + timedelta(minutes=2))
    [line] = found.lines
    assert [(mark.plan_time, mark.decision) for mark in line.marks] == [
        (NINE, "planned"),
        (NINE + timedelta(minutes=1), "overlap"),
    ]
    assert (line.marks[0].state, line.marks[0].lateness_ms, line.marks[1].state) == ("succeeded", 2.0, None)
    assert line.bins == []


async def test_where_there_are_too_many_they_are_counted_in_bins(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MOST_MARKS", 10)
    await decided(conn, await scheduled(conn), 11)
    found = await timeline.show(conn, ACTOR, schedule=["nightly"], start=NINE, end=NINE + timedelta(hours=1))
    [line] = found.lines
    assert line.marks == []
    assert (sum(one.plan_times for one in line.bins), sum(one.tasks for one in line.bins)) == (11, 6)


async def test_what_cannot_be_shown_is_refused(conn: Connection) -> None:
    await scheduled(conn)
    with pytest.raises(ScheduleNotFound):
        await timeline.show(conn, ACTOR, schedule=["other"], start=NINE, end=NINE + timedelta(hours=1))
    with pytest.raises(ValidationError):
        await timeline.show(conn, ACTOR, schedule=["nightly"], start=NINE, end=NINE)
    with pytest.raises(ValidationError):
        await timeline.show(conn, ACTOR, schedule=[], start=NINE, end=NINE + timedelta(hours=1))
    narrow = Actor("token:narrow", Role.VIEWER, ("other*",))
    with pytest.raises(ScheduleNotFound):
        await timeline.show(conn, narrow, schedule=["nightly"], start=NINE, end=NINE + timedelta(hours=1))


async def test_of_many_marks_the_fullest_schedules_are_told_in_bins(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MOST_IN_ALL", 10)
    await decided(conn, await scheduled(conn, "full"), 9)
    await schedules.put(conn, ACTOR, "sparse", ScheduleSpec(job="hello", every="1m"))
    await decided(conn, await conn.fetchval("select id from mainspring.schedule where name = 'sparse'"), 4)
    names = ["full", "sparse"]
    found = await timeline.show(conn, ACTOR, schedule=names, start=NINE, end=NINE + timedelta(hours=1))
    full, sparse = found.lines
    assert (full.marks, sum(one.plan_times for one in full.bins)) == ([], 9)
    assert (len(sparse.marks), sparse.bins) == (4, [])
