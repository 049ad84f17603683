"""Rollups: minutes become hours, notes become figures, and what is old goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from tests.schedules import set_clock

from mainspring.model.figures.buckets import DURATION, LATENESS, empty
from mainspring.model.figures.counts import Counts
from mainspring.model.tasks.states import TaskState
from mainspring.store.figures import rollups, series
from mainspring.store.figures.rollups import ALL_JOBS, Rollup
from mainspring.store.maintenance import retention
from mainspring.store.postgres.database import Connection

NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
WRITERS = [UUID(int=1), UUID(int=2)]


def counts(attempts: int, longest: float = 1.0) -> Counts:
    """So many attempts in the first bucket of durations and the last one of lateness."""
    durations = (attempts, *empty(DURATION)[1:])
    due = (*empty(LATENESS)[1:], attempts)
    return Counts(attempts, attempts * 0.5, 0.0, attempts * 400.0, longest, 0.0, 500.0, durations, None, due)


async def counted(conn: Connection, at: datetime, attempts: int, writer: int = 0, longest: float = 1.0) -> None:
    given = [
        Rollup(int(at.timestamp()), WRITERS[writer], job, TaskState.SUCCEEDED, False, counts(attempts, longest))
        for job in (7, ALL_JOBS)
    ]
    await rollups.write(conn, given)


async def test_an_hour_is_added_up_once_it_is_over_and_settled(conn: Connection) -> None:
    for minute, writer, attempts, longest in ((0, 0, 1, 1.0), (0, 1, 2, 9.0), (59, 0, 4, 2.0), (60, 0, 8, 3.0)):
        await counted(conn, NOON + minute * MINUTE, attempts, writer, longest)
    await set_clock(conn, NOON + HOUR + MINUTE)
    assert await rollups.roll(conn) == 0, "a recorder may still write"
    await set_clock(conn, NOON + HOUR + 3 * MINUTE)
    assert await rollups.roll(conn) == 2
    assert await rollups.roll(conn) == 0
    row = await conn.fetchrow("select * from mainspring.figure_hour where job_id = 7")
    assert (row["hour"], row["count"], row["duration_sum"], row["duration_max"]) == (NOON, 7, 3.5, 9.0)
    assert (row["durations"][0], sum(row["durations"]), row["due"][-1], row["planned"]) == (7, 7, 7, None)


async def test_a_minute_that_is_written_late_has_its_hour_added_up_again(conn: Connection) -> None:
    for hour in range(2):
        await counted(conn, NOON + hour * HOUR, 1)
    await set_clock(conn, NOON + 2 * HOUR + 3 * MINUTE)
    assert [await rollups.roll(conn) for _ in range(3)] == [2, 2, 0]
    await counted(conn, NOON + 58 * MINUTE, 4, writer=1)
    await conn.execute(
        "insert into mainspring.figure_note (at, job_id, outcome, count) values ($1, 7, 13, 8)", NOON + HOUR + MINUTE
    )
    await rollups.fold_notes(conn)
    assert [await rollups.roll(conn) for _ in range(3)] == [2, 4, 0]
    rows = await conn.fetch("select hour, job_id, outcome, count from mainspring.figure_hour order by 1, 2, 3")
    first, second = NOON, NOON + HOUR
    assert [tuple(row) for row in rows] == [
        (first, ALL_JOBS, 10, 5), (first, 7, 10, 5),
        (second, ALL_JOBS, 10, 1), (second, ALL_JOBS, 13, 8), (second, 7, 10, 1), (second, 7, 13, 8),
    ]  # fmt: skip


async def test_an_hour_whose_minutes_may_be_gone_is_not_added_up_again(conn: Connection) -> None:
    await counted(conn, NOON, 7)
    await set_clock(conn, NOON + 2 * HOUR)
    await rollups.roll(conn)
    await set_clock(conn, NOON + timedelta(days=2) + 2 * HOUR)
    assert await retention.delete(conn, "minutes", 100, timedelta()) == 2
    await counted(conn, NOON + MINUTE, 1, writer=1)
    assert await rollups.roll(conn) == 0
    assert await conn.fetchval("select count from mainspring.figure_hour where job_id = 7") == 7


async def test_hours_that_were_missed_are_added_up_one_by_one(conn: Connection) -> None:
    for hour in (0, 1, 5):
        await counted(conn, NOON + hour * HOUR, 1)
    await set_clock(conn, NOON + 24 * HOUR)
    assert [await rollups.roll(conn) for _ in range(4)] == [2, 2, 2, 0]


async def test_a_series_by_the_hour_has_the_hours_that_are_not_added_up_yet(conn: Connection) -> None:
    for hour in range(3):
        await counted(conn, NOON + hour * HOUR, hour + 1)
    await set_clock(conn, NOON + HOUR + 3 * MINUTE)
    await rollups.roll(conn)
    await conn.execute("delete from mainspring.figure where minute = $1", NOON)
    found = await series.series(conn, NOON + MINUTE, NOON + 3 * HOUR, HOUR, None)
    assert [(point.at, point.ended) for point in found.points] == [
        (NOON + hour * HOUR, {"succeeded": hour + 1}) for hour in range(3)
    ]
    days = await series.series(conn, NOON, NOON + 3 * HOUR, 24 * HOUR, [7])
    assert [point.ended for point in days.points] == [{"succeeded": 6}]


async def test_a_series_has_a_point_for_each_step_with_the_spread_of_its_values(conn: Connection) -> None:
    await counted(conn, NOON + MINUTE, 100, longest=0.004)
    found = await series.series(conn, NOON, NOON + 3 * MINUTE, MINUTE, [7])
    assert [point.ended for point in found.points] == [{}, {"succeeded": 100}, {}]
    point = found.points[1]
    assert point.duration is not None
    assert point.due_lateness_ms is not None
    assert (point.duration.p50, point.duration.p99, point.duration.max) == (0.0005, 0.00099, 0.004)
    assert point.due_lateness_ms.p50 == 400_000.0, "between the last bound and the greatest"
    assert (point.planned_lateness_ms, point.queue) == (None, None)


async def test_notes_are_folded_into_the_figures_of_their_minute_once(conn: Connection) -> None:
    note = "insert into mainspring.figure_note (at, job_id, outcome, count) values ($1, 7, 13, $2)"
    for count in (1, 2):
        await conn.execute(note, NOON + 5 * count * timedelta(seconds=1), count)
        assert await rollups.fold_notes(conn) == [(7, TaskState.CANCELLED, count)]
    assert await rollups.fold_notes(conn) == []
    rows = await conn.fetch("select minute, job_id, outcome, count from mainspring.figure order by job_id")
    assert [tuple(row) for row in rows] == [(NOON, ALL_JOBS, 13, 3), (NOON, 7, 13, 3)]


async def test_minutes_stay_for_two_days_and_until_they_are_added_up(conn: Connection) -> None:
    for hours in (0, 1):
        await counted(conn, NOON + hours * HOUR, 1)
    await set_clock(conn, NOON + 2 * HOUR)
    await rollups.roll(conn)
    assert await retention.delete(conn, "minutes", 100, timedelta()) == 0
    await set_clock(conn, NOON + timedelta(days=2) + 2 * HOUR)
    assert await retention.delete(conn, "minutes", 100, timedelta()) == 2, "the second hour is not added up"
    await rollups.roll(conn)
    assert await retention.delete(conn, "minutes", 100, timedelta()) == 2
    assert await retention.delete(conn, "hours", 100, timedelta()) == 0
    await set_clock(conn, NOON + timedelta(days=91))
    assert await retention.delete(conn, "hours", 100, timedelta()) == 4
