"""Fires: reads the ledger: what was decided about plan times, and which versions of a schedule expected them.

By its primary key, then each task by its id: the cost is that of what is shown.

Next: store/schedules/explain.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from mainspring.model.schedules.planning import Reason, Version
from mainspring.model.schedules.story import Origin, Past
from mainspring.model.schedules.timing import Timing, timing
from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import plans
from mainspring.store.schedules.schedules import Stored


class FireRow(NamedTuple):
    """A decided plan time of one scope."""

    plan_time: datetime
    scope: str
    task_id: int | None
    reason: Reason | None
    origin: Origin
    decided_at: datetime
    skipped_by: str | None = None  # by whom and why, where a person skipped it


def skipped_by(schedule: str) -> str:
    """SQL: whose skip a row `f` of the ledger is, and why; `schedule` is an expression for its id."""
    return f"""
        case when f.reason = 'skipped' then (
            select k.actor || case when k.note = '' then '' else ': ' || k.note end from mainspring.schedule_skip k
             where k.schedule_id = {schedule} and f.plan_time between k.start and k.stop
             order by k.start, k.id limit 1
        ) end as skipped_by
    """


class Run(NamedTuple):
    """A decided plan time, and what became of its task."""

    fire: FireRow
    state: TaskState | None  # None if there is no task, or retention dropped it
    finished_at: datetime | None


# The last plan times of each schedule by the primary key of the ledger, then each task by its id. Of the history it
# reads only the days since the decision, and one more in case the clock was set back. No part grows with retention.
_LAST_RUNS = f"""
    select given.id, f.plan_time, f.scope, f.task_id, f.reason, f.origin, f.decided_at, {skipped_by("given.id")},
           coalesce(h.state, t.state) as state, h.finished_at
      from unnest($1::integer[]) as given(id)
     cross join lateral (
         select plan_time, scope, task_id, reason, origin, decided_at from mainspring.fire
          where schedule_id = given.id and plan_time <= $2
          order by plan_time desc, scope limit $3
     ) f
      left join lateral (
          select state from mainspring.task where id = f.task_id limit 1
      ) t on true
      left join lateral (
          select state, finished_at from mainspring.task_history
           where id = f.task_id and recorded_at > f.decided_at - interval '1 day' limit 1
      ) h on true
"""


async def last_runs(conn: Connection, schedules: Sequence[int], now: datetime, limit: int) -> dict[int, list[Run]]:
    """The last `limit` decided plan times of each schedule up to `now`, the latest first. Begins a transaction."""
    async with conn.transaction():
        # It only reads: the crash that store/tasks/partitions.py avoids cannot happen.
        await conn.execute("set local enable_partition_pruning = on; set local enable_seqscan = off")
        rows = await conn.fetch(_LAST_RUNS, schedules, now, limit)
    found: dict[int, list[Run]] = {}
    for id, *fire, state, finished_at in rows:
        run = Run(FireRow(*fire), None if state is None else TaskState(state), finished_at)
        found.setdefault(id, []).append(run)
    return found


# Backwards along the primary key, partition by partition; the tasks as above.
_LEDGER = f"""
    select f.plan_time, f.scope, f.task_id, f.reason, f.origin, f.decided_at, {skipped_by("$1")},
           coalesce(h.state, t.state) as state, h.finished_at
      from (
          select plan_time, scope, task_id, reason, origin, decided_at from mainspring.fire
           where schedule_id = $1 and plan_time >= $2 and plan_time <= $3 and (plan_time, scope) < ($4, $5)
           order by plan_time desc, scope desc limit $6
      ) f
      left join lateral (
          select state from mainspring.task where id = f.task_id limit 1
      ) t on true
      left join lateral (
          select state, finished_at from mainspring.task_history
           where id = f.task_id and recorded_at > f.decided_at - interval '1 day' limit 1
      ) h on true
     order by f.plan_time desc, f.scope desc
