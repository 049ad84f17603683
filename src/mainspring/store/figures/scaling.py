"""Scaling: what the signal for autoscalers is computed from, by job, in statements of bounded time.

Reads   mainspring.queue_minute, mainspring.figure, mainspring.figure_hour, mainspring.schedule by its cursors;
        mainspring.task only in the order of its claims, from now to the horizon; never the history
Next:   operations/condition/autoscale.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from mainspring.model.figures.buckets import LATENESS
from mainspring.model.schedules.skips import Skip
from mainspring.model.tasks.states import ASSIGNED, PENDING, RUNNING
from mainspring.store.cluster.holds import any_hold_of
from mainspring.store.cluster.registry import CLAIMED, IS_CLAIMED
from mainspring.store.figures.queues import BUSIEST
from mainspring.store.figures.rollups import ALL_JOBS, NO_WRITER
from mainspring.store.postgres.database import Connection

RECENT = timedelta(minutes=10)  # whose attempts say how long a job takes
EARLIER = timedelta(days=7)  # the same for jobs that ran no later
MOST_DELAYED = 20_000  # tasks of one pool and priority that are read
MOST_SCHEDULES = 20_000  # groups of schedules with equal plan times
_AT_ONCE = 250  # groups in a row


class Now(NamedTuple):
    database: int
    at: datetime


async def now(conn: Connection) -> Now:
    return Now(
        *await conn.fetchrow("select oid::bigint, mainspring.now() from pg_database where datname = current_database()")
    )


# ── the last minute or two ──────────────────────────────────────────────────────────────────────


class Before(NamedTuple):
    """What the queues were a while ago."""

    minute: datetime  # whose first count it is
    counted_at: datetime
    depths: dict[int, int]  # tasks that could run or did, by job
    is_whole: bool  # every job with live tasks is among them


# The newest of the kept counts that is at least half a minute old, as for arrivals.
_BEFORE = f"""
    with before as materialized (
        select minute, counted_at from mainspring.queue_minute
         where job_id = {ALL_JOBS} and counted_at <= $1::timestamptz - interval '30 seconds'
           and minute > $1 - interval '5 minutes'
         order by minute desc limit 1
    )
    select minute, q.counted_at, job_id, due - limited + active as depth
      from before join mainspring.queue_minute q using (minute)
"""


async def before(conn: Connection, at: datetime) -> Before | None:
    rows = await conn.fetch(_BEFORE, at)
    if not rows:
        return None
    depths = {row["job_id"]: row["depth"] for row in rows if row["job_id"] != ALL_JOBS}
    return Before(rows[0]["minute"], rows[0]["counted_at"], depths, len(depths) < BUSIEST)


class Recent(NamedTuple):
    """The attempts of one job."""

    job: int
    finished: int  # since the beginning of the window
    planned: int  # of those and of first attempts, what a schedule planned
    unplanned: int
    attempts: int  # within RECENT
    duration_sum: float  # seconds


def _all_of(histogram: str) -> str:
    """SQL for the number of values in a histogram of lateness."""
    return " + ".join(f"{histogram}[{number}]" for number in range(1, len(LATENESS) + 2))


_RECENT = f"""
    select job_id,
           coalesce(sum(count) filter (where minute >= $2), 0)::bigint as finished,
           coalesce(sum({_all_of("planned")}) filter (where minute >= $2), 0)::bigint as planned,
           coalesce(sum({_all_of("due")}) filter (where minute >= $2), 0)::bigint as unplanned,
           sum(count)::bigint as attempts, sum(duration_sum) as duration_sum
      from mainspring.figure
     where minute > $1::timestamptz - $3::interval and minute <= $1 and job_id > {ALL_JOBS}
       and writer <> '{NO_WRITER}'            -- tasks that ended without an attempt
     group by job_id
"""


async def recent(conn: Connection, at: datetime, since: datetime) -> list[Recent]:
    """By job; the window begins with the minute `since`."""
    return [Recent(*row) for row in await conn.fetch(_RECENT, at, since, RECENT)]


# Hours that are not over are in the minutes.
_EARLIER = f"""
    select job_id, sum(duration_sum) / sum(count) from (
        select job_id, count, duration_sum from mainspring.figure
         where job_id = any($1::integer[]) and minute > $2::timestamptz - interval '2 hours'
           and writer <> '{NO_WRITER}'
         union all
        select job_id, count, duration_sum from mainspring.figure_hour
         where job_id = any($1::integer[]) and hour > $2::timestamptz - $3::interval and durations is not null
    ) attempt
     group by job_id having sum(count) > 0
"""


async def earlier(conn: Connection, at: datetime, jobs: Sequence[int]) -> dict[int, float]:
    """The mean duration of attempts of these jobs, in seconds, as far as it is known."""
    return {job: float(mean) for job, mean in await conn.fetch(_EARLIER, jobs, at, EARLIER)}


# By the claims of the agents there are: as many rows as attempts are under way.
_AGES = f"""
    with {CLAIMED}
    select t.job_id, avg(extract(epoch from $2::timestamptz - t.started_at))::float8
      from claimed join mainspring.task t on {IS_CLAIMED} and t.state = {RUNNING:d}
     where t.job_id = any($1::integer[]) and t.started_at is not null
     group by t.job_id
