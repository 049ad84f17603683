"""Queue figures: exact or from a sample, in bounded time, and how many tasks arrive."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest
from tests.conftest import MakeTask
from tests.query_plans import rows_read

from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.server.cluster import queue_counter
from mainspring.server.cluster.queue_counter import QueueCounter
from mainspring.server.recording.tallies import Tallies
from mainspring.store.figures import queues, stats
from mainspring.store.figures.queues import Count, Queue
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs

pytestmark = pytest.mark.usefixtures("dsn")  # what is rolled back leaves blocks behind, which others would read

MANY = 30_000


async def fill(conn: Connection, count: int = MANY) -> None:
    """So many tasks that are due tomorrow."""
    await conn.execute(
        """insert into mainspring.task (id, run_at, created_at, job_id, pool, state, priority, args)
           select nextval('mainspring.task_id'), mainspring.now() + interval '1 day', mainspring.now(), 1, 1, 1, 5, '{}'
             from generate_series(1, $1)""",
        count,
    )


async def test_tasks_are_counted_by_job_and_state(conn: Connection, make_task: MakeTask) -> None:
    due, later = await make_task(), await make_task()
    await make_task(TaskState.RUNNING)
    await make_task(TaskState.BLOCKED)
    await conn.execute("update mainspring.task set run_at = run_at + interval '1 day' where id = $1", later)
    count = await queues.count(conn, 1.0)
    assert {queue.state: (queue.tasks, queue.due) for queue in count.queues} == {
        TaskState.BLOCKED: (1, 1),
        TaskState.PENDING: (2, 1),
        TaskState.RUNNING: (1, 1),
    }
    assert not count.is_estimated
    [pending] = [queue for queue in count.queues if queue.state is TaskState.PENDING]
    assert pending.oldest == await conn.fetchval("select run_at from mainspring.task where id = $1", due)


async def test_a_sample_reads_its_share_of_the_blocks_and_says_that_it_is_one(conn: Connection) -> None:
    await fill(conn)
    count = await queues.count(conn, 0.2)
    assert count.is_estimated
    assert 0.5 * MANY < count.tasks < 2 * MANY
    plan = "\n".join(
        row[0] for row in await conn.fetch(f"explain (analyze, buffers) {queues._COUNT_SAMPLE.replace('$1', '20')}")
    )
    assert "Sample Scan" in plan
    read = int(plan.split("shared hit=")[1].split()[0])
    assert read < 0.5 * await queues.blocks(conn)


async def test_a_count_that_takes_too_long_is_ended_by_postgresql(conn: Connection, database: Database) -> None:
    await fill(conn)
    await conn.execute("""
        create or replace function mainspring.now() returns timestamptz language sql volatile
            as 'select clock_timestamp() from pg_sleep(10)'
    """)
    async with database.acquire() as other:
        with pytest.raises(asyncpg.QueryCanceledError):
            await queues.count_within(other, 1.0, 0.05)
        assert await other.fetchval("show statement_timeout") == "30s", "only of that statement"


async def test_the_leader_samples_what_is_too_much_to_count(
    conn: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(conn)
    monkeypatch.setattr(queue_counter, "EXACT_WITHIN", 10.0)
    monkeypatch.setattr(queue_counter, "SAMPLE_WITHIN", 10.0)
    counter = QueueCounter(database, Tallies().note)
    await counter.step()
    assert [(queue.tasks, queue.due) for queue in await queues.counted(conn, None)] == [(MANY, 0)]
    monkeypatch.setattr(queue_counter, "EXACT", MANY - 1)
    monkeypatch.setattr(queue_counter, "SAMPLE", 100)
    await counter.step()
    last = await queues.last(conn)
    assert last is not None
    assert last.is_estimated


async def test_a_sample_that_takes_too_long_is_smaller_the_next_time(
    conn: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    async def too_slow(conn: Connection, share: float, seconds: float) -> Count:
        given.append(share)
        if share > 0.2:
            raise asyncpg.QueryCanceledError
        return Count([], True)

    async def blocks(conn: Connection) -> int:
        return 2 * queue_counter.SAMPLE

    monkeypatch.setattr(queues, "count_within", too_slow)
    monkeypatch.setattr(queues, "blocks", blocks)
    counter = QueueCounter(database, Tallies().note)
    for _ in range(4):
        await counter.step()
    assert given == [1.0, 0.5, 0.25, 0.125, 0.25], "a whole count is tried once"
    assert queue_counter.EXACT_WITHIN + queue_counter.SAMPLE_WITHIN <= 0.2


async def test_what_is_no_longer_there_is_forgotten(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task()
    await queues.write(conn, await queues.count(conn, 1.0), 0.1)
    assert len(await queues.counted(conn, None)) == 1
    await conn.execute("delete from mainspring.task where id = $1", task)
    await queues.write(conn, await queues.count(conn, 1.0), 0.1)
    assert await queues.counted(conn, None) == []


async def test_arrivals_are_the_growth_of_the_sequence(conn: Connection) -> None:
    now = await conn.fetchval("select mainspring.now()")
    assert await queues.arrivals(conn) is None
    await queues.write(conn, Count([], False), 0.0)
    assert await queues.arrivals(conn) is None, "one look is no rate"
    await conn.execute(
        "update mainspring.queue_minute set counted_at = $1, minute = date_trunc('minute', $1::timestamptz)",
        now - timedelta(seconds=100),
    )
    await fill(conn, 500)
    await queues.write(conn, Count([], False), 0.0)
    rate = await queues.arrivals(conn)
    assert rate is not None
    assert 4.0 < rate <= 5.0


async def test_the_first_count_of_a_minute_is_kept_for_the_busiest_jobs(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest = await conn.fetchval("select mainspring.now() - interval '90 seconds'")
    monkeypatch.setattr(queues, "_KEEP_MINUTE", queues._KEEP_MINUTE.replace("limit 200", "limit 2"))
    given = [Queue(job, TaskState.PENDING, job * 10, 1, oldest) for job in (1, 2, 3)]
    given.append(Queue(3, TaskState.RUNNING, 5, 5, oldest))
    await queues.write(conn, Count(given, True), 0.0)
    await queues.write(conn, Count([], False), 0.0)
    rows = await conn.fetch(
        "select job_id, waiting, due, active, oldest, is_estimated from mainspring.queue_minute order by job_id"
    )
    assert [tuple(row) for row in rows][:3] == [
        (0, 60, 3, 5, oldest, True),
        (2, 20, 1, 0, oldest, True),
        (3, 30, 1, 5, oldest, True),
    ]


async def test_every_minute_has_its_count(conn: Connection) -> None:
    now = await conn.fetchval("select mainspring.now()")
    for minutes in (3, 2, 1):
        await queues.write(conn, Count([], False), 0.0)
        await conn.execute(
            """update mainspring.queue_minute set counted_at = $1, minute = date_trunc('minute', $1::timestamptz, 'UTC')
                where minute >= date_trunc('minute', $2::timestamptz, 'UTC')""",
            now - timedelta(minutes=minutes),
            now,
        )
    assert await conn.fetchval("select count(*) from mainspring.queue_minute") == 3


async def test_few_live_tasks_are_counted_now_and_many_by_the_leader(
    conn: Connection, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_task()
    await queues.write(
        conn, Count([Queue(1, TaskState.PENDING, 77, 0, await conn.fetchval("select now()"))], True), 0.0
    )
    assert (await stats.live_tasks(conn)).by_state["pending"] == 1
    monkeypatch.setattr(stats, "FEW", 0)
    live = await stats.live_tasks(conn)
    assert (live.by_state["pending"], live.is_estimated, live.oldest_due) == (77, True, None)


async def test_times_that_python_cannot_hold_stop_no_count(conn: Connection, make_task: MakeTask) -> None:
    for far in ("infinity", "-infinity", "200000-01-01Z"):
        await conn.execute(f"update mainspring.task set run_at = '{far}' where id = $1", await make_task())
    await queues.write(conn, await queues.count(conn, 1.0), 0.0)
    assert (await jobs.find(conn, "job")).name == "job"
    assert (await stats.live_tasks(conn)).by_state == {"blocked": 0, "pending": 3, "assigned": 0, "running": 0}


async def test_a_page_of_queues_reads_what_its_jobs_have(conn: Connection, database: Database) -> None:
    await conn.execute("analyze mainspring.queue_figure, mainspring.figure")  # empty, so they look small
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await conn.execute("""
        with made as (
            insert into mainspring.job (name, pool, priority, definition)
            select 'shop.' || n, pool, priority, definition from mainspring.job, generate_series(1, 2000) n
            returning id
        ), counted as (
            insert into mainspring.queue_figure (job_id, state, tasks, due, oldest)
            select id, 1, 2, 1, mainspring.now() from made
        )
        insert into mainspring.figure (minute, writer, job_id, count, outcome, again)
        select date_trunc('minute', mainspring.now()), gen_random_uuid(), id, 1, 10, false from made
    """)
    requests = database.for_api()
    async with requests.acquire() as reading:
        assert await rows_read(reading, queues._BY_JOB, None, None, 100) < 20 * 2000, "each job's own at most"
        await conn.execute("analyze mainspring.job")
        assert await rows_read(reading, queues._BY_JOB, None, None, 100) < 20 * 100, "those of the page"
    await requests.close()
