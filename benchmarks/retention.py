"""Retention by job: what it takes to delete the tasks of one job from the history of all, and to keep those of another
when a day is dropped; and what a look-up by id costs beside many days.

`--finished` tasks are written to one day by SQL, a tenth of them of a job that keeps less than the cluster, a tenth of
one that keeps more. `forget_…` is the janitor's chore in steady state: each round finds a minute's tasks. `rescan_…` is
the same once autovacuum has freed room and newer rows lie among the older ones.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.common import arguments, connection, quantiles, run, say
from mainspring.store.maintenance import job_retention
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions, tasks

DAY = timedelta(days=1)
NOON = datetime(2031, 5, 10, 12, tzinfo=UTC)
KEEP: dict[str, timedelta] = {"keep_succeeded": 7 * DAY, "keep_failed": 30 * DAY}

_JOBS = """
    insert into mainspring.job (name, pool, priority, definition)
    select name, (select min(id) from mainspring.pool), 5,
           '{"run": {"type": "python", "handler": "x"}}'::jsonb || more::jsonb
      from (values ('most', '{}'), ('short', '{"keep_succeeded": 3600}'), ('long', '{"keep_succeeded": 8640000}'))
           as given(name, more)
"""
# Over the twelve hours up to `upto`, in the order of their recording.
_FINISHED = """
    insert into mainspring.task_history
        (id, run_at, created_at, started_at, finished_at, recorded_at, token, session, job_id, pool, state, priority,
         attempt, crashes, args, armed_ahead)
    select nextval('mainspring.task_id'), at, at, at, at, at, n, 1,
           case n % 10 when 0 then $3::integer when 1 then $4 else $5 end, 1, 10, 5, 1, 0, '{"day": "2026-11-17"}', 4.5
      from generate_series(1, $1) as n,
           lateral (select $2::timestamptz - interval '12 hours' * (1 - n::float8 / $1) as at) given
"""


async def set_clock(conn: Connection, now: datetime) -> None:
    await conn.execute(f"""
        create or replace function mainspring.now() returns timestamptz language sql volatile
            as 'select timestamptz ''{now.isoformat()}'''
    """)


async def timed(step: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    result = await step
    return (time.perf_counter() - began) * 1000, result


async def retention(dsn: str, finished: int, days: int) -> dict[str, Any]:
    async with connection(dsn) as conn:
        jobs = await _prepare(conn, finished)
        found = await _forget(conn)
        found |= await _rescan(conn, finished, jobs)
        found |= await _condense(conn)
        found |= await _look_up(conn, days)
    return found


async def _prepare(conn: Connection, finished: int) -> list[int]:
    await set_clock(conn, NOON)
    await partitions.make_ahead(conn, 1)
    await conn.execute("insert into mainspring.pool (requirements) values ('{}') on conflict do nothing")
    await conn.execute(_JOBS)
    names = {r["name"]: r["id"] for r in await conn.fetch("select id, name from mainspring.job")}
    jobs = [names["short"], names["long"], names["most"]]
    say(f"storing {finished:,} finished tasks")
    await conn.execute(_FINISHED, finished, NOON, *jobs, timeout=600)
    await conn.execute("""
        select brin_summarize_new_values(oid) from pg_class
         where relname like 'task_history%recorded_at_idx' and relkind = 'i'
    """)
    return jobs


async def _forget(conn: Connection) -> dict[str, Any]:
    """All that has expired, then a minute's tasks at a time."""
    took = deleted = 0.0
    while True:
        milliseconds, count = await timed(job_retention.forget(conn, **KEEP, limit=10_000))  # type: ignore[arg-type]
        took, deleted = took + milliseconds, deleted + count
        if not count:
            break
    rounds = []
    for minute in range(1, 11):
        await set_clock(conn, NOON + 3 * minute * timedelta(minutes=1))
        milliseconds, count = await timed(job_retention.forget(conn, **KEEP, limit=10_000))  # type: ignore[arg-type]
        assert count
        rounds.append(milliseconds)
    await set_clock(conn, NOON + timedelta(minutes=30, seconds=1))
    idle = [(await timed(job_retention.forget(conn, **KEEP, limit=10_000)))[0] for _ in range(20)]  # type: ignore[arg-type]
    return {
        "forgotten": int(deleted),
        "forget_us_per_task": round(took * 1000 / deleted, 1),
        "forget_round_ms": quantiles(rounds)["p50_ms"],
        "forget_idle_ms": quantiles(idle)["p50_ms"],
    }


async def _rescan(conn: Connection, finished: int, jobs: list[int]) -> dict[str, Any]:
    """Newer rows in the room of deleted ones: the index on the time no longer bounds the search."""
    await conn.execute("vacuum mainspring.task_history_succeeded_20310510", timeout=600)
    await conn.execute(_FINISHED, finished // 20, NOON + timedelta(minutes=30), *jobs, timeout=600)
    await set_clock(conn, NOON + timedelta(minutes=35))
    milliseconds, count = await timed(job_retention.forget(conn, **KEEP, limit=10_000))  # type: ignore[arg-type]
    assert count
    return {"rescan_round_ms": round(milliseconds, 1)}


async def _condense(conn: Connection) -> dict[str, Any]:
    await set_clock(conn, NOON + 9 * DAY)
    longer = job_retention.longer(await job_retention.of_jobs(conn), **KEEP)
    before = await conn.fetchval("select pg_total_relation_size('mainspring.task_history_succeeded_20310510')")
    milliseconds, _ = await timed(partitions.drop_old(conn, **KEEP, longer=longer, limit=1000))
    after, kept = await conn.fetchrow(
        "select pg_total_relation_size('mainspring.task_history_succeeded_20310510k'), count(*)"
        " from mainspring.task_history_succeeded_20310510k"
    )
    return {
        "condense_ms": round(milliseconds, 1),
        "condensed_rows": kept,
        "day_mb": round(before / 1e6, 1),
        "condensed_mb": round(after / 1e6, 1),
    }


async def _look_up(conn: Connection, days: int) -> dict[str, Any]:
    """A task by its id, beside so many partitions: a month, a year of which all but two months are merged, all days."""
    task = await conn.fetchval("select max(id) from mainspring.task_history")
    found: dict[str, Any] = {}
    for count in (30, 100, days):
        for ago in range(0, count, 3):
            await set_clock(conn, NOON + 9 * DAY - timedelta(days=ago) if ago < 9 else NOON - timedelta(days=ago))
            await partitions.make_ahead(conn, 1)
        await set_clock(conn, NOON + 9 * DAY)
        times = [(await timed(tasks.get(conn, task)))[0] for _ in range(40)]
        there = len((await partitions._existing(conn))["task_history_succeeded"])
        found |= {f"look_up_beside_{count}_days_ms": quantiles(times[5:])["p50_ms"], f"days_{count}": there}
    return found


def main() -> None:
    args = arguments(__doc__ or "", runs=1, finished=1_000_000, days=365)
    run("retention", lambda dsn: retention(dsn, args.finished, args.days), args)


if __name__ == "__main__":
    main()
