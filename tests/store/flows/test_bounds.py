"""Bounded queues: exact over all processes, however a task is submitted, and counted seldom."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from tests.conftest import Eventually

from mainspring.errors import QueueFull
from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.server.cluster.bounds_keeper import BoundsKeeper
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.store.cluster import holds, settings
from mainspring.store.flows import bounds
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.submission.drivers import submit
from mainspring.store.submission.enqueue import submit_each
from mainspring.store.submission.submissions import BulkSubmission, Submission
from mainspring.store.tasks import jobs, tasks, transitions

SMALL = Definition(Python("small"), max_queued=3)


@pytest.fixture(autouse=True)
async def defined(conn: Connection) -> None:
    await jobs.register(conn, {"small": SMALL, "free": Definition(Python("free"))})


async def one(conn: Connection, job: str = "small") -> int:
    return int(await submit(conn, Submission(job, "{}")))


async def held(conn: Connection, task: int) -> None:
    """An agent holds it."""
    await conn.execute("update mainspring.task set state = 3, token = 1, session = 1 where id = $1", task)


async def end(conn: Connection, task: int, state: TaskState) -> None:
    await transitions.finish(conn, [Ending(task, 1, 1, 1, state, 1.0, 2.0)])


async def test_since_when_a_queue_is_full_is_kept_until_a_count_finds_room(conn: Connection) -> None:
    jobs, all_together = await bounds.bounded(conn)

    async def since() -> object:
        await bounds.count(conn, jobs, await bounds.mark(conn), all_together=all_together)
        [row] = await conn.fetch("select full_since from mainspring.queue_bound")
        return row["full_since"]

    first, *_ = [await one(conn) for _ in range(2)]
    assert await since() is None
    await one(conn)
    full_since = await since()
    assert full_since is not None
    assert await since() == full_since
    await conn.execute("delete from mainspring.task where id = $1", first)
    assert await since() is None


async def test_a_full_queue_refuses_and_says_when_to_come_back(conn: Connection) -> None:
    first, *_ = [await one(conn) for _ in range(3)]
    with pytest.raises(QueueFull, match=r"queue full: 3 tasks of 'small' wait, and at most 3 may") as full:
        await one(conn)
    assert full.value.code == "queue_full"
    assert full.value.details == {"limit": 3, "waiting": 3, "retry_after": 60, "job": "small"}
    assert await conn.fetchval("select count(*) from mainspring.task") == 3
    assert await one(conn, "free")
    await held(conn, first)
    assert await one(conn), "what an agent holds does not wait"
    with pytest.raises(QueueFull):
        await one(conn)
    assert await conn.fetchval("select last_value from mainspring.queue_full") == 2


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ("small", r"3 may; the job is held, so none starts; `mainspring job release 'small'` lets it go on, then try"),
        (None, r"3 may; everything is held, so none starts; `mainspring release` lets it go on, then try again$"),
    ],
)
async def test_a_queue_that_is_full_and_held_says_both(conn: Connection, job: str | None, told: str) -> None:
    for _ in range(3):
        await one(conn)
    id = await conn.fetchval("select id from mainspring.job where name = $1", job)
    await holds.hold(conn, id, by="alice", note=None, skips=False)
    with pytest.raises(QueueFull, match=told) as full:
        await one(conn)
    assert full.value.details == {"limit": 3, "waiting": 3, "retry_after": 60, "job": "small"}
    await holds.release(conn, id, at_once=True)
    with pytest.raises(QueueFull, match="may; try again in 60 s"):
        await one(conn)


async def test_the_rate_at_which_tasks_ended_says_when_there_is_room(conn: Connection) -> None:
    for _ in range(3):
        await one(conn)
    await conn.execute(
        """insert into mainspring.figure (minute, writer, job_id, count, outcome, again)
           select date_trunc('minute', mainspring.now(), 'UTC') - interval '1 minute', gen_random_uuid(), id, 6, 10,
                  false
             from mainspring.job where name = 'small'"""
    )
    with pytest.raises(QueueFull) as full:
        await one(conn)
    assert 5 <= int(str(full.value.details["retry_after"])) <= 25, "6 tasks in 60 to 120 seconds"


async def test_many_are_taken_all_or_none_and_at_once_each_for_itself(conn: Connection) -> None:
    await one(conn)
    with pytest.raises(QueueFull):
        await submit(conn, BulkSubmission("small", ["{}"] * 3))
    assert await submit_each(conn, [Submission("small", "{}")] * 3) == [None] * 3, "then each goes alone"
    assert len(await submit(conn, BulkSubmission("small", ["{}"] * 2))) == 2
    with pytest.raises(QueueFull):
        await submit(conn, BulkSubmission("small", ["{}"] * 4))
    with pytest.raises(QueueFull) as full:
        await submit(conn, BulkSubmission("small", ["{}"] * 2))
    assert (full.value.limit, full.value.waiting, full.value.retry_after) == (3, 3, 60), "all that wait"
    assert None not in await submit_each(conn, [Submission("free", "{}"), Submission("free", "{}")])


async def test_blocked_and_delayed_tasks_count_and_comebacks_are_never_refused(conn: Connection) -> None:
    parent = await one(conn)
    await submit(conn, Submission("small", "{}", after=[parent]))
    await submit(conn, Submission("small", "{}", delay=timedelta(hours=1)))
    with pytest.raises(QueueFull):
        await one(conn)
    await held(conn, parent)
    await end(conn, parent, TaskState.FAILED)
    await one(conn)
    await tasks.run_again(conn, parent)
    assert await conn.fetchval("select count(*) from mainspring.task") == 4
    with pytest.raises(QueueFull) as full:
        await one(conn)
    assert full.value.waiting == 4, "so that `retry_after` follows from all of them"


async def test_a_bound_that_is_lowered_and_one_that_comes_later(conn: Connection, database: Database) -> None:
    keeper = BoundsKeeper(database, Catalogue(database))
    for _ in range(5):
        await one(conn, "free")
    await jobs.register(conn, {"free": Definition(Python("free"), max_queued=5)})
    assert await keeper.step() == 0
    assert await conn.fetchval("select count(*) from mainspring.task where is_bounded") == 5
    with pytest.raises(QueueFull):
        await one(conn, "free")
    await jobs.register(conn, {"free": Definition(Python("free"), max_queued=2)})
    with pytest.raises(QueueFull, match="5 tasks of 'free' wait, and at most 2 may"):
        await one(conn, "free")
    await jobs.register(conn, {"free": Definition(Python("free"))})
    await one(conn, "free")
    await keeper.step()
    assert await conn.fetchval("select count(*) from mainspring.task where is_bounded") == 0


async def test_far_from_the_bound_nothing_is_counted(
    conn: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.server.cluster.bounds_keeper.REST", 0)
    await jobs.register(conn, {"large": Definition(Python("large"), max_queued=1000)})
    keeper = BoundsKeeper(database, Catalogue(database))
    await submit(conn, BulkSubmission("large", ["{}"] * 10))
    for _ in range(4):
        await keeper.step()
    live, created = await conn.fetchrow(
        "select live, created from mainspring.queue_bound join mainspring.job j on j.id = job_id where j.name = 'large'"
    )
    assert (live, created) == (10, await conn.fetchval("select mainspring.last_task()"))
    await conn.execute("alter function mainspring.count_waiting(integer, bigint) rename to gone")
    await submit(conn, BulkSubmission("large", ["{}"] * 900))
    with pytest.raises(asyncpg.UndefinedFunctionError):
        await submit(conn, BulkSubmission("large", ["{}"] * 91))


async def test_a_count_waits_for_transactions_that_have_drawn_numbers(conn: Connection, database: Database) -> None:
    """Else it would miss what they have not committed yet, for as long as it is believed."""
    async with database.acquire() as other:
        async with other.transaction():
            await one(other)
            mark = await bounds.mark(conn)
            assert not await bounds.is_settled(conn, mark)
        assert await bounds.is_settled(conn, mark)


async def test_a_count_waits_for_a_retry_that_brings_old_numbers_back(
    conn: Connection, database: Database, eventually: Eventually
) -> None:
    ended = [await one(conn) for _ in range(2)]
    for task in ended:
        await held(conn, task)
        await end(conn, task, TaskState.FAILED)
    job = (await jobs.find(conn, "small")).id
    mark = await bounds.mark(conn)
    await bounds.count(conn, [job], mark, all_together=False)
    blocked = "select count(*) > 0 from pg_locks where relation = 'mainspring.queue_bound'::regclass and not granted"
    async with database.acquire() as retrying, database.acquire() as counting:
        async with retrying.transaction():
            for task in ended:
                await tasks.run_again(retrying, task)
            count = asyncio.create_task(bounds.count(counting, [job], mark, all_together=False))
            await eventually(lambda: conn.fetchval(blocked))
        await count
    assert await conn.fetchval("select live from mainspring.queue_bound where job_id = $1", job) == 2


async def test_a_large_queue_is_full_until_the_leader_counts_again(conn: Connection) -> None:
    await jobs.register(conn, {"large": Definition(Python("large"), max_queued=10_001)})
    job = (await jobs.find(conn, "large")).id
    await submit(conn, BulkSubmission("large", ["{}"] * 100))
    mark = await bounds.mark(conn)
    await conn.execute("insert into mainspring.queue_bound values ($1, 10000, $2, mainspring.now())", job, mark.created)
    await one(conn, "large")
    with pytest.raises(QueueFull) as full:
        await one(conn, "large")
    assert full.value.details["waiting"] == 10_001, "10,000 that were counted, and one since"
    await conn.execute("update mainspring.queue_bound set counted_at = counted_at - interval '1 minute'")
    await one(conn, "large")


async def test_what_agents_hold_does_not_count_towards_a_large_bound(
    conn: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.server.cluster.bounds_keeper.REST", 0)
    await jobs.register(conn, {"large": Definition(Python("large"), max_queued=10_001)})
    await settings.put(conn, "max_queued", 10_002)
    ids = await submit(conn, BulkSubmission("large", ["{}"] * 10_001))
    await conn.execute("insert into mainspring.claim (session, batch, tasks) values (1, 1, $1), (1, 2, $1)", ids[:500])
    await conn.execute("update mainspring.task set state = 3, token = 1, session = 1 where id = any ($1)", ids[:400])
    keeper = BoundsKeeper(database, Catalogue(database))
    for _ in range(6):
        await keeper.step()
    counted = await conn.fetch("select live, held from mainspring.queue_bound order by job_id desc")
    assert [tuple(row) for row in counted] == [(10_001, 400), (0, 0), (10_001, 400)]
    await submit(conn, BulkSubmission("large", ["{}"] * 400))
    with pytest.raises(QueueFull) as full:
        await one(conn, "large")
    assert full.value.details["waiting"] == 10_001
    await one(conn, "free")
    with pytest.raises(QueueFull, match="10002 tasks of all jobs wait"):
        await one(conn, "free")


async def test_a_bound_for_all_jobs_together(conn: Connection, database: Database) -> None:
    await settings.put(conn, "max_queued", 2)
    await one(conn, "free")
    await one(conn)
    with pytest.raises(QueueFull, match="2 tasks of all jobs wait"):
        await one(conn, "free")
    keeper = BoundsKeeper(database, Catalogue(database))
    for _ in range(4):
        await keeper.step()
    assert await conn.fetchval("select live from mainspring.queue_bound where job_id = 0") == 2
    await settings.put(conn, "max_queued", None)
    await one(conn, "free")
    assert not await conn.fetchval("select is_checked from mainspring.job where name = 'free'")


async def test_submitters_at_once_pass_a_bound_by_no_more_than_they_are(conn: Connection, database: Database) -> None:
    await jobs.register(conn, {"busy": Definition(Python("busy"), max_queued=40)})

    async def fill() -> int:
        done = 0
        async with database.acquire() as own:
            for _ in range(20):
                try:
                    await one(own, "busy")
                    done += 1
                except QueueFull:
                    break
        return done

    done = sum(await asyncio.gather(*(fill() for _ in range(6))))
    assert 40 <= done <= 40 + 5
    assert done == await conn.fetchval("select count(*) from mainspring.task where is_bounded")