"""


async def ledger(
    conn: Connection, id: int, since: datetime, until: datetime, *, before: tuple[datetime, str], limit: int
) -> list[Run]:
    """The decided plan times of a schedule between two instants, the latest first, from before a fire on."""
    async with conn.transaction():
        await conn.execute("set local enable_partition_pruning = on; set local enable_seqscan = off")  # as in last_runs
        rows = await conn.fetch(_LEDGER, id, since, until, *before, limit)
    return [
        Run(FireRow(*fire), None if state is None else TaskState(state), finished_at)
        for *fire, state, finished_at in rows
    ]


async def versions(conn: Connection, stored: Stored, since: datetime) -> list[Past]:
    """All versions that were in force at `since` or later, in order; the last one still is."""
    schedule = stored.schedule
    current = Version(timing(schedule), schedule.policies, stored.enabled, stored.since, number=stored.version)
    found = await plans.with_older(conn, stored.id, schedule.name, current, since)
    return [Past(version, cast(Timing, version.timing)) for version in found]  # the store creates no other


class UsedUp(NamedTuple):
    """The plan times of a version between these two were not planned: its `max_runs` were used up."""

    max_runs: int
    after: datetime
    before: datetime | None

    def has(self, at: datetime) -> bool:
        return at > self.after and (self.before is None or at < self.before)


_LAST_OF_A_VERSION = """
    select max(plan_time) from mainspring.fire
     where schedule_id = $1 and origin = 'plan'
       and plan_time > $2 and plan_time <= coalesce($3::timestamptz, 'infinity')
"""


async def used_up(conn: Connection, stored: Stored, version: Version) -> UsedUp | None:
    """The plan times of a version that were not planned because of `max_runs`.

    The number of runs of an older version is not stored. But if a planner passed over the plan times between its last
    decided one and the cursor, `max_runs` was the reason.
    """
    most = stored.schedule.policies.max_runs
    if most is not None and stored.runs >= most:
        last = await conn.fetchval(_LAST_OF_A_VERSION, stored.id, stored.created_at, None)
        return UsedUp(most, last or stored.created_at, None)
    most = version.policies.max_runs
    if most is None or version.until is None:
        return None
    last = await conn.fetchval(_LAST_OF_A_VERSION, stored.id, version.since, version.until)
    return UsedUp(most, last or version.since, stored.next_plan_at)


_LAST = """
    select max(plan_time) from mainspring.fire
     where schedule_id = $1 and plan_time <= $2 and origin <> 'manual'
"""


async def last_decided(conn: Connection, stored: Stored) -> datetime | None:
    """The last decided plan time up to now."""
    at: datetime | None = await conn.fetchval(_LAST, stored.id, stored.now)
    return at


# ── a timeline ─────────────────────────────────────────────────────────────────────────────────

BEFORE = 10  # plan times before the range whose runs may last into it
LOOK_BACK = "7 days"

# Of the history it reads only the days since the decision, and one more in case the clock was set back.
# The last few plan times before the range are looked at too: their runs may last into it.
_MARKS = f"""
    select given.id as schedule_id, f.plan_time, f.scope, f.reason, f.origin, f.task_id, {skipped_by("given.id")},
           coalesce(h.state, t.state) as state, coalesce(h.started_at, t.started_at) as started_at, h.finished_at,
           coalesce(h.run_at, t.run_at) as run_at
      from unnest($1::integer[]) as given(id)
     cross join lateral (
         (select plan_time, scope, task_id, reason, origin, decided_at from mainspring.fire
           where schedule_id = given.id and plan_time >= $2 and plan_time < $3
           order by plan_time desc, scope limit $4)
         union all
         (select plan_time, scope, task_id, reason, origin, decided_at from mainspring.fire
           where schedule_id = given.id and plan_time < $2 and plan_time >= $2 - interval '{LOOK_BACK}'
           order by plan_time desc, scope limit {BEFORE})
     ) f
      left join lateral (
          select state, run_at, case when session is not null then started_at end as started_at
            from mainspring.task where id = f.task_id limit 1
      ) t on true
      left join lateral (
          select state, run_at, started_at, finished_at from mainspring.task_history
           where id = f.task_id and recorded_at > f.decided_at - interval '1 day' limit 1
      ) h on true
     where f.plan_time >= $2
        or (coalesce(h.started_at, t.started_at) is not null and coalesce(h.finished_at, 'infinity') > $2)
