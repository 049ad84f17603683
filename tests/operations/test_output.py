"""Following output: in order, each piece once, whichever server recorded it when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.conftest import MakeTask, eventually

from mainspring.errors import StoreUnavailable, TaskNotFound
from mainspring.model.tasks.states import TaskState
from mainspring.operations.parts import output_readers
from mainspring.operations.parts.output_readers import Alone, Together
from mainspring.operations.work.output import Cursor, Interrupted, NewAttempt, follow
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.search import output_looks
from mainspring.store.search.output_looks import Wanted
from mainspring.store.tasks import partitions, tasks
from mainspring.store.tasks.tasks import Piece

AT = datetime(2026, 11, 15, 9, tzinfo=UTC)


def pieces(*numbers: int, token: int = 5) -> list[Piece]:
    return [Piece(token, number, 1, AT, b"%d.%d " % (token, number)) for number in numbers]


def taken(cursor: Cursor, given: Sequence[Piece], now: float = 0.0) -> list[int]:
    return [piece.number for piece in cursor.take(given, now)]


# ── the cursor ──────────────────────────────────────────────────────────────────────────────────


def test_a_missing_piece_is_waited_for_and_what_is_behind_it_too() -> None:
    cursor = Cursor(patience=10.0)
    assert taken(cursor, pieces(1, 2, 4, 5)) == [1, 2]
    assert cursor.at_gap
    assert taken(cursor, pieces(4, 5), now=9.0) == []
    assert taken(cursor, pieces(3, 4, 5), now=9.5) == [3, 4, 5]
    assert not cursor.at_gap
    assert cursor.after == (5, 5)


def test_a_piece_that_never_comes_is_not_waited_for_for_ever() -> None:
    cursor = Cursor(patience=10.0)
    assert taken(cursor, pieces(3, 4)) == [], "what retention dropped looks the same"
    assert taken(cursor, pieces(3, 4, 6), now=10.0) == [3, 4]
    assert taken(cursor, pieces(6), now=19.0) == [], "each gap has its own time"
    assert taken(cursor, pieces(6), now=20.0) == [6]


def test_a_new_attempt_begins_at_its_own_first_piece() -> None:
    cursor = Cursor(patience=10.0)
    assert taken(cursor, [*pieces(1, 2), *pieces(1, token=9), *pieces(3, token=9)]) == [1, 2, 1]
    assert cursor.after == (9, 1)


# ── on a real database ──────────────────────────────────────────────────────────────────────────


async def record(conn: Connection, task: int, *given: Piece) -> None:
    for piece in given:
        await conn.execute(
            "insert into mainspring.output values ($1, $2, $3, $4, $5, mainspring.now(), $6)", task, *piece
        )


@pytest.fixture(params=[Alone, Together], autouse=True)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers look alone, as those of the command line, or together, as those of a server."""
    monkeypatch.setattr(Follower, "reader", request.param)


class Follower:
    """Follows a task in the background."""

    reader: type[Alone] | type[Together] = Alone

    def __init__(self, dsn: str, task: int, *, gap: float = 600.0) -> None:
        self.database = Database(dsn)
        self.shown: list[str] = []
        self.following = asyncio.ensure_future(self._follow(task, gap))

    async def _follow(self, task: int, gap: float) -> None:
        async for event in follow(self.database, task, wait=True, gap=gap, reader=self.reader(self.database)):
            if isinstance(event, NewAttempt):
                self.shown.append(f"(attempt {event.number} on agent {event.agent})")
            elif not isinstance(event, Interrupted):
                self.shown.append(event.data.decode().strip())

    async def has(self, *expected: str) -> None:
        async def there() -> bool:
            if self.following.done():
                await self.following
            return len(self.shown) >= len(expected)

        await eventually(there)
        assert self.shown == list(expected)


async def end(conn: Connection, task: int) -> None:
    await conn.execute("update mainspring.task set state = 1 where id = $1", task)
    await tasks.cancel(conn, task)


async def test_pieces_that_two_servers_record_out_of_order_and_twice_are_shown_in_order_and_once(
    conn: Connection, dsn: str, make_task: MakeTask
) -> None:
    task = await make_task(TaskState.RUNNING, token=5)
    await record(conn, task, *pieces(1, 2, 4, 2, 4))
    follower = Follower(dsn, task)
    await follower.has("5.1", "5.2")
    await record(conn, task, *pieces(5, 3, 3))
    await follower.has("5.1", "5.2", "5.3", "5.4", "5.5")
    await end(conn, task)
    await asyncio.wait_for(follower.following, 10)
    await follower.database.close()
    assert len(follower.shown) == 5


async def test_a_piece_that_was_recorded_twice_is_read_once(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.RUNNING, token=5)
    await record(conn, task, *pieces(2, 1, 1, 2, 2))
    assert [piece.number for piece in await tasks.output(conn, task)] == [1, 2]


async def test_a_gap_keeps_the_follower_after_the_end_until_it_is_filled(
    conn: Connection, dsn: str, make_task: MakeTask
) -> None:
    task = await make_task(TaskState.RUNNING, token=5)
    await record(conn, task, *pieces(1, 3))
    await end(conn, task)
    follower = Follower(dsn, task)
    await follower.has("5.1")
    assert not follower.following.done()
    await record(conn, task, *pieces(2))
    await asyncio.wait_for(follower.following, 10)
    await follower.database.close()
    assert follower.shown == ["5.1", "5.2", "5.3"]


