"""Series: figures over time, by steps of a minute to a day, and the depth of the queues beside them.

Reads   mainspring.figure, mainspring.figure_hour, mainspring.queue_minute; never a task, never the history
Next:   store/figures/rollups.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from mainspring.model.figures.buckets import DURATION, LATENESS, quantile
from mainspring.model.figures.counts import Counts
from mainspring.model.tasks.states import TaskState
from mainspring.store.figures.rollups import ALL_JOBS, COUNTS, SUMMED, as_counts
from mainspring.store.postgres.database import Connection

AT_ONCE = 50  # points that are made before the event loop gets a turn

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Spread(msgspec.Struct, frozen=True):
    """Estimated from buckets, but for the greatest value. One that is as good as 0 is 0."""

    p50: float
    p90: float
    p99: float
    max: float


class Depth(msgspec.Struct, frozen=True):
    """The most that was there at any minute of the step."""

    waiting: int  # tasks that no agent holds
    due: int  # those whose time had come
    active: int  # tasks that an agent holds
    oldest: float | None  # seconds that one of them was due; None: none was
    is_estimated: bool


class Point(msgspec.Struct, frozen=True):
    """One step. Tasks count in the minute in which their end was recorded."""

    at: datetime  # its beginning
    ended: dict[str, int]  # tasks by final state
    retried: int  # attempts after which the task ran again
    planned_lateness_ms: Spread | None  # of first attempts that a schedule planned
    due_lateness_ms: Spread | None  # of other first attempts
    duration: Spread | None  # of attempts, in seconds
    queue: Depth | None  # kept for 2 days, and of one job only while it is among the busiest


class Series(msgspec.Struct, frozen=True):
    start: datetime
    end: datetime
    step: float  # seconds
    points: list[Point]


_MINUTES = f"""
    select date_bin($4::interval, minute, '{_EPOCH}') as at, outcome, again, {SUMMED}
      from mainspring.figure
     where job_id = any($1::integer[]) and minute >= $2 and minute < $3
     group by 1, 2, 3
"""

# The minutes of hours that are not added up yet, and the hours before them.
_HOURS = f"""
    with since as materialized (
        select coalesce(max(hour) + interval '1 hour', '-infinity') as at from mainspring.figure_hour
         where job_id = {ALL_JOBS} and hour <= mainspring.now()
    ), part as (
        select hour as at, outcome, again, {COUNTS} from mainspring.figure_hour
         where job_id = any($1::integer[]) and hour >= $2 and hour < $3
         union all
        select minute, outcome, again, {COUNTS} from mainspring.figure
         where job_id = any($1::integer[]) and minute >= greatest($2, (select at from since)) and minute < $3
    )
    select date_bin($4::interval, at, '{_EPOCH}') as at, outcome, again, {SUMMED} from part group by 1, 2, 3
"""

_DEPTHS = """
    select date_bin($4::interval, minute, 'epoch') as at, max(waiting), max(due), max(active), max(age),
           bool_or(estimated)
      from (select minute, sum(waiting)::bigint as waiting, sum(due)::bigint as due, sum(active)::bigint as active,
                   max(date_part('epoch', counted_at - oldest)) as age, bool_or(is_estimated) as estimated
              from mainspring.queue_minute
             where job_id = any($1::integer[]) and minute >= $2 and minute < $3
             group by minute) counted
     group by 1
"""


async def series(
    conn: Connection, start: datetime, end: datetime, step: timedelta, jobs: Sequence[int] | None
) -> Series:
    """The steps from `start`, which is rounded down, to before `end`; of these jobs, or of all together."""
    first = start - (start - _EPOCH) % step
    statement = _MINUTES if step < timedelta(hours=1) else _HOURS
    given = ([ALL_JOBS] if jobs is None else jobs, first, end, step)
    counted: dict[datetime, list[tuple[TaskState, bool, Counts]]] = {}
    for at, outcome, again, *counts in await conn.fetch(statement, *given):
        counted.setdefault(at, []).append((TaskState(outcome), again, as_counts(counts)))
    depths = {row["at"]: Depth(*row[1:]) for row in await conn.fetch(_DEPTHS, *given)}
    points = list[Point]()
    while (at := first + len(points) * step) < end:
        points.append(_point(at, counted.get(at, []), depths.get(at)))
        if len(points) % AT_ONCE == 0:
            await asyncio.sleep(0)
    return Series(first, end, step.total_seconds(), points)


def _point(at: datetime, counted: list[tuple[TaskState, bool, Counts]], queue: Depth | None) -> Point:
    total = Counts()
    for _, _, counts in counted:
        total = total.plus(counts)
    return Point(
        at=at,
        ended={state.label: counts.attempts for state, again, counts in sorted(counted) if not again},
        retried=sum(counts.attempts for _, again, counts in counted if again),
        planned_lateness_ms=spread(LATENESS, total.planned, total.planned_max, 1000.0),
        due_lateness_ms=spread(LATENESS, total.due, total.due_max, 1000.0),
        duration=spread(DURATION, total.durations, total.duration_max),
        queue=queue,
    )


def spread(bounds: Sequence[float], counts: Sequence[int] | None, most: float, unit: float = 1.0) -> Spread | None:
    """`most` is the greatest value. Values in the answer are multiplied by `unit`."""
    if not counts or not sum(counts):
        return None
    found = [quantile(bounds, counts, share, most) or 0.0 for share in (0.5, 0.9, 0.99)]
    return Spread(*(round(value * unit, 6) for value in (*found, most)))


# ── which jobs ──────────────────────────────────────────────────────────────────────────────────


async def job_names(conn: Connection) -> dict[int, str]:
    rows: Sequence[Any] = await conn.fetch("select id, name from mainspring.job where namespace = 'default'")
    return {row["id"]: row["name"] for row in rows}
