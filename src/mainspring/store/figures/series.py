"""Series: figures over time, by steps of a minute to a day, and the depth of the queues beside them.

Reads   mainspring.figure, mainspring.figure_hour, mainspring.queue_minute; never a task, never the history
Next:   store/figures/rollups.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

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
    fired: int  # first attempts that a schedule planned, by the minute in which they were recorded
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
    times = steps(start, end, step)
    statement = _MINUTES if step < timedelta(hours=1) else _HOURS
    given = ([ALL_JOBS] if jobs is None else jobs, times[0], end, step)
    counted: dict[datetime, list[tuple[TaskState, bool, Counts]]] = {}
    for number, (at, outcome, again, *counts) in enumerate(await conn.fetch(statement, *given), 1):
        counted.setdefault(at, []).append((TaskState(outcome), again, as_counts(counts)))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    depths = {row["at"]: Depth(*row[1:]) for row in await conn.fetch(_DEPTHS, *given)}
    points = list[Point]()
    for at in times:
        points.append(_point(at, counted.get(at, []), depths.get(at)))
        if len(points) % AT_ONCE == 0:
            await asyncio.sleep(0)
    return Series(times[0], end, step.total_seconds(), points)


def steps(start: datetime, end: datetime, step: timedelta) -> list[datetime]:
    """Where the steps of a series begin: from `start`, rounded down, to before `end`."""
    first = start - (start - _EPOCH) % step
    return [first + number * step for number in range(-((first - end) // step))]


def _point(at: datetime, counted: list[tuple[TaskState, bool, Counts]], queue: Depth | None) -> Point:
    total = Counts()
    for _, _, counts in counted:
        total = total.plus(counts)
    return Point(
        at=at,
        ended={state.label: counts.attempts for state, again, counts in sorted(counted) if not again},
        retried=sum(counts.attempts for _, again, counts in counted if again),
        fired=sum(total.planned or ()),
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


# ── how late ────────────────────────────────────────────────────────────────────────────────────


class Bucket(msgspec.Struct, frozen=True):
    above_ms: float
    up_to_ms: float | None  # None: the last one, which has all that were later
    starts: int


class Objectives(msgspec.Struct, frozen=True):
    """Plan times of schedules with an SLO."""

    schedules: int
    good: int
    bad: int
    missed: int  # of the bad ones, those that had not started


class Punctuality(msgspec.Struct, frozen=True):
    """How late schedules fired: first attempts that they planned."""

    start: datetime
    counted_at: datetime
    starts: int
    on_time: int  # within a second
    buckets: list[Bucket]
    slo: Objectives | None  # None: no schedule has one, or there are too many to add up


MOST_OBJECTIVES = 500_000  # rows of slo_minute or slo_hour that are added up
ON_TIME = 1.0  # seconds; one of the bounds of the buckets

_OBJECTIVES = "select count(*) from (select from mainspring.slo limit $1) counted"
_OF_MINUTES = "select sum(good), sum(bad), sum(missed) from mainspring.slo_minute where minute >= $1 and minute < $2"
_OF_HOURS = "select sum(good), sum(bad), sum(missed) from mainspring.slo_hour where hour >= $1 and hour < $2"


async def punctuality(
    conn: Connection, start: datetime, end: datetime, jobs: Sequence[int] | None, *, by_minute: bool
) -> Punctuality:
    """The lateness of fires between two instants, by whole minutes or hours; of these jobs, or of all together."""
    statement, step = (_MINUTES, timedelta(minutes=1)) if by_minute else (_HOURS, timedelta(hours=1))
    first = start - (start - _EPOCH) % step
    total = Counts()
    rows = await conn.fetch(statement, [ALL_JOBS] if jobs is None else jobs, first, end, timedelta(days=366))
    for _, _, _, *counts in rows:
        total = total.plus(as_counts(counts))
    counted = total.planned or [0] * (len(LATENESS) + 1)
    edges = (0.0, *LATENESS)
    buckets = [
        Bucket(edges[number] * 1000, None if number == len(LATENESS) else LATENESS[number] * 1000, starts)
        for number, starts in enumerate(counted)
    ]
    on_time = sum(counted[: LATENESS.index(ON_TIME) + 1])
    slo = await _objectives(conn, first, end, by_minute=by_minute) if jobs is None else None
    return Punctuality(first, end, sum(counted), on_time, buckets, slo)


async def _objectives(conn: Connection, start: datetime, end: datetime, *, by_minute: bool) -> Objectives | None:
    steps = (end - start) / (timedelta(minutes=1) if by_minute else timedelta(hours=1))
    most = int(MOST_OBJECTIVES / max(1.0, steps))
    schedules: int = await conn.fetchval(_OBJECTIVES, most + 1)
    if not 0 < schedules <= most:
        return None
    good, bad, missed = await conn.fetchrow(_OF_MINUTES if by_minute else _OF_HOURS, start, end)
    return Objectives(schedules, int(good or 0), int(bad or 0), int(missed or 0))


# ── the last hour ───────────────────────────────────────────────────────────────────────────────


class JobFigures(msgspec.Struct, frozen=True):
    job: str
    ended: dict[str, int]  # tasks by final state
    retried: int  # attempts after which the task ran again
    duration: Spread | None  # of attempts, in seconds


_LAST_HOUR = f"""
    select j.name, f.outcome, f.again, {SUMMED}
      from mainspring.job j join mainspring.figure f on f.job_id = j.id
     where j.id = any($1::integer[])
       and f.minute >= date_trunc('minute', mainspring.now() - interval '1 hour')
     group by 1, 2, 3
