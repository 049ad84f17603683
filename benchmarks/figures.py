"""Figures: what `stats`, the series and the queues take beside much that is stored, and what counting costs.

So many finished tasks (`--finished`), live tasks that are due tomorrow (`--live`) and figures of two days by the minute
(`--jobs` of them) are written by SQL. Each answer is timed before and after; `…_ratio` is what the stored rows cost.
The leader's count and the claims beside it are timed as well.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from tests.cluster import OWN_ALL, OWNER

from benchmarks.common import arguments, connection, empty_tables, quantiles, run, say
from mainspring.model.access.actors import Actor
from mainspring.model.figures.buckets import DURATION, LATENESS
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.operations.condition import cluster
from mainspring.server.cluster.queue_counter import QueueCounter
from mainspring.server.recording.tallies import Tallies
from mainspring.store.figures import queues, rollups
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import claims, partitions

ACTOR = Actor("benchmark")
REPEATS = 40
AT_ONCE = 500_000  # rows of one insert

_FINISHED = """
    insert into mainspring.task_history
        (id, run_at, created_at, started_at, finished_at, recorded_at, token, session, job_id, pool, state, priority,
         attempt, crashes, args, armed_ahead)
    select nextval('mainspring.task_id'), at, at, at, at, mainspring.now(), n, 1, 1, 1,
           case when n % 100 = 0 then 11 else 10 end, 5, 1, 0, '{}', 4.5
      from generate_series(1, $1) as n, lateral (select mainspring.now() - interval '1 s' as at) given
"""
_LIVE = """
    insert into mainspring.task (id, run_at, created_at, job_id, pool, state, priority, args)
    select nextval('mainspring.task_id'), mainspring.now() + interval '1 day' + n * interval '1 ms', mainspring.now(),
           1 + n % $2, 1, 1, 5, '{}' from generate_series(1, $1) as n
"""
_JOBS = """
    insert into mainspring.job (name, pool, priority, definition)
    select 'job ' || n, 1, 5, '{"run": {"type": "python", "handler": "x"}}' from generate_series(1, $1) as n
"""
# Two days by the minute, of two servers: of all jobs, and of each job one minute in ten.
FIGURES = f"""
    insert into mainspring.figure (minute, writer, job_id, outcome, again, count, durations, due, duration_max, due_max)
    select date_trunc('minute', mainspring.now()) - n * interval '1 minute', md5(writer::text)::uuid, job, 10, false,
           100, array_fill(3, array[{len(DURATION) + 1}]), array_fill(2, array[{len(LATENESS) + 1}]), 20, 20
      from generate_series(0, 2879) as n, generate_series(1, 2) as writer, generate_series(0, $1) as job
     where job = 0 or (n + job) % 10 = 0