"""
# The last of each, by the primary key of the ledger.
_LAST_MARKS = """
    select given.id as schedule_id, f.plan_time, f.reason, f.task_id, coalesce(h.state, t.state) as state,
           coalesce(h.started_at, t.started_at) as started_at, coalesce(h.run_at, t.run_at) as run_at
      from unnest($1::integer[]) as given(id)
     cross join lateral (
         select plan_time, scope, task_id, reason, decided_at from mainspring.fire
          where schedule_id = given.id and plan_time <= (select mainspring.now()) and origin <> 'manual'
          order by plan_time desc, scope limit $2
     ) f
      left join lateral (
          select state, run_at, case when session is not null then started_at end as started_at
            from mainspring.task where id = f.task_id limit 1
      ) t on true
      left join lateral (
          select state, run_at, started_at from mainspring.task_history
           where id = f.task_id and recorded_at > f.decided_at - interval '1 day' limit 1
      ) h on true
"""
_BINS = """
    select given.id as schedule_id, date_bin($4::interval, f.plan_time, $2) as at,
           count(*) as plan_times, count(f.task_id) as tasks
      from unnest($1::integer[]) as given(id)
      join mainspring.fire f on f.schedule_id = given.id and f.plan_time >= $2 and f.plan_time < $3
     group by 1, 2 order by 1, 2
"""
_COUNTS = """
    select given.id, (select count(*) from (
               select from mainspring.fire where schedule_id = given.id and plan_time >= $2 and plan_time < $3 limit $4
           ) found) as decided
      from unnest($1::integer[]) as given(id)
"""


async def counts(
    conn: Connection, schedules: Sequence[int], start: datetime, end: datetime, most: int
) -> dict[int, int]:
    """How many plan times of each were decided; counted up to `most`."""
    rows = await conn.fetch(_COUNTS, schedules, start, end, most)
    return {row["id"]: row["decided"] for row in rows}


async def marks(conn: Connection, schedules: Sequence[int], start: datetime, end: datetime, most: int) -> list[Any]:
    """At most so many of each schedule, and runs that began before and go on. Begins a transaction."""
    async with conn.transaction():
        # It only reads: the crash that store/tasks/partitions.py avoids cannot happen.
        await conn.execute("set local enable_partition_pruning = on; set local enable_seqscan = off")
        return await conn.fetch(_MARKS, schedules, start, end, most)


async def last_marks(conn: Connection, schedules: Sequence[int], limit: int) -> list[Any]:
    """The last decided plan times of each schedule up to now, the latest first. Begins a transaction."""
    async with conn.transaction():
        await conn.execute("set local enable_partition_pruning = on; set local enable_seqscan = off")  # as in marks
        return await conn.fetch(_LAST_MARKS, schedules, limit)


async def bins(conn: Connection, schedules: Sequence[int], start: datetime, end: datetime, width: Any) -> list[Any]:
    """Counts of plan times in bins of one width, in order."""
    return await conn.fetch(_BINS, schedules, start, end, width)


# Of no schedule in particular: partition by partition, by the second first.
_STARTED = """
    select date_bin($3::interval, at, $1), sum(starts)::bigint, sum(skipped)::bigint, max(starts),
           (array_agg(at order by starts desc, at))[1]
      from (
          select date_trunc('second', plan_time) as at, count(task_id) as starts, count(*) - count(task_id) as skipped
            from mainspring.fire
           where plan_time >= $1 and plan_time < $2 and origin = 'plan'
             and ($4::integer[] is null or schedule_id in (select id from mainspring.schedule where job_id = any($4)))
           group by 1
      ) counted
     group by 1 order by 1
"""


async def started(
    conn: Connection, start: datetime, end: datetime, cell: timedelta, jobs: Sequence[int] | None, *, within: float
) -> list[Any]:
    """Tasks of planned plan times, of these jobs or of all, in cells from `start` on: at, tasks, skipped, peak, when.

    QueryCanceledError if it takes longer than so many seconds.
    """
    async with conn.transaction():
        # It only reads, as `last_runs`.
        await conn.execute(
            f"set local enable_partition_pruning = on; set local statement_timeout = {within * 1000:.0f}"
        )
        return await conn.fetch(_STARTED, start, end, cell, jobs)