"""


async def ages(conn: Connection, at: datetime, jobs: Sequence[int]) -> dict[int, float]:
    """How long the attempts of these jobs that are under way have run, on average, in seconds."""
    return {job: max(0.0, age) for job, age in await conn.fetch(_AGES, jobs, at)}


# ── jobs ────────────────────────────────────────────────────────────────────────────────────────


class JobFacts(msgspec.Struct, frozen=True):
    id: int
    name: str
    labels: dict[str, str]  # that an agent must have
    most: int | None  # that may run at once
    replicas: int  # of its daemons
    is_broadcast: bool
    is_held: bool  # by itself, or with everything: nothing of it starts
    spread_until: datetime | None  # it was released: what waited at its gate starts evenly until then


_JOBS = f"""
    select j.id, j.name, coalesce(j.definition->'requires', '{{}}')::text,
           (j.definition->'gate'->>'max_running')::integer,
           coalesce(sum(case when s.expression ~ '^[0-9]{{1,4}}$' then s.expression::integer end), 0)::integer,
           coalesce((j.definition->'placement'->>'broadcast')::boolean, false), {any_hold_of("j.id")},
           (select h.spread_until from mainspring.hold h
             where h.job_id = j.id and h.released_at is not null and not j.definition ? 'gate')
      from mainspring.job j
      left join mainspring.schedule s on s.job_id = j.id and s.kind = 'daemon' and s.enabled
     where j.id = any($1::integer[]) or s.id is not null
     group by j.id
"""


async def jobs(conn: Connection, ids: Sequence[int]) -> list[JobFacts]:
    """These jobs, and all that have daemons."""
    return [
        JobFacts(id, name, msgspec.json.decode(labels), *facts)
        for id, name, labels, *facts in await conn.fetch(_JOBS, ids)
    ]


# ── what comes ──────────────────────────────────────────────────────────────────────────────────


class Coming(NamedTuple):
    """Tasks that exist and are due in a second from this one on, whether an agent has them already or not."""

    job: int
    second: int
    is_planned: bool  # by a schedule
    tasks: int


# Along the index of claims, as store/figures/waiting.py; also what an agent holds ahead of its time.
_COMING = f"""
    select t.job_id, floor(extract(epoch from t.run_at - date_trunc('second', $1::timestamptz)))::integer as second,
           t.origin is not distinct from 'plan' as is_planned, count(*)::integer as tasks
      from mainspring.pool p
     cross join generate_series(0, 9) as level(priority)
     cross join lateral (
         select job_id, run_at, origin from mainspring.task
          where pool = p.id and priority = level.priority and run_at > $1 and run_at < $2
            and state in ({PENDING:d}, {ASSIGNED:d})
          order by run_at limit {MOST_DELAYED}) t
     group by 1, 2, 3
"""


async def coming(conn: Connection, at: datetime, until: datetime) -> list[Coming]:
    """Of each pool and priority the first MOST_DELAYED."""
    return [Coming(*row) for row in await conn.fetch(_COMING, at, until)]


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Schedules of one job with equal plan times, from their cursors on."""

    name: str  # of one of them
    job: int
    kind: str
    expression: str
    timezone: str
    policies: str  # JSON, without what has nothing to do with plan times and overlap
    next_plan_at: datetime
    runs: int
    schedules: int
    skips: tuple[Skip, ...] | None  # by hand, of one schedule


# H in a cron expression and jitter are spread by the name; runs that are left and skips are those of one schedule.
# Packed into few rows, which are decoded bit by bit.
_CURSORS = f"""
    with equal as (
        select min(s.name) as name, s.job_id, s.kind, s.expression, s.timezone,
               (s.policies - array['args', 'description', 'fills', 'calendars', 'catch_up', 'window', 'max_per_tick',
                                   'misfire_after', 'provider', 'ready', 'stable', 'restart_delay',
                                   'max_restart_delay', 'expires', 'when_full'])::text as policies,
               s.next_plan_at, min(s.runs) as runs, count(*) as schedules,
               case when max(s.skips_until) >= s.next_plan_at then (
                   select jsonb_agg(jsonb_build_array(k.start, k.stop, k.actor, k.note, k.made_at) order by k.start)
                     from mainspring.schedule_skip k
                    where k.schedule_id = min(s.id) and k.stop >= s.next_plan_at) end as skips
          from mainspring.schedule s
         where s.look_at < $1::timestamptz and s.next_plan_at < $1 and s.enabled and s.problem is null
         group by s.job_id, s.kind, s.expression, s.timezone, 6, s.next_plan_at,
                  case when coalesce(s.policies->'jitter', '0') <> '0' or s.policies->>'max_runs' is not null
                         or s.kind = 'cron' and s.expression ~* 'h' or s.skips_until >= s.next_plan_at then s.id end
    ), numbered as (
        select *, row_number() over (order by schedules desc, name) - 1 as number from equal
    )
    select jsonb_agg(jsonb_build_array(name, job_id, kind, expression, timezone, policies, next_plan_at, runs,
                                       schedules, skips) order by number)::text
      from numbered where number <= {MOST_SCHEDULES}
     group by number / {_AT_ONCE} order by min(number)
"""


async def cursors(conn: Connection, until: datetime) -> list[str]:
    """The groups of schedules that have a plan time before `until`, the largest first; each text holds some."""
    rows: Sequence[Any] = await conn.fetch(_CURSORS, until)
    return [row[0] for row in rows]


def decode(text: str) -> list[Cursor]:
    return msgspec.json.decode(text, type=list[Cursor])