"""


async def figures(dsn: str, finished: int, live: int, jobs: int) -> dict[str, Any]:
    async with connection(dsn) as conn, _pool(dsn) as database:
        await _empty(conn)
        before = await _answers(database)
        say(f"few rows: {before}")
        await _store(conn, finished, live, jobs)
        counted = await _counts(database)
        after = await _answers(database)
        claimed = await _claims(conn, database)
    return {
        **after,
        **{f"{name}_ratio": round(value / before[name], 2) for name, value in after.items() if before.get(name)},
        **counted,
        **claimed,
    }


@asynccontextmanager
async def _pool(dsn: str) -> AsyncIterator[Database]:
    """Connections as the operations of the command line and of the API have them."""
    database = Database(dsn)
    try:
        yield database
    finally:
        await database.close()


async def _empty(conn: Connection) -> None:
    await empty_tables(conn)
    await conn.execute("truncate mainspring.figure, mainspring.figure_hour, mainspring.queue_minute")
    await conn.execute(OWN_ALL)
    await partitions.make_ahead(conn, days=1)


async def _store(conn: Connection, finished: int, live: int, jobs: int) -> None:
    say(f"storing {finished:,} finished tasks, {live:,} live ones and the figures of {jobs} jobs")
    await conn.execute(_JOBS, jobs)
    for left in range(finished, 0, -AT_ONCE):
        await conn.execute(_FINISHED, min(left, AT_ONCE), timeout=600)
    for left in range(live, 0, -AT_ONCE):
        await conn.execute(_LIVE, min(left, AT_ONCE), jobs, timeout=600)
    await conn.execute(FIGURES, jobs, timeout=600)
    while await rollups.roll(conn):
        pass
    await conn.execute("analyze", timeout=600)
    await conn.execute("checkpoint", timeout=600)


async def _answers(database: Database) -> dict[str, float]:
    """The medians in milliseconds."""
    await QueueCounter(database, Tallies().note).step()
    asked: dict[str, Callable[[Connection, datetime], Awaitable[object]]] = {
        "stats": lambda conn, _: cluster.stats(conn, ACTOR),
        "queues": lambda conn, _: cluster.queues(conn, ACTOR),
        "hour_by_minute": lambda conn, now: cluster.figures(conn, ACTOR, start=now - timedelta(hours=1), step="1m"),
        "day_by_5_minutes": lambda conn, now: cluster.figures(conn, ACTOR, start=now - timedelta(days=1), step="5m"),
        "two_days_by_hour": lambda conn, now: cluster.figures(conn, ACTOR, start=now - timedelta(days=2), step="1h"),
        "job_hour_by_minute": lambda conn, now: cluster.figures(
            conn, ACTOR, start=now - timedelta(hours=1), step="1m", job="noop"
        ),
    }
    found = {}
    async with database.acquire() as conn:
        for name, ask in asked.items():
            times = []
            for _ in range(REPEATS):
                now = await conn.fetchval("select mainspring.now()")
                began = time.perf_counter()
                await ask(conn, now)
                times.append((time.perf_counter() - began) * 1000)
            found[f"{name}_ms"] = quantiles(times)["p50_ms"]
            found[f"{name}_p99_ms"] = quantiles(times)["p99_ms"]
    return found


async def _counts(database: Database) -> dict[str, Any]:
    """The leader's count: what it takes, and how far off it is."""
    counter = QueueCounter(database, Tallies().note)
    times = []
    async with database.acquire() as conn:
        exact = await conn.fetchval("select count(*) from mainspring.task")
        errors = []
        for _ in range(10):
            began = time.perf_counter()
            await counter.step()
            times.append((time.perf_counter() - began) * 1000)
            counted = sum(queue.tasks for queue in await queues.counted(conn, None))
            errors.append(abs(counted - exact) / max(1, exact))
        last = await queues.last(conn)
    assert last is not None
    return {
        "count_first_ms": round(times[0], 1),
        "count_ms": round(sorted(times[1:])[len(times) // 2], 1),
        "count_error_percent": round(max(errors[1:]) * 100, 2),
        "is_estimated": int(last.is_estimated),
    }


async def _claims(conn: Connection, database: Database) -> dict[str, float]:
    """Empty claims in a pool of far tasks, alone and while the leader counts without a pause."""

    async def measured() -> dict[str, float]:
        times = []
        for _ in range(500):
            began = time.perf_counter()
            await claims.claim(conn, OWNER, 1, [1], 10, [BOTTOM] * 10, ahead=5.0)
            times.append((time.perf_counter() - began) * 1000)
        return quantiles(times)

    alone = await measured()
    counter = QueueCounter(database, Tallies().note)
    stopped = asyncio.Event()

    async def count() -> None:
        while not stopped.is_set():
            await counter.step()

    counting = asyncio.create_task(count())
    beside = await measured()
    stopped.set()
    await counting
    return {"claim_p99_ms": alone["p99_ms"], "claim_p99_beside_counts_ms": beside["p99_ms"]}


def main() -> None:
    args: argparse.Namespace = arguments(__doc__ or "", finished=200_000, live=250_000, jobs=100, runs=1)
    run("figures", lambda dsn: figures(dsn, args.finished, args.live, args.jobs), args)


if __name__ == "__main__":
    main()
