"""Figures under a real engine: every task and attempt that ended is counted, and counted once."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest

from mainspring import App, RetryAfter, TaskFailed, current_task
from mainspring.model.access.actors import Actor
from mainspring.operations.condition import cluster
from mainspring.store.figures import queues, rollups
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import tasks
from tests.conftest import eventually

ACTOR = Actor("test")

# What is true, from the tasks and attempts themselves: by job, outcome, and whether the task ran again.
_TRUTH = """
    select j.name, h.state, false, count(*) from mainspring.task_history h join mainspring.job j on j.id = h.job_id
     group by 1, 2
     union all
    select j.name, a.state, true, count(*)
      from mainspring.attempt a join mainspring.task_history h on h.id = a.task_id
      join mainspring.job j on j.id = h.job_id
     group by 1, 2
"""
_COUNTED = """
    select j.name, f.outcome, f.again, sum(f.count)::bigint
      from mainspring.figure f join mainspring.job j on j.id = f.job_id group by 1, 2, 3
"""
_TOTALS = """
    select sum(count) filter (where job_id = 0)::bigint, sum(count) filter (where job_id <> 0)::bigint,
           (select count(*) from mainspring.task_history) + (select count(*) from mainspring.attempt)
      from mainspring.figure
"""


@pytest.fixture(autouse=True)
async def no_figures(conn: Connection) -> None:
    await conn.execute("truncate mainspring.figure, mainspring.figure_hour, mainspring.figure_note")


async def as_counted(conn: Connection) -> Counter[tuple[str, int, bool]]:
    await rollups.fold_notes(conn)
    return Counter({(name, state, again): count for name, state, again, count in await conn.fetch(_COUNTED)})


async def as_it_is(conn: Connection) -> Counter[tuple[str, int, bool]]:
    return Counter({(name, state, again): count for name, state, again, count in await conn.fetch(_TRUTH)})


async def test_every_end_of_a_task_is_counted_once(app: App, conn: Connection) -> None:
    @app.job()
    async def good() -> None: ...

    @app.job(retries=2, retry_delay=0)
    async def flaky() -> None:
        if current_task().attempt < 3:
            raise RuntimeError("not yet")

    @app.job(retries=0)
    async def bad() -> None:
        raise RuntimeError("never")

    @app.job(timeout=0.05, retries=0)
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.job(retries=1)
    async def later() -> None:
        if current_task().attempt == 1:
            raise RetryAfter(0)

    @app.job(delivery="effectively_once")
    async def pay() -> None:
        async with current_task().transaction():
            pass

    async with app.running():
        made = [await job.enqueue() for job in (good, flaky, bad, slow, later, pay) for _ in range(3)]
        waiting = await good.using(delay=timedelta(hours=1)).enqueue()
        child = await good.using(after=[await bad.enqueue()]).enqueue()
        async with app.database.acquire() as own:
            await tasks.cancel(own, waiting.id)
        for task in (*made, child):
            with suppress(TaskFailed):
                await task.result(timeout=20)
    truth = await as_it_is(conn)
    assert await as_counted(conn) == truth
    assert {key for key in truth if key[0] == "good"} == {("good", 10, False), ("good", 13, False), ("good", 14, False)}
    assert len(set(await conn.fetchrow(_TOTALS))) == 1, "the rows of all jobs, those of each job, and what there is"


async def test_stats_and_series_tell_what_ran(app: App, conn: Connection) -> None:
    @app.job(timeout=0.05, retries=1, retry_delay=0)
    async def slow() -> None:
        await asyncio.sleep(60 if current_task().attempt == 1 else 0)

    @app.job()
    async def good() -> None: ...

    async with app.running():
        for task in [*[await good.enqueue() for _ in range(20)], await slow.enqueue()]:
            await task.result(timeout=20)
        later = await good.using(delay=timedelta(hours=1)).enqueue()

        async def has_counted() -> bool:
            return bool(await conn.fetchval("select sum(tasks) from mainspring.queue_figure"))

        await eventually(has_counted, 20)
        stats = await cluster.stats(conn, ACTOR)
        assert (stats.pending_tasks, stats.due, stats.oldest_due, stats.is_estimated) == (1, 0, None, False)
        assert (stats.agents_total, stats.agents_idle) == (1, 1)
        [queue] = [each for each in (await cluster.queues(conn, ACTOR)).items if each.job == "good"]
        assert (queue.waiting, queue.due, queue.active) == (1, 0, 0)
        await later.cancel()
    await rollups.fold_notes(conn)
    stats = await cluster.stats(conn, ACTOR)
    assert stats.last_hour == {"succeeded": 21, "cancelled": 1}
    assert (stats.retried, stats.timeouts) == (1, 1)
    assert stats.lateness_ms is not None
    assert 0 <= stats.lateness_ms.p50 <= stats.lateness_ms.p99 <= stats.lateness_ms.max
    points = (await cluster.figures(conn, ACTOR, job="good")).points
    assert sum((Counter(point.ended) for point in points), Counter()) == {"succeeded": 20, "cancelled": 1}
    assert [point.duration for point in points if point.duration] != []
    found = await cluster.queues(conn, ACTOR)
    assert [queue.finished_per_second > 0 for queue in found.items if queue.job == "good"] == [True]
    assert await queues.last(conn) is not None


async def test_an_attempt_tells_how_far_ahead_of_its_instant_it_was_armed(app: App, conn: Connection) -> None:
    @app.job(retries=1, retry_delay=0)
    async def work() -> None:
        if current_task().attempt == 1:
            raise RuntimeError("once")

    async with app.running():
        soon, now = await work.using(delay=timedelta(seconds=1)).enqueue(), await work.enqueue()
        for task in (soon, now):
            await task.result(timeout=20)
    first = (await tasks.attempts(conn, soon.id))[0].armed_ahead
    assert first is not None
    assert 0.1 < first <= 1.0, "its first attempt waited at the agent"
    last = (await tasks.get(conn, now.id)).armed_ahead
    assert last is not None
    assert last <= 0.0, "it was due when it was submitted"
