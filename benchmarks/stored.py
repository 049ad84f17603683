"""Many stored tasks for benchmarks/api.py, written by SQL: finished ones of a day, and live ones that are due later."""

from __future__ import annotations

from benchmarks.common import say
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions

AT_ONCE = 500_000  # rows of one insert
JOBS = 50

# One task in a hundred failed; one job in fifty has one task in ten thousand.
_JOBS = """
    insert into mainspring.job (name, pool, priority, definition)
    select 'job ' || n, 1, 5, '{"run": {"type": "python", "handler": "x"}}' from generate_series(1, $1) as n
    on conflict do nothing
"""
_FINISHED = """
    insert into mainspring.task_history
        (id, run_at, created_at, started_at, finished_at, recorded_at, token, session, job_id, pool, state, priority,
         attempt, crashes, args, error_code, armed_ahead)
    select nextval('mainspring.task_id'), at, at, at + interval '1 ms', at + interval '5 ms', at + interval '10 ms', n,
           1, (select min(id) from mainspring.job) + case when n % 10000 = 0 then $2 - 1 else n % ($2 - 1) end,
           1, case when n % 100 = 0 then 11 else 10 end, 5, 1, 0, jsonb_build_object('number', n),
           case when n % 100 = 0 then 'failed' end, 4.5
      from generate_series(1, $1) as n,
           lateral (select mainspring.now() - interval '1 minute' + n * interval '0.05 ms' as at) given
"""
_LIVE = """
    insert into mainspring.task (id, run_at, created_at, job_id, pool, state, priority, args)
    select nextval('mainspring.task_id'), mainspring.now() + interval '1 day' + n * interval '1 ms', mainspring.now(),
           (select min(id) from mainspring.job) + n % ($2 - 1), 1, 1, 5, jsonb_build_object('number', n)
      from generate_series(1, $1) as n
"""

# Each finds many, few or none.
FILTERS = (
    "state=pending",
    "state=succeeded",
    "state=failed",
    "state=lost",
    "job=noop",
    "job=job%207",
    "job=job%2049",
    "job=job*",
    "job=job%2049&state=failed",
    "key=none",
    "error_code=none",
    "late_over=1h",
    "priority=9",
    "args.number=77",
    "args.number=-1",
    "concurrency_key=none",
    "scope=none",
    "created_before=2020-01-01T00:00:00Z",
    "finished_after=2020-01-01T00:00:00Z&state=lost",
)


# Those of the default retention: a statement over the history pays for each of them.
_DAYS = """
    select mainspring.make_partition(parent, day::date)
      from (values ('task_history_succeeded', 7), ('task_history_failed', 30), ('attempt', 30)) as kept(parent, days),
           generate_series(mainspring.now() - make_interval(days => kept.days), mainspring.now(), '1 day') as day
     where to_regclass('mainspring.' || parent || to_char(day at time zone 'UTC', '_YYYYMMDD')) is null
"""


async def make_days(conn: Connection) -> None:
    """The partitions of an installation that has run for a month."""
    await partitions.make_ahead(conn, days=3)
    await conn.fetch(_DAYS)


async def store(conn: Connection, finished: int, live: int) -> None:
    say(f"storing {finished:,} finished tasks and {live:,} live ones")
    await make_days(conn)
    await conn.execute(_JOBS, JOBS)
    for left in range(finished, 0, -AT_ONCE):
        await conn.execute(_FINISHED, min(left, AT_ONCE), JOBS, timeout=600)
    for left in range(live, 0, -AT_ONCE):
        await conn.execute(_LIVE, min(left, AT_ONCE), JOBS, timeout=600)
    await conn.execute("vacuum analyze", timeout=600)
    await conn.execute("checkpoint", timeout=600)
