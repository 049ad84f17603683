"""Retention by job: shorter than the cluster's, also below a day, and longer than it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.query_plans import nodes

from mainspring.model.tasks.define_job import define
from mainspring.model.tasks.jobs import Python
from mainspring.model.tasks.states import TaskState
from mainspring.server.cluster.janitor import Janitor
from mainspring.store.maintenance import job_retention
from mainspring.store.maintenance.job_retention import Kept
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.search.whole import whole
from mainspring.store.tasks import jobs, partitions

NOON = datetime(2031, 5, 10, 12, tzinfo=UTC)
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
CLUSTER = {"keep_succeeded": 7 * DAY, "keep_failed": 30 * DAY}


async def set_clock(conn: Connection, now: datetime) -> None:
    await conn.execute(f"""
        create or replace function mainspring.now() returns timestamptz language sql volatile
            as 'select timestamptz ''{now.isoformat()}'''
    """)


async def make_days(conn: Connection, days: int) -> None:
    """The partitions of so many days up to noon, and the day after."""
    for ago in range(days, -1, -1):
        await set_clock(conn, NOON - ago * DAY)
        await partitions.make_ahead(conn, 1)


async def register(conn: Connection, **keeps: dict[str, Any]) -> dict[str, int]:
    """Jobs by name, with their retention; returns their ids."""
    await jobs.register(conn, {name: define(Python(name), keep) for name, keep in keeps.items()})  # type: ignore[arg-type]
    return {row["name"]: row["id"] for row in await conn.fetch("select id, name from mainspring.job")}


_next = iter(range(1, 1_000_000))


async def ended(
    conn: Connection, job: int, ago: timedelta, state: TaskState = TaskState.SUCCEEDED, **columns: Any
) -> int:
    """A task of the history with an earlier attempt and some output."""
    at, id = NOON - ago, next(_next)
    values = {"id": id, "job_id": job, "state": int(state), "finished_at": at, "recorded_at": at, "run_at": at}
    values |= {"created_at": at, "pool": 1, "priority": 5, "attempt": 2, "crashes": 0, "args": "{}"} | columns
    names = ", ".join(values)
    places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    await conn.execute(f"insert into mainspring.task_history ({names}) values ({places})", *values.values())
    await conn.execute(
        """insert into mainspring.attempt (task_id, token, number, state, finished_at, recorded_at, run_at)
           values ($1, 1, 1, 11, $2, $2, $2)""",
        id,
        at,
    )
    await conn.execute(
        """insert into mainspring.output (task_id, token, number, stream, at, recorded_at, data)
           values ($1, 1, 1, 1, $2, $2, 'x')""",
        id,
        at,
    )
    return id


async def left(conn: Connection) -> list[int]:
    return [row["id"] for row in await conn.fetch("select id from mainspring.task_history order by id")]


async def belongings(conn: Connection) -> tuple[list[int], list[int]]:
    """The tasks that have attempts, and those that have output."""
    rows = [
        await conn.fetch(f"select task_id from mainspring.{table} order by task_id") for table in ("attempt", "output")
    ]
    return [row["task_id"] for row in rows[0]], [row["task_id"] for row in rows[1]]


async def forget(conn: Connection, **options: Any) -> int:
    return await job_retention.forget(conn, **(CLUSTER | {"limit": 1000} | options))


# ── shorter ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_keeps_its_tasks_for_less_than_the_cluster(conn: Connection) -> None:
    await make_days(conn, 4)
    ids = await register(conn, short={"keep_succeeded": "2h", "keep_failed": "3d"}, other={})
    gone = [
        await ended(conn, ids["short"], 2 * HOUR + MINUTE),
        await ended(conn, ids["short"], 3 * DAY, TaskState.SKIPPED),
        await ended(conn, ids["short"], 3 * DAY + HOUR, TaskState.TIMED_OUT),
    ]
    stays = [
        await ended(conn, ids["short"], 2 * HOUR - MINUTE),
        await ended(conn, ids["short"], 3 * DAY - HOUR, TaskState.FAILED),
        await ended(conn, ids["other"], 4 * DAY),
    ]
    assert await forget(conn) == len(gone)
    assert await left(conn) == stays
    assert await belongings(conn) == (stays, stays), "attempts and output go with their task"
    assert await forget(conn) == 0


async def test_nothing_is_kept_of_a_job_that_wants_nothing_kept_but_for_a_minute(conn: Connection) -> None:
    await make_days(conn, 1)
    ids = await register(conn, none={"keep_succeeded": 0})
    await ended(conn, ids["none"], 2 * MINUTE)
    young = await ended(conn, ids["none"], MINUTE / 2)
    assert await forget(conn) == 1
    assert await left(conn) == [young], "who waits for its result finds it"
    await set_clock(conn, NOON + MINUTE)
    assert await forget(conn) == 1


async def test_what_expires_later_is_found_by_a_later_round(conn: Connection) -> None:
    await make_days(conn, 1)
    ids = await register(conn, short={"keep_succeeded": "1h"})
    tasks = [await ended(conn, ids["short"], minutes * MINUTE) for minutes in range(50, 0, -10)]
    for minutes, expected in ((0, tasks), (25, tasks[2:]), (45, tasks[4:])):
        await set_clock(conn, NOON + minutes * MINUTE)
        await forget(conn)
        assert await left(conn) == expected
    upto = await conn.fetchval("select upto from mainspring.retention_mark")
    assert upto == NOON - 15 * MINUTE


async def test_a_round_is_bounded_and_the_next_goes_on(conn: Connection) -> None:
    await make_days(conn, 1)
    ids = await register(conn, short={"keep_succeeded": "1h"})
    for _ in range(25):
        await ended(conn, ids["short"], 2 * HOUR)
    assert [await forget(conn, limit=10) for _ in range(4)] == [10, 10, 5, 0]


async def test_without_time_a_round_does_nothing_and_says_so(conn: Connection) -> None:
    await make_days(conn, 1)
    ids = await register(conn, short={"keep_succeeded": "1h"})
    await ended(conn, ids["short"], 2 * HOUR)
    assert await forget(conn, seconds=0.0) == 0
    assert await forget(conn) == 1


async def test_a_job_that_gets_a_shorter_retention_loses_what_is_older(conn: Connection) -> None:
    await make_days(conn, 3)
    ids = await register(conn, short={"keep_succeeded": "1h"}, late={})
    await forget(conn)
    await ended(conn, ids["late"], 2 * DAY)
    assert await forget(conn) == 0
    await register(conn, short={"keep_succeeded": "1h"}, late={"keep_succeeded": "1h"})
    assert await forget(conn) == 1, "the mark of the group goes back"


async def test_what_others_need_stays(conn: Connection) -> None:
    await make_days(conn, 1)
    ids = await register(conn, none={"keep_succeeded": 0})
    parent = await ended(conn, ids["none"], HOUR)
    await conn.execute("insert into mainspring.dependency (parent, child) values ($1, 999999)", parent)
    coming = await ended(conn, ids["none"], HOUR, result_due=True)
    await conn.execute(
        """insert into mainspring.task (id, run_at, created_at, job_id, pool, state, priority, args)
           values (888888, mainspring.now(), mainspring.now(), 1, 1, 3, 5, '{}')"""
    )
    run = await ended(conn, ids["none"], HOUR, parent_id=888888)
    assert await forget(conn) == 0
    assert await left(conn) == [parent, coming, run]


async def test_the_whole_cluster_may_keep_less_than_a_day(conn: Connection) -> None:
    await make_days(conn, 1)
    ids = await register(conn, own={"keep_succeeded": "6h"}, other={})
    cluster = {"keep_succeeded": 2 * HOUR, "keep_failed": 7 * DAY}
    await ended(conn, ids["other"], 3 * HOUR)
    stays = [
        await ended(conn, ids["own"], 3 * HOUR),
        await ended(conn, ids["other"], HOUR),
        await ended(conn, ids["other"], 3 * HOUR, TaskState.FAILED),
    ]
    assert await forget(conn, **cluster) == 1
    assert await left(conn) == stays
    await register(conn, own={}, other={})
    assert await forget(conn, **cluster) == 1, "it is among the others now"


async def test_two_janitors_share_the_work(dsn: str, conn: Connection) -> None:
    await make_days(conn, 1)
    ids = await register(conn, short={"keep_succeeded": "1h"})
    for _ in range(200):
        await ended(conn, ids["short"], 2 * HOUR)
    other = await Database(dsn).connect()
    counts = await asyncio.gather(*(_rounds(hand) for hand in (conn, other)))
    assert sum(counts) == 200
    assert await left(conn) == []
    await other.close()


async def _rounds(conn: Connection) -> int:
    count = 0
    for _ in range(20):
        count += await forget(conn, limit=20)
    return count


# ── longer ──────────────────────────────────────────────────────────────────────────────────────


def test_jobs_that_keep_longer_are_told_by_table() -> None:
    given = [Kept(1, 10 * DAY, None), Kept(2, HOUR, None), Kept(3, None, 60 * DAY), Kept(4, 3 * DAY, 20 * DAY)]
    assert job_retention.longer(given, keep_succeeded=7 * DAY, keep_failed=30 * DAY) == {
        "task_history_succeeded": {1: 10 * DAY},
        "task_history_failed": {3: 60 * DAY},
        "attempt": {3: 60 * DAY},
        "output": {3: 60 * DAY},
    }


async def aged(conn: Connection, days: float) -> list[str]:
    """What a janitor drops so many days after noon; then it forgets."""
    await set_clock(conn, NOON + days * DAY)
    longer = job_retention.longer(await job_retention.of_jobs(conn), keep_succeeded=DAY, keep_failed=2 * DAY)
    dropped = await partitions.drop_old(conn, keep_succeeded=DAY, keep_failed=2 * DAY, longer=longer)
    await forget(conn, keep_succeeded=DAY, keep_failed=2 * DAY)
    return dropped


async def test_a_job_keeps_its_tasks_for_longer_than_the_cluster(conn: Connection) -> None:
    await make_days(conn, 0)
    ids = await register(conn, long={"keep_succeeded": "10d", "keep_failed": "10d"}, other={})
    kept = [await ended(conn, ids["long"], HOUR), await ended(conn, ids["long"], HOUR, TaskState.FAILED)]
    await ended(conn, ids["other"], HOUR)
    await ended(conn, ids["other"], HOUR, TaskState.FAILED)
    dropped = await aged(conn, 5)
    assert {"task_history_succeeded_20310510", "attempt_20310510", "output_20310510"} <= set(dropped)
    assert await left(conn) == kept
    assert await belongings(conn) == (kept, kept)
    assert not [name for name in await aged(conn, 6) if "2031" in name], "once"
    names = (await partitions._existing(conn))["task_history_succeeded"]
    assert "task_history_succeeded_20310510k" in names
    assert not [name for name in names if "20310509" in name], "a day without such rows is dropped"
    await aged(conn, 9)
    assert await left(conn) == kept
    await aged(conn, 10)
    assert await left(conn) == [], "row by row, once its own time is over"
    dropped = await aged(conn, 12)
    assert {"task_history_succeeded_20310510k", "attempt_20310510k"} <= set(dropped)


async def test_the_kept_days_of_a_month_become_one_table(conn: Connection) -> None:
    ids = await register(conn, long={"keep_failed": "100d"})
    kept = []
    for day in range(40):  # from 10 May to 18 June
        await set_clock(conn, NOON + day * DAY)
        await partitions.make_ahead(conn, 1)
        kept.append(await ended(conn, ids["long"], -day * DAY, TaskState.FAILED))
        await aged(conn, day)
    names = sorted(name for name in (await partitions._existing(conn))["task_history_failed"] if "2031" in name)
    june = [f"task_history_failed_203106{day:02}" for day in range(1, 20)]
    assert names == ["task_history_failed_203105k", *(f"{name}k" for name in june[:15]), *june[15:]]
    assert await left(conn) == kept
    assert await belongings(conn) == (kept, kept)
    first = [day for day in await partitions.days(conn, "task_history_failed") if day.year == 2031]
    assert (first[0], len(first)) == (datetime(2031, 5, 1, tzinfo=UTC), 31 + 19)
    await set_clock(conn, NOON + 5 * DAY)  # the clock goes back to a day that has no table by itself
    await partitions.make_ahead(conn, 1)
    assert names == sorted(name for name in (await partitions._existing(conn))["task_history_failed"] if "2031" in name)
    await aged(conn, 105)
    assert await left(conn) == kept[5:], "row by row"
    dropped = await aged(conn, 122)
    assert "task_history_failed_203105k" in dropped
    assert await left(conn) == kept[22:]


async def test_a_kept_task_is_found_and_can_be_retried(conn: Connection) -> None:
    from mainspring.store.tasks import tasks

    await make_days(conn, 0)
    ids = await register(conn, long={"keep_failed": "10d"})
    id = await ended(conn, ids["long"], HOUR, TaskState.FAILED)
    await aged(conn, 5)
    found = await whole(conn, id)
    assert (found.task.state, len(found.attempts)) == ("failed", 1)
    await tasks.run_again(conn, id)
    assert await left(conn) == []


async def test_without_jobs_that_keep_longer_days_are_dropped_as_ever(conn: Connection) -> None:
    await make_days(conn, 0)
    ids = await register(conn, long={"keep_failed": "10d"})
    await ended(conn, ids["long"], HOUR, TaskState.FAILED)
    await aged(conn, 5)
    await register(conn, long={})
    await aged(conn, 5)
    assert await left(conn) == [], "and what was kept goes once no job keeps longer"


async def test_a_day_that_is_not_over_is_not_condensed(conn: Connection) -> None:
    await make_days(conn, 0)
    assert await conn.fetchval("select mainspring.condense_partition('task_history_failed_20310510', '{1}')") == 0
    assert "task_history_failed_20310510" in (await partitions._existing(conn))["task_history_failed"]


async def test_a_reader_of_a_day_makes_condensing_give_up_soon(dsn: str, conn: Connection) -> None:
    await make_days(conn, 0)
    ids = await register(conn, long={"keep_succeeded": "10d", "keep_failed": "10d"})
    kept = await ended(conn, ids["long"], HOUR)
    reader = await Database(dsn).connect()
    async with reader.transaction():
        await reader.fetch("select * from mainspring.task_history_succeeded")
        dropped = await asyncio.wait_for(aged(conn, 5), 20)
        assert not [name for name in dropped if name.startswith("task_history_succeeded")]
    assert await left(conn) == [kept]
    await aged(conn, 5)
    assert await left(conn) == [kept]
    await reader.close()


async def test_the_janitor_does_both(database: Database, conn: Connection) -> None:
    await make_days(conn, 3)
    ids = await register(conn, short={"keep_succeeded": "1h"}, long={"keep_succeeded": "10d"})
    await ended(conn, ids["short"], 2 * HOUR)
    kept = await ended(conn, ids["long"], 3 * DAY)
    janitor = Janitor(database, keep_succeeded=DAY, keep_failed=DAY)
    await janitor.step()
    assert await left(conn) == [kept]
    assert janitor.tallies["forget tasks"].rows == 1


# ── what it reads ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("others", [False, True])
async def test_a_round_reads_one_day_by_its_index(conn: Connection, others: bool) -> None:
    await make_days(conn, 5)
    times = {"start": (NOON - 2 * HOUR).isoformat(), "end": (NOON - HOUR).isoformat()}
    which = {"which": "<> all" if others else "= any", "jobs": "1,2,3", "limit": 100}
    search = job_retention._EXPIRED.format(parent="task_history_succeeded", **times, **which)
    delete = job_retention._DELETE.format(table="task_history_succeeded", id="id", **times)
    scans: list[tuple[str, str | None, str | None]] = []
    for bitmap, statement in (("on", search), ("off", delete.replace("$1", "'{1,2,3}'"))):
        async with conn.transaction():
            await conn.execute(f"set local enable_partition_pruning = on; set local enable_bitmapscan = {bitmap}")
            [explained] = json.loads(await conn.fetchval(f"explain (format json) {statement}"))
        scans += [
            (node["Node Type"], node.get("Relation Name"), node.get("Index Name"))
            for node in nodes(explained["Plan"])
            if "Scan" in node["Node Type"] and "task_history" in str(node)
            if node.get("Relation Name", "task_history").startswith("task_history")
        ]
    day = "task_history_succeeded_20310510"
    assert scans == [
        ("Bitmap Heap Scan", day, None),
        ("Bitmap Index Scan", None, f"{day}_recorded_at_idx"),
        ("Index Scan", day, f"{day}_id_idx"),
    ]
