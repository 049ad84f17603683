"""Fires: reads the ledger: what was decided about plan times, and which versions of a schedule expected them.

Next: store/schedules/explain.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, cast

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


class Run(NamedTuple):
    """A decided plan time, and what became of its task."""

    fire: FireRow
    state: TaskState | None  # None if there is no task, or retention dropped it
    finished_at: datetime | None


# The last plan times of each schedule by the primary key of the ledger, then each task by its id. Of the history it
# reads only the days since the decision, and one more in case the clock was set back. No part grows with retention.
_LAST_RUNS = """
    select given.id, f.plan_time, f.scope, f.task_id, f.reason, f.origin, f.decided_at,
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
_LEDGER = """
    select f.plan_time, f.scope, f.task_id, f.reason, f.origin, f.decided_at,
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
    current = Version(timing(stored.schedule), stored.schedule.policies, stored.enabled, stored.since)
    found = await plans.with_older(conn, stored.id, stored.schedule.name, current, since)
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