"""


async def last_hour(conn: Connection, jobs: Sequence[int]) -> list[JobFigures]:
    """Of each of these jobs, by name; one without figures has none."""
    counted: dict[str, list[tuple[TaskState, bool, Counts]]] = {}
    for number, (name, outcome, again, *counts) in enumerate(await conn.fetch(_LAST_HOUR, jobs), 1):
        counted.setdefault(name, []).append((TaskState(outcome), again, as_counts(counts)))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    points = ((name, _point(_EPOCH, parts, None)) for name, parts in sorted(counted.items()))
    return [JobFigures(name, point.ended, point.retried, point.duration) for name, point in points]


# ── which jobs ──────────────────────────────────────────────────────────────────────────────────


NAMES_AT_ONCE = 500

_NAMES = f"""
    select id, name from mainspring.job
     where namespace = 'default' and ($1::text is null or name > $1) and ($2::text[] is null or name like any ($2))
     order by name limit {NAMES_AT_ONCE}
"""


async def job_ids(
    conn: Connection, like: Sequence[str] | None, accept: Callable[[str], bool], *, most: int | None = None
) -> list[int]:
    """The jobs that match patterns of LIKE and are accepted, or the first `most` of them by name.

    In steps: thousands at once would hold the event loop.
    """
    found: list[int] = []
    last: str | None = None
    while rows := await conn.fetch(_NAMES, last, like):
        found += [id for id, name in rows if accept(name)]
        last = rows[-1]["name"]
        if len(rows) < NAMES_AT_ONCE or (most is not None and len(found) >= most):
            break
    return found[:most]


_PLANNED = f"""
    with since as materialized (
        select coalesce(max(hour) + interval '1 hour', '-infinity') as at from mainspring.figure_hour
         where job_id = {ALL_JOBS} and hour <= mainspring.now()
    ), part as (
        select hour as at, planned from mainspring.figure_hour
         where job_id = any($1::integer[]) and hour >= $2 and hour < $3
         union all
        select minute, planned::bigint[] from mainspring.figure
         where job_id = any($1::integer[]) and minute >= greatest($2, (select at from since)) and minute < $3
    )
    select date_bin($4::interval, at, '{_EPOCH}'), sum((select sum(counted) from unnest(planned) as counted))::bigint
      from part where planned is not null group by 1 order by 1
"""


async def planned_starts(
    conn: Connection, start: datetime, end: datetime, step: timedelta, jobs: Sequence[int] | None
) -> list[tuple[datetime, int]]:
    """First attempts that a schedule planned, by steps of an hour or more, of these jobs or of all together."""
    rows = await conn.fetch(_PLANNED, [ALL_JOBS] if jobs is None else jobs, start, end, step)
    return [(at, starts) for at, starts in rows]
