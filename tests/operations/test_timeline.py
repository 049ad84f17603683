"""Timeline: decided plan times with what came of them, and bins where there are too many."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.operations.conftest import ACTOR, echo
from tests.server.watch.conftest import set_clock

from mainspring.errors import ScheduleNotFound, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import jobs, schedules
from mainspring.operations.planning import timeline
from mainspring.operations.planning.timeline import Line
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


PARIS: dict[str, Any] = {"job": "hello", "tz": "Europe/Paris", "enabled": True}


async def made(conn: Connection, now: datetime, made_at: datetime, **spec: Any) -> int:
    """A schedule that was made then, and a clock that stands at `now`."""
    await jobs.put(conn, ACTOR, "hello", echo())
    await schedules.put(conn, ACTOR, "nightly", ScheduleSpec(**{**PARIS, **spec}))
    await set_clock(conn, now)
    row = await conn.fetchrow(
        "update mainspring.schedule set created_at = $1, since = $1, next_plan_at = $2 returning id", made_at, now
    )
    return int(row["id"])


async def told(conn: Connection, start: datetime, end: datetime, **how: Any) -> Line:
    [line] = (await timeline.show(conn, ACTOR, schedule=["nightly"], start=start, end=end, **how)).lines
    return line


HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


async def test_what_the_ledger_lacks_is_missed_or_to_come(conn: Connection) -> None:
    id = await made(conn, NINE + 30 * MINUTE + timedelta(seconds=10), NINE - HOUR, every="10m", slo={"lateness": "2s"})
    await conn.execute("insert into mainspring.fire (schedule_id, plan_time, task_id) values ($1, $2, 7)", id, NINE)
    line = await told(conn, NINE, NINE + HOUR)
    minutes = [(one.plan_time - NINE) / MINUTE for one in line.missed]
    assert (minutes, line.missed_to) == ([10, 20, 30], None)
    assert [(one.plan_time - NINE) / MINUTE for one in line.coming] == [40, 50]
    assert (line.timezone, line.slo) == ("Europe/Paris", 2.0)
    await schedules.disable(conn, ACTOR, "nightly")
    line = await told(conn, NINE, NINE + HOUR)
    assert (len(line.missed), line.coming) == (3, [])


async def test_nothing_is_missed_before_fires_are_kept_nor_before_the_schedule_was_made(conn: Connection) -> None:
    await made(conn, NINE + HOUR, NINE + 25 * MINUTE, every="10m")
    assert [(one.plan_time - NINE) / MINUTE for one in (await told(conn, NINE, NINE + HOUR)).missed] == [30, 40, 50]
    line = await told(conn, NINE, NINE + HOUR, keep=timedelta(minutes=15))
    assert [(one.plan_time - NINE) / MINUTE for one in line.missed] == [50]


async def test_too_many_to_compute_are_told_up_to_an_instant(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_COMPARED", 2)
    monkeypatch.setattr(timeline, "MOST_COMING", 1)
    await made(conn, NINE + 30 * MINUTE, NINE - HOUR, every="5m")
    line = await told(conn, NINE, NINE + HOUR)
    assert ([(one.plan_time - NINE) / MINUTE for one in line.missed], line.missed_to) == ([0, 5], NINE + 10 * MINUTE)
    assert ([(one.plan_time - NINE) / MINUTE for one in line.coming], line.coming_to) == ([30], NINE + 35 * MINUTE)


async def test_a_run_that_began_before_the_range_is_told(conn: Connection) -> None:
    id = await made(conn, NINE + HOUR, NINE - 3 * HOUR, every="1h")
    for hours, took in ((-2, 300), (-1, 90)):
        await conn.execute(
            """
            with made as (
                insert into mainspring.task_history
                    (id, run_at, created_at, started_at, finished_at, recorded_at, job_id, pool, state, priority,
                     attempt, crashes, args)
                select 1000 + $2, $1::timestamptz, $1, $1, $1::timestamptz + $3 * interval '1 min',
                       clock_timestamp(), j.id, j.pool, 10, 5, 1, 0, '{}' from mainspring.job j returning id
            ) insert into mainspring.fire (schedule_id, plan_time, task_id, decided_at)
              select $4, $1, id, $1 from made
            """,
            NINE + hours * HOUR,
            hours,
            took,
            id,
        )
    line = await told(conn, NINE + 40 * MINUTE, NINE + HOUR)
    assert [(mark.plan_time - NINE) / HOUR for mark in line.marks] == [-2], "the other had ended by then"


@pytest.mark.parametrize(
    ("night", "seconds", "notes"),
    [
        (datetime(2027, 3, 28, tzinfo=UTC), 3600, {1.0: "02:30 does not exist that day: moved to 03:00"}),
        (
            datetime(2027, 10, 31, tzinfo=UTC),
            -3600,
            {
                0.5: "02:30 comes twice that day: this is the first",
                1.5: "02:30 comes twice that day: this is the second",
            },
        ),
    ],
    ids=["gap", "fold"],
)
async def test_a_night_in_which_clocks_change_is_told(
    conn: Connection, night: datetime, seconds: float, notes: dict[float, str]
) -> None:
    id = await made(conn, night - timedelta(days=1), night - timedelta(days=30), cron="30 2 * * *", fold="both")
    line = await told(conn, night - 2 * HOUR, night + 6 * HOUR)
    assert {(one.plan_time - night) / HOUR: one.note for one in line.coming} == notes
    assert [(one.at, one.seconds) for one in line.changes] == [(night + HOUR, seconds)]
    assert line.changes[0].said.startswith("clocks go forward: 02:00" if seconds > 0 else "clocks go back: 03:00")
    at = night + min(notes) * HOUR
    await conn.execute("insert into mainspring.fire (schedule_id, plan_time, reason) values ($1, $2, 'paused')", id, at)
    line = await told(conn, night - 2 * HOUR, night + 6 * HOUR)
    assert [mark.note for mark in line.marks] == [notes[min(notes)]]


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