async def test_a_new_attempt_is_marked_with_its_agent(conn: Connection, dsn: str, make_task: MakeTask) -> None:
    task = await make_task(TaskState.RUNNING, token=9, session=7, attempt=2)
    await conn.execute(
        "insert into mainspring.agent (session, name, slots, lease_until) values (7, 'eve', 1, mainspring.now())"
    )
    await record(conn, task, *pieces(1), *pieces(1, 2, token=9))
    follower = Follower(dsn, task)
    await follower.has("5.1", "(attempt 2 on agent eve)", "9.1", "9.2")
    await end(conn, task)
    await asyncio.wait_for(follower.following, 10)
    await follower.database.close()


async def test_a_follower_outlives_a_database_that_is_away_for_a_while(
    conn: Connection, dsn: str, make_task: MakeTask
) -> None:
    task = await make_task(TaskState.RUNNING, token=5)
    await record(conn, task, *pieces(1))
    follower = Follower(dsn, task)
    await follower.has("5.1")
    name = await conn.fetchval("select current_database()")
    await conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()", name
    )
    await record(conn, task, *pieces(2))
    await follower.has("5.1", "5.2")
    await end(conn, task)
    await asyncio.wait_for(follower.following, 10)
    await follower.database.close()


async def test_a_database_that_was_never_there_is_told_at_once() -> None:
    follower = Follower("postgresql://127.0.0.1:1/nowhere", 1)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(follower.following, 20)
    await follower.database.close()


class Unreachable:
    """PostgreSQL does not answer the first time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._failed = False

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        if not self._failed:
            self._failed = True
            raise StoreUnavailable("away")
        async with self._database.acquire() as conn:
            yield conn


async def test_a_patient_follower_waits_for_postgresql_from_the_start(
    database: Database, conn: Connection, make_task: MakeTask
) -> None:
    id = await make_task(TaskState.RUNNING)
    await record(conn, id, *pieces(1, 2))
    with pytest.raises(StoreUnavailable):
        await anext(follow(Unreachable(database), id, wait=True))
    following = follow(Unreachable(database), id, wait=True, patient=True, after=(5, 1))
    assert isinstance(await anext(following), Interrupted)
    assert await anext(following) == pieces(2)[0]


async def test_output_of_days_ago_is_shown_whole_across_a_gap(conn: Connection, dsn: str, make_task: MakeTask) -> None:
    """What was recorded long before a follower came is not left out because it has looked once."""
    task = await make_task(TaskState.RUNNING, token=5)
    day = datetime.now(UTC) - timedelta(days=3)
    await partitions._make(conn, "output", day.date())
    await record(conn, task, *pieces(1, 3))
    await conn.execute("update mainspring.output set recorded_at = $1", day)
    follower = Follower(dsn, task, gap=0.2)
    await follower.has("5.1", "5.3")
    await end(conn, task)
    await asyncio.wait_for(follower.following, 10)
    await follower.database.close()


async def test_a_task_that_does_not_exist_has_no_output_to_follow(database: Database) -> None:
    with pytest.raises(TaskNotFound):
        await anext(follow(database, 99, wait=True, reader=Together(database)))


async def test_one_attempt_is_followed_until_it_has_ended(
    conn: Connection, database: Database, make_task: MakeTask
) -> None:
    task = await make_task(TaskState.RUNNING, token=9, session=7, attempt=2)
    await record(conn, task, *pieces(1), *pieces(1, token=9))
    wanted = [Wanted(task, 0, 0, 5), Wanted(task, 0, 0, 9), Wanted(task, 0, 0), Wanted(task + 1, 0, 0)]
    first, second, both, none = await output_looks.look(conn, wanted, limit=10)
    assert ([piece.token for piece in first.pieces], first.has_ended) == ([5], True)
    assert ([piece.token for piece in second.pieces], second.has_ended) == ([5, 9], False)
    assert ([piece.token for piece in both.pieces], both.has_ended) == ([5, 9], False)
    assert (none.pieces, none.has_ended) == ([], True)
    shown = [event async for event in follow(database, task, wait=True, only=5)]
    assert shown == pieces(1)


async def test_followers_that_have_caught_up_share_a_statement(
    conn: Connection, database: Database, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await make_task(TaskState.RUNNING, token=5) for _ in range(output_readers.AT_ONCE + 8)]
    together = Together(database)
    caught_up = await Alone(database).look(Wanted(made[0], 0, 0), 16, None)
    asked: list[int] = []
    look = output_looks.look

    async def watched(conn: Connection, wanted: Sequence[Wanted], **how: Any) -> list[output_looks.Look]:
        asked.append(len(wanted))
        return await look(conn, wanted, **how)

    monkeypatch.setattr(output_looks, "look", watched)
    await record(conn, made[3], *pieces(1))
    left = asyncio.ensure_future(together.look(Wanted(made[0], 0, 0), 16, caught_up))
    others = [asyncio.ensure_future(together.look(Wanted(task, 0, 0), 16, caught_up)) for task in made]
    await asyncio.sleep(0)
    left.cancel()
    found = await asyncio.gather(*others)
    assert asked == [output_readers.AT_ONCE, 8]
    assert [len(one.pieces) for one in found] == [int(task == made[3]) for task in made]
    assert not any(one.has_ended for one in found)
    await together.close()


async def test_each_of_those_that_look_together_learns_that_postgresql_is_away(
    database: Database, conn: Connection, make_task: MakeTask
) -> None:
    task = await make_task(TaskState.RUNNING, token=5)
    caught_up = await Alone(database).look(Wanted(task, 0, 0), 16, None)
    together = Together(Unreachable(database))
    looks = [together.look(Wanted(task, 0, 0), 16, caught_up) for _ in range(3)]
    found = await asyncio.gather(*looks, return_exceptions=True)
    assert [type(one) for one in found] == [StoreUnavailable] * 3
    assert (await together.look(Wanted(task, 0, 0), 16, caught_up)).pieces == []
    await together.close()
