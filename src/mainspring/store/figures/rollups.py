"""Rollups: attempts by minute, job and outcome, written by recorders; by the hour, made of those by the janitor.

Writes  mainspring.figure, mainspring.figure_hour
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from mainspring.model.figures.buckets import DURATION, LATENESS
from mainspring.model.figures.counts import Counts
from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import affected

ALL_JOBS = 0  # the job of the rows that add up all jobs
NO_WRITER = UUID(int=0)  # the writer of what was noted without an attempt

SETTLED = timedelta(minutes=2)  # after the end of an hour: then every recorder has written its last minute, as a rule
REOPENED_FOR = timedelta(days=1)  # within which a late minute has its hour added up again; minutes stay for two days


class Rollup(NamedTuple):
    """What one writer has counted in one minute of one job and outcome. `minute` is in seconds since 1970."""

    minute: int
    writer: UUID
    job: int
    outcome: int
    again: bool
    counts: Counts


# The columns of `figure` and `figure_hour` in the order of Counts.
_COLUMNS = (
    "count", "duration_sum", "planned_sum", "due_sum", "duration_max", "planned_max", "due_max",
    "durations", "planned", "due",
)  # fmt: skip
COUNTS = ", ".join(_COLUMNS)
_REPLACED = ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS)


def _reopened(source: str) -> str:
    """SQL that forgets the hours of minutes that come late, so that the janitor adds them up again.

    A recorder that could not reach PostgreSQL writes them after others have gone on, and so does one whose clock was
    set back. For most writes there is nothing at the end of this index. Until the next round of the janitor an hour
    with later ones behind it is missing.
    """
    return f"""
        reopened as (
            delete from mainspring.figure_hour h
             where h.hour = any (array(select distinct date_trunc('hour', minute, 'UTC') from {source}))
               and h.hour > (select mainspring.now()) - interval '{REOPENED_FOR.total_seconds():.0f} s'
        )
    """


# Lists as text: `unnest` takes an array of lists apart.
_WRITE = f"""
    with late as (select to_timestamp(minute) as minute from unnest($1::float8[]) as given(minute)), {_reopened("late")}
    insert into mainspring.figure (minute, writer, job_id, outcome, again, {COUNTS})
    select to_timestamp(minute), writer, job_id, outcome, again, count, duration_sum, planned_sum, due_sum,
           duration_max, planned_max, due_max, durations::integer[], planned::integer[], due::integer[]
      from unnest($1::float8[], $2::uuid[], $3::integer[], $4::smallint[], $5::boolean[], $6::integer[], $7::float8[],
                  $8::float8[], $9::float8[], $10::real[], $11::real[], $12::real[], $13::text[], $14::text[],
                  $15::text[])
        as given(minute, writer, job_id, outcome, again, {COUNTS})
    on conflict (job_id, minute, writer, outcome, again) do update set {_REPLACED}
"""


async def write(conn: Connection, rollups: Sequence[Rollup]) -> None:
    """Write these, in place of what the same writer has written of the same minutes, jobs and outcomes."""
    keys = [[rollup[field] for rollup in rollups] for field in range(len(Rollup._fields) - 1)]
    *numbers, durations, planned, due = zip(*(rollup.counts for rollup in rollups), strict=True)
    histograms = [[_text(counts) for counts in each] for each in (durations, planned, due)]
    await conn.execute(_WRITE, *keys, *map(list, numbers), *histograms)


def _text(counts: Sequence[int] | None) -> str | None:
    return None if counts is None else f"{{{','.join(map(str, counts))}}}"


# A note is of one job; the row of all jobs grows with it. Sorted: two leaders at once take their locks in one order.
_FOLD = f"""
    with taken as (
        delete from mainspring.figure_note returning date_trunc('minute', at, 'UTC') as minute, job_id, outcome, count
    ), {_reopened("taken")}, summed as (
        select minute, job_id, outcome, sum(count) as count from taken group by 1, 2, 3
         union all
        select minute, {ALL_JOBS}, outcome, sum(count) from taken group by 1, 3
    ), written as (
        insert into mainspring.figure as f (minute, writer, job_id, outcome, again, count)
        select minute, '{NO_WRITER}', job_id, outcome, false, count from summed order by job_id, minute, outcome
        on conflict (job_id, minute, writer, outcome, again) do update set count = f.count + excluded.count
    )
    select job_id, outcome, sum(count)::bigint from taken group by 1, 2 order by 1, 2
"""


class Noted(NamedTuple):
    """Tasks of one job that ended without an attempt."""

    job: int
    state: TaskState
    tasks: int


async def fold_notes(conn: Connection) -> list[Noted]:
    """Move what was noted without an attempt into the figures; returns what that was."""
    return [Noted(job, TaskState(state), tasks) for job, state, tasks in await conn.fetch(_FOLD)]


def _sums(column: str, bounds: Sequence[float]) -> str:
    """SQL that adds up histograms; null if there are none. A sum for each bucket needs neither `unnest` nor sort."""
    buckets = ", ".join(f"sum({column}[{number}])" for number in range(1, len(bounds) + 2))
    return f"case when count({column}) > 0 then array[{buckets}]::bigint[] end as {column}"


# COUNTS of rows of `figure` or `figure_hour`, added up.
SUMMED = f"""
    sum(count)::bigint as count, sum(duration_sum) as duration_sum, sum(planned_sum) as planned_sum,
    sum(due_sum) as due_sum, max(duration_max) as duration_max, max(planned_max) as planned_max,
    max(due_max) as due_max,
    {_sums("durations", DURATION)}, {_sums("planned", LATENESS)}, {_sums("due", LATENESS)}
"""


def as_counts(row: Sequence[Any]) -> Counts:
    """From the columns of SUMMED."""
    *numbers, durations, planned, due = row
    return Counts(*numbers, *(None if counts is None else tuple(counts) for counts in (durations, planned, due)))


# The first hour that is over, has minutes, and is not added up. Each has a row of all jobs.
_NEXT_HOUR = f"""
    select hour from generate_series((select date_trunc('hour', min(minute), 'UTC') from mainspring.figure),
                                     mainspring.now() - interval '1 hour' - $1::interval, interval '1 hour') as hour
     where exists (select from mainspring.figure f
                    where f.job_id = {ALL_JOBS} and f.minute >= hour and f.minute < hour + interval '1 hour')
       and not exists (select from mainspring.figure_hour h where h.job_id = {ALL_JOBS} and h.hour = hour.hour)
     order by hour limit 1
"""
_ROLL = f"""
    insert into mainspring.figure_hour (hour, job_id, outcome, again, {COUNTS})
    select $1, job_id, outcome, again, {SUMMED} from mainspring.figure
     where minute >= $1 and minute < $1 + interval '1 hour'
     group by job_id, outcome, again
    on conflict (job_id, hour, outcome, again) do update set {_REPLACED}
"""


async def roll(conn: Connection) -> int:
    """Add up the minutes of the first hour that is over and not added up; returns how many rows that made.

    One statement adds up, so an hour is there with all its jobs or not at all.
    """
    hour = await conn.fetchval(_NEXT_HOUR, SETTLED)
    if hour is None:
        return 0
    async with conn.transaction():
        # A late minute is either written before and counted here, or written after and reopens the hour.
        await conn.execute("lock table mainspring.figure_hour in share row exclusive mode")
        return affected(await conn.execute(_ROLL, hour))
