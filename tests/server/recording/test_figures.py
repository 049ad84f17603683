"""FiguresWriter, on a real database: whole rows by the minute, none of them lost or counted twice."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mainspring.errors import StoreUnavailable
from mainspring.model.messages import Ending
from mainspring.model.tasks.states import TaskState
from mainspring.server.recording import figures
from mainspring.server.recording.figures import FiguresWriter
from mainspring.server.recording.tallies import Tallies
from mainspring.store.figures import rollups
from mainspring.store.postgres.database import Connection, Database
from mainspring.wire.clock import Clock

NOON = 1_790_000_040 // 60 * 60  # the beginning of a minute
OK = Ending(1, 1, 7, 1, TaskState.SUCCEEDED, 100.0, 100.02, fire_at=99.999)


class SetClock(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.at_second = float(NOON)

    def now(self) -> float:
        return self.at_second


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def tallies() -> Tallies:
    return Tallies()


@pytest.fixture
def writer(database: Database, tallies: Tallies, clock: SetClock) -> FiguresWriter:
    return FiguresWriter(database, tallies, clock)


async def rows(conn: Connection, job: int = 7) -> list[tuple[int, int]]:
    """Minute, counted from noon, and count."""
    found = await conn.fetch(
        """select (extract(epoch from minute)::bigint - $1) / 60, sum(count)::bigint from mainspring.figure
            where job_id = $2 group by 1 order by 1""",
        NOON,
        job,
    )
    return [tuple(row) for row in found]


def test_figures_are_written_every_two_seconds_at_most() -> None:
    assert figures.WRITE_EVERY * 1.1 <= 2.0, "run_every waits up to a tenth longer"


async def test_a_minute_is_written_again_as_it_grows(
    conn: Connection, tallies: Tallies, writer: FiguresWriter, clock: SetClock
) -> None:
    for second, endings in ((1.0, [OK]), (3.0, [OK, OK]), (59.9, []), (61.0, [OK])):
        clock.at_second = NOON + second
        tallies.count(endings)
        await writer.step()
    assert await rows(conn) == [(0, 3), (1, 1)]
    assert await rows(conn, rollups.ALL_JOBS) == [(0, 3), (1, 1)]
    row = await conn.fetchrow("select * from mainspring.figure where job_id = 7 order by minute limit 1")
    assert (sum(row["durations"]), sum(row["due"]), row["planned"]) == (3, 3, None)
    assert round(row["duration_sum"], 3) == 0.06


async def test_a_maximum_is_of_its_minute(
    conn: Connection, tallies: Tallies, writer: FiguresWriter, clock: SetClock
) -> None:
    for second, seconds in ((1.0, 8.0), (2.0, 1.0), (61.0, 2.0)):
        clock.at_second = NOON + second
        tallies.count([replace(OK, finished_at=OK.started_at + seconds)])
        await writer.step()
    found = await conn.fetch("select duration_max from mainspring.figure where job_id = 7 order by minute")
    assert [row["duration_max"] for row in found] == [8.0, 2.0]


async def test_what_could_not_be_written_or_was_not_answered_is_written_later_and_once(
    conn: Connection, tallies: Tallies, writer: FiguresWriter, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = rollups.write

    async def unanswered(conn: Connection, given: list[rollups.Rollup]) -> None:
        await write(conn, given)
        raise StoreUnavailable("the answer was lost")

    async def refused(conn: Connection, given: list[rollups.Rollup]) -> None:
        raise StoreUnavailable("PostgreSQL is down")

    for second, fault in ((1.0, unanswered), (2.0, refused), (61.0, refused)):
        clock.at_second = NOON + second
        tallies.count([OK])
        monkeypatch.setattr(rollups, "write", fault)
        with pytest.raises(StoreUnavailable):
            await writer.step()
    monkeypatch.undo()
    await writer.step()
    assert await rows(conn) == [(0, 2), (1, 1)]


async def test_a_clock_that_is_set_back_overwrites_nothing(
    conn: Connection, tallies: Tallies, writer: FiguresWriter, clock: SetClock
) -> None:
    for second in (1.0, 61.0, 2.0, 62.0):
        clock.at_second = NOON + second
        tallies.count([OK])
        await writer.step()
    assert await rows(conn) == [(0, 2), (1, 2)]


async def test_what_waits_to_be_written_when_the_clock_is_set_back_is_written_too(
    conn: Connection, tallies: Tallies, writer: FiguresWriter, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(conn: Connection, given: object) -> None:
        raise StoreUnavailable("PostgreSQL does not answer")

    with monkeypatch.context() as outage:
        outage.setattr(rollups, "write", down)
        for second in (1.0, 61.0, 2.0):
            clock.at_second = NOON + second
            tallies.count([OK])
            with pytest.raises(StoreUnavailable):
                await writer.step()
    await writer.step()
    assert await rows(conn) == [(0, 2), (1, 1)]


async def test_servers_count_beside_each_other(conn: Connection, database: Database, clock: SetClock) -> None:
    for count in (1, 2):
        tallies = Tallies()
        tallies.count([OK] * count)
        await FiguresWriter(database, tallies, clock).step()
    assert await rows(conn) == [(0, 3)]


async def test_many_jobs_are_written_in_parts(
    conn: Connection, tallies: Tallies, writer: FiguresWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "AT_ONCE", 3)
    tallies.count([replace(OK, job=job) for job in range(1, 11)])
    await writer.step()
    assert await conn.fetchval("select count(*) from mainspring.figure") == 11
    assert await rows(conn, rollups.ALL_JOBS) == [(0, 10)]
