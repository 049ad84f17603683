"""Partitions of the history: made ahead, dropped by retention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from mainspring.model.messages import Ending
from mainspring.model.tasks.states import TaskState
from mainspring.store.daemons import daemons
from mainspring.store.maintenance import retention
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import partitions, transitions
from mainspring.store.tasks.partitions import PARENTS

MakeTask = Callable[..., Awaitable[int]]

DAY = timedelta(days=1)


async def set_clock(conn: Connection, now: datetime) -> None:
    await conn.execute(f"""
        create or replace function mainspring.now() returns timestamptz language sql volatile
            as 'select timestamptz ''{now.isoformat()}'''
    """)


async def days(conn: Connection, parent: str) -> list[str]:
    found = await partitions._existing(conn)
    return sorted(name.removeprefix(f"{parent}_") for name in found[parent])


async def test_yesterday_today_and_the_days_ahead_are_made(conn: Connection) -> None:
    await set_clock(conn, datetime(2031, 2, 27, 23, 59, tzinfo=UTC))
    assert await partitions.make_ahead(conn, 2) == 4 * len(PARENTS)
    for parent in PARENTS:
        assert [day for day in await days(conn, parent) if day > "2031"] == [
            "20310226",
            "20310227",
            "20310228",
            "20310301",
        ]
    assert await partitions.make_ahead(conn, 2) == 0
    await set_clock(conn, datetime(2031, 2, 28, 0, 0, tzinfo=UTC))
    assert await partitions.make_ahead(conn, 2) == len(PARENTS)


@pytest.mark.usefixtures("dsn")
async def test_no_advisory_lock_of_a_stranger_blocks_the_making_and_dropping(conn: Connection, dsn: str) -> None:
    """Without the partition of the day nothing that ends can be recorded."""
    stranger = await Database(dsn).connect()
    await stranger.execute("select pg_advisory_lock(x'70617274'::bigint), pg_advisory_lock(x'726f6c6c'::bigint)")
    await set_clock(conn, datetime(2031, 2, 27, tzinfo=UTC))
    assert await partitions.make_ahead(conn, 0)
    assert await partitions.drop_old(conn, keep_succeeded=DAY, keep_failed=DAY)
    locks = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
    async with conn.transaction():
        await daemons.roll(conn)
        assert await conn.fetchval(locks) == 0
    await stranger.close()


async def test_the_day_is_that_of_utc_whatever_the_sessions_timezone(conn: Connection) -> None:
    await conn.execute("set timezone = 'Pacific/Kiritimati'")
    await set_clock(conn, datetime(2031, 5, 1, 23, 30, tzinfo=UTC))
    await partitions.make_ahead(conn, 0)
    assert [day for day in await days(conn, "output") if day > "2031"] == ["20310430", "20310501"]
    bounds = await conn.fetchval(
        "select pg_get_expr(relpartbound, oid) from pg_class where relname = 'output_20310501'"
    )
    await conn.execute("set timezone = 'UTC'")
    at = "select pg_get_expr(relpartbound, oid) from pg_class where relname = 'output_20310501'"
    assert bounds
    assert "2031-05-01 00:00:00+00" in await conn.fetchval(at)


async def test_concurrent_processes_make_each_partition_once(dsn: str, conn: Connection) -> None:
    await set_clock(conn, datetime(2031, 5, 1, tzinfo=UTC))
    connections = [await Database(dsn).connect() for _ in range(5)]
    await asyncio.gather(*(partitions.make_ahead(connection, 3) for connection in connections))
    for connection in connections:
        await connection.close()
    assert len([day for day in await days(conn, "attempt") if day > "2031"]) == 5


async def test_making_a_partition_waits_for_no_reader(dsn: str, conn: Connection) -> None:
    reader = await Database(dsn).connect()
    async with reader.transaction():
        await reader.fetch("select * from mainspring.task_history")
        await set_clock(conn, datetime(2031, 5, 1, tzinfo=UTC))
        await asyncio.wait_for(partitions.make_ahead(conn, 0), 10)
    await reader.close()


async def test_each_outcome_is_kept_as_long_as_it_says(conn: Connection) -> None:
    start = datetime(2031, 5, 1, 12, tzinfo=UTC)
    await set_clock(conn, start)
    await partitions.make_ahead(conn, 0)
    await set_clock(conn, start + 3 * DAY)
    dropped = await partitions.drop_old(conn, keep_succeeded=3 * DAY, keep_failed=5 * DAY)
    assert [name for name in dropped if "2031" in name] == ["task_history_succeeded_20310430"]
    await set_clock(conn, start + 6 * DAY)
    dropped = await partitions.drop_old(conn, keep_succeeded=3 * DAY, keep_failed=5 * DAY)
    assert dropped == [
        "task_history_succeeded_20310501",
        "task_history_failed_20310430",
        "task_history_failed_20310501",
        "attempt_20310430",
        "attempt_20310501",
        "output_20310430",
        "output_20310501",
        "fire_20310430",
        "fire_20310501",
    ]


async def test_nothing_younger_than_its_retention_is_dropped(conn: Connection, make_task: MakeTask) -> None:
    recorded = datetime(2031, 5, 1, 23, 59, 59, tzinfo=UTC)
    await set_clock(conn, recorded)
    await partitions.make_ahead(conn, 0)
    tasks = [await make_task(TaskState.RUNNING, token=1) for _ in range(2)]
    await transitions.finish(conn, [Ending(tasks[0], 1, 1, 1, TaskState.SUCCEEDED, 1.0, 2.0)])
    await transitions.finish(conn, [Ending(tasks[1], 1, 1, 1, TaskState.FAILED, 1.0, 2.0)])

    async def left() -> list[int]:
        return [row["id"] for row in await conn.fetch("select id from mainspring.task_history order by id")]

    for age, expected in [(1 * DAY, tasks), (1.1 * DAY, tasks[1:]), (3 * DAY, tasks[1:]), (3.1 * DAY, [])]:
        await set_clock(conn, recorded + age)
        await partitions.drop_old(conn, keep_succeeded=1 * DAY, keep_failed=3 * DAY)
        assert await left() == expected


async def test_a_reader_of_an_old_day_makes_the_drop_give_up_soon(dsn: str, conn: Connection) -> None:
    reader = await Database(dsn).connect()
    async with reader.transaction():
        await reader.fetch("select * from mainspring.task_history")
        await set_clock(conn, datetime(2035, 1, 1, tzinfo=UTC))
        dropped = await asyncio.wait_for(partitions.drop_old(conn, keep_succeeded=DAY, keep_failed=DAY), 10)
        assert {name.rpartition("_")[0] for name in dropped} == {"attempt", "output", "fire"}, "the others are"
        with pytest.raises(asyncpg.LockNotAvailableError):
            await asyncio.wait_for(partitions.drop_old(conn, keep_succeeded=DAY, keep_failed=DAY), 10)
    await reader.close()
    assert await partitions.drop_old(conn, keep_succeeded=DAY, keep_failed=DAY)


async def test_only_expired_keys_are_forgotten(conn: Connection) -> None:
    await conn.execute("""
        insert into mainspring.task_key (job_id, key, task_id, expires_at)
        select 1, n::text, n, mainspring.now() + make_interval(secs => n * 60 - 180) from generate_series(1, 5) n
    """)
    assert await retention.delete(conn, "keys", 2, DAY) == 2
    assert await retention.delete(conn, "keys", 2, DAY) == 1
    assert await retention.delete(conn, "keys", 2, DAY) == 0
    assert await conn.fetchval("select count(*) from mainspring.task_key") == 2


async def test_sessions_that_ended_long_ago_are_forgotten(conn: Connection) -> None:
    await conn.execute("""
        insert into mainspring.agent (name, slots, lease_until, ended_at)
        values ('old', 1, now(), now() - interval '10 days'), ('new', 1, now(), now()), ('alive', 1, now(), null)
    """)
    assert await retention.delete(conn, "sessions", 10, 5 * DAY) == 1
    assert [r["name"] for r in await conn.fetch("select name from mainspring.agent order by 1")] == ["alive", "new"]
