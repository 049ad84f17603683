"""Streaks: jobs whose last tasks failed, one after the other, none of which has succeeded since. From the figures.

Of the history it reads the minute of the last success, where there was one: only the history knows what came after it.
Reads   mainspring.figure, mainspring.figure_hour, mainspring.task_history
Next:   store/alerts/kinds/tasks.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from mainspring.model.tasks.states import TaskState, among
from mainspring.store.postgres.connection import Connection

FAILED = among((TaskState.FAILED, TaskState.TIMED_OUT, TaskState.LOST))


class Streak(NamedTuple):
    job: str
    failures: int
    since: datetime | None  # the first of them, as far as figures are kept


# Of each candidate the last minute with a success, and what failed after it and in it. Minutes are kept for two days,
# hours for longer.
def _streaks(candidates: str) -> str:
    return f"""
    with candidate as (
        {candidates}
    ), good as (
        select j.id, j.name, j.namespace,
               coalesce((select max(f.minute) from mainspring.figure f
                          where f.job_id = j.id and f.outcome = {TaskState.SUCCEEDED:d} and not f.again),
                        (select max(h.hour) + interval '59 minutes' from mainspring.figure_hour h
                          where h.job_id = j.id and h.outcome = {TaskState.SUCCEEDED:d} and not h.again),
                        '-infinity') as at
          from candidate c join mainspring.job j on j.id = c.id
         where $1::text[] is null or j.name like any($1)
    )
    select g.id, g.name, g.at, after.failures + before.failures as failures, mixed.successes,
           least(after.first, before.first) as first
      from good g
     cross join lateral (
         select coalesce(sum(f.count), 0)::bigint as failures, min(f.minute) as first from mainspring.figure f
          where f.job_id = g.id and f.minute > g.at and f.outcome in {FAILED} and not f.again) after
     cross join lateral (
         select coalesce(sum(h.count), 0)::bigint as failures, min(h.hour) as first from mainspring.figure_hour h
          where h.job_id = g.id and h.hour > g.at and h.outcome in {FAILED} and not h.again
            and not exists (select from mainspring.figure f
                             where f.job_id = g.id and f.minute >= h.hour and f.minute < h.hour + interval '1 hour')
     ) before
     cross join lateral (
         select coalesce(sum(f.count) filter (where f.outcome in {FAILED}), 0)::bigint as failures,
                coalesce(sum(f.count) filter (where f.outcome = {TaskState.SUCCEEDED:d}), 0)::bigint as successes
           from mainspring.figure f where f.job_id = g.id and f.minute = g.at and not f.again) mixed
     where after.failures + before.failures + mixed.failures >= $2
"""


_SINCE = _streaks(f"""
        select distinct f.job_id as id from mainspring.figure f
         where f.minute >= date_trunc('minute', $3::timestamptz, 'UTC') - interval '1 minute' and f.job_id > 0
           and f.outcome in {FAILED} and not f.again
         union
        select j.id from mainspring.job j where 'job:' || j.name = any($4::text[])
""")
# Hours are added up a few minutes after their end.
_OF_LATE = _streaks(f"""
        select distinct f.job_id as id from mainspring.figure f
         where f.minute >= (select mainspring.now()) - interval '2 hours' and f.job_id > 0
           and f.outcome in {FAILED} and not f.again
         union
        select distinct h.job_id from mainspring.figure_hour h
         where h.hour >= (select mainspring.now()) - $3::interval and h.job_id > 0
           and h.outcome in {FAILED} and not h.again
""")
# In the minute of the last success only the history knows what came after it.
_AFTER_SUCCESS = f"""
    with ended as materialized (
        select h.job_id, h.state, h.finished_at
          from mainspring.task_history h
         where h.recorded_at >= $2 and h.recorded_at < $3 and h.job_id = any($1::integer[])
    ), good as (
        select job_id, max(finished_at) as at from ended where state = {TaskState.SUCCEEDED:d} group by job_id
    )
    select job_id, count(*) as failures, min(ended.finished_at) as first from ended join good using (job_id)
     where ended.state in {FAILED} and ended.finished_at > good.at
     group by job_id
"""
_SELDOM = 20  # successes in a minute; a job that succeeds more often there is not failing
_MINUTES = 20  # whose history is read in one look, the last ones


async def since(
    conn: Connection, names: Sequence[str] | None, wanted: int, at: datetime, known: Sequence[str]
) -> list[Streak]:
    """Streaks of `wanted` failures or more: of jobs that failed since `at`, and of those that are known to fail."""
    return await _found(conn, await conn.fetch(_SINCE, names, wanted, at, known), wanted)


async def of_late(conn: Connection, names: Sequence[str] | None, within: timedelta) -> list[Streak]:
    """All streaks of jobs that failed within so long."""
    return await _found(conn, await conn.fetch(_OF_LATE, names, 1, within), 1)


async def _found(conn: Connection, rows: Sequence[Any], wanted: int) -> list[Streak]:
    unsure = [row for row in rows if row["failures"] < wanted and row["successes"] <= _SELDOM]
    later = await _after_success(conn, [(row["id"], row["at"]) for row in unsure])
    found = []
    for row in rows:
        more, first = later.get(row["id"], (0, None))
        if (failures := row["failures"] + more) >= wanted:
            found.append(Streak(row["name"], failures, first or row["first"]))
    return found


async def _after_success(
    conn: Connection, asked: Sequence[tuple[int, datetime]]
) -> dict[int, tuple[int, datetime | None]]:
    """Of jobs, each with the minute of its last success: how many tasks failed in it after that, and when first."""
    found: dict[int, tuple[int, datetime | None]] = {}
    for minute in sorted({minute for _, minute in asked})[-_MINUTES:]:
        jobs = [job for job, at in asked if at == minute]
        bounds = (minute - timedelta(seconds=10), minute + timedelta(seconds=70))
        rows = await conn.fetch(_AFTER_SUCCESS, jobs, *bounds)
        found |= {job: (failures, first) for job, failures, first in rows}
    return found
