"""Revoke: withdraw planned tasks that have not started when their schedule is changed, paused or deleted, or their plan
time is skipped by hand.

A task that no agent holds is withdrawn at once. Of a task that an agent holds, the agent is asked for a recall: if it
has not started, the agent gives it back and `confirm` withdraws it; if it has, it keeps running.

The plan time of a withdrawn task is undecided again and the cursor returns to it: the planner decides it by the version
that is in force then. A plan time that had passed before the change stays decided, as paused.
Next: store/schedules/plans.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from mainspring.model.schedules.planning import INSTANT
from mainspring.model.tasks.states import ASSIGNED, CANCEL, IS_WAITING, RUNNING, CancelMode
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions
from mainspring.store.tasks.transitions import asking_agents, into_history, noted


class Recalled(Struct, frozen=True):
    """What a change did to the tasks of its schedule."""

    taken_back: int  # withdrawn
    asked_back: int  # assigned to an agent, and withdrawn unless they start first
    running: int  # started: they keep running


NOTHING = Recalled(0, 0, 0)

# The time of the change: the one that asked for a recall, or the one in this transaction.
_SINCE = "coalesce(gone.cancel_at, (select s.since from mainspring.schedule s where s.id = gone.schedule_id))"

_WHY = "'its schedule was changed, or its plan time skipped, before it started'"

# What follows for the withdrawn tasks (`gone`), in the same statement. Their schedule may be deleted.
# A plan time counts as a run while any of its scopes has a task.
_UNDECIDE = f"""
    , {noted("gone", f"{CANCEL.target:d}")}, kept as (
        {into_history("gone", CANCEL, "recalled", _WHY)}
    ), undecided as (
        delete from mainspring.fire f using gone
         where f.schedule_id = gone.schedule_id and f.plan_time = gone.plan_time and f.scope = gone.scope
           and f.task_id = gone.id and gone.plan_time > {_SINCE}
        returning f.schedule_id, f.plan_time
    ), paused as (
        update mainspring.fire f set task_id = null, reason = 'paused'
          from gone
         where f.schedule_id = gone.schedule_id and f.plan_time = gone.plan_time and f.scope = gone.scope
           and f.task_id = gone.id and gone.plan_time <= {_SINCE}
    ), rewound as (
        update mainspring.schedule s
           set next_plan_at = least(s.next_plan_at, back.first),
               look_at = case when s.enabled then mainspring.now() end,
               runs = greatest(s.runs - back.runs, 0)
          from (select schedule_id, min(plan_time) as first, count(*) filter (where scopes_left = 0) as runs
                  from (select u.schedule_id, u.plan_time,
                               (select count(*) from mainspring.fire f       -- as they were before this statement
                                 where f.schedule_id = u.schedule_id and f.plan_time = u.plan_time
                                   and f.task_id is not null) - count(*) as scopes_left
                          from undecided u group by u.schedule_id, u.plan_time) plan
                 group by schedule_id) back
         where s.id = back.schedule_id
        returning s.id
    )
    select id, (select max(pg_notify('mainspring', 'schedule')::text) from (select from rewound limit 1) any_rewound)
      from gone
"""

# Never started: no attempt counted, and none of the others may have started. An attempt that ended before the plan time
# without a known start was only armed, on an agent that is gone. Only tasks that the planner created are withdrawn.
_UNSTARTED = """
    t.schedule_id = $1 and ($2::timestamptz is null or t.plan_time > $2)
    and ($3::timestamptz is null or t.plan_time <= $3)
    and (select true from mainspring.attempt a                                            -- one probe, never a scan
          where a.task_id = t.id and (a.started_at is not null or a.recorded_at >= t.plan_time) limit 1) is null
    and t.origin = 'plan'
"""

_TAKE_BACK = f"""
    with gone as (
        delete from mainspring.task t where {_UNSTARTED} and t.{IS_WAITING} and t.attempt = 0 returning t.*
    )
    {_UNDECIDE}
"""

_ASK_BACK = asking_agents(f"""
    update mainspring.task t set cancel_at = $4, cancel_mode = {CancelMode.RECALL:d}
     where {_UNSTARTED} and t.state = {ASSIGNED:d} and t.attempt = 1 and t.cancel_at is null
""")

# A task may be claimed or given back between the two statements; in one snapshot it is in one state.
_LEFT = f"""
    select exists (select from mainspring.task t
                    where {_UNSTARTED} and (t.{IS_WAITING} and t.attempt = 0
                                            or t.state = {ASSIGNED:d} and t.attempt = 1 and t.cancel_at is null))
"""

_RUNNING = f"""
    select count(*) from mainspring.task
     where schedule_id = $1 and state = {RUNNING:d} and origin is distinct from 'daemon'
"""


# One probe for each of them, never a scan.
_WITH_TASKS = """
    select given.id from unnest($1::integer[]) as given(id)
     where (select true from mainspring.task t where t.schedule_id = given.id limit 1)
"""


async def with_tasks(conn: Connection, schedules: Sequence[int]) -> set[int]:
    """Those of these schedules that have tasks: no others have any to withdraw."""
    return {row["id"] for row in await conn.fetch(_WITH_TASKS, schedules)}


# What `recall` would find. A replica of a daemon is no planned task.
_WOULD = f"""
    select t.schedule_id,
           count(*) filter (where {_UNSTARTED.replace("$1", "t.schedule_id")} and t.{IS_WAITING} and t.attempt = 0),
           count(*) filter (where {_UNSTARTED.replace("$1", "t.schedule_id")} and t.state = {ASSIGNED:d}
                              and t.attempt = 1 and t.cancel_at is null),
           count(*) filter (where t.state = {RUNNING:d} and t.origin is distinct from 'daemon')
      from unnest($1::integer[]) as given(id)
      join lateral (select * from mainspring.task where schedule_id = given.id) t on true
     group by t.schedule_id
"""


async def would_recall(conn: Connection, schedules: Sequence[int], after: datetime | None) -> dict[int, Recalled]:
    """What a change of these schedules would do to their tasks now, all or the plan times after an instant."""
    rows = await conn.fetch(_WOULD, schedules, after, None)
    return {schedule: Recalled(*counts) for schedule, *counts in map(tuple, rows)}


async def recall(conn: Connection, schedule_id: int, *, at: datetime, after: datetime | None = None) -> Recalled:
    """Withdraw what has not started, all of it or the plan times after an instant; `at` is the time of the change.

    The caller has locked the schedule's row and moved it to its new version.
    """
    taken_back, asked_back = await _withdraw(conn, schedule_id, at, after, None)
    return Recalled(taken_back, asked_back, await conn.fetchval(_RUNNING, schedule_id))


async def recall_between(
    conn: Connection, schedule_id: int, *, at: datetime, start: datetime, stop: datetime
) -> Recalled:
    """The same for the plan times from `start` through `stop`, which lie after `at`. The schedule's row is locked."""
    taken_back, asked_back = await _withdraw(conn, schedule_id, at, start - INSTANT, stop)
    return Recalled(taken_back, asked_back, 0)


async def _withdraw(
    conn: Connection, schedule_id: int, at: datetime, after: datetime | None, upto: datetime | None
) -> tuple[int, int]:
    taken_back = asked_back = 0
    await partitions.go_through_all(conn)
    while True:
        gone = await partitions.write(conn, lambda: conn.fetch(_TAKE_BACK, schedule_id, after, upto))
        asked = await conn.fetch(_ASK_BACK, schedule_id, after, upto, at)
        taken_back += len(gone)
        asked_back += len(asked)
        if not await conn.fetchval(_LEFT, schedule_id, after, upto):
            return taken_back, asked_back


# Locks the schedules first, as planners do before they write their fires: the other order would deadlock.
_CONFIRM = f"""
    with given as (select * from unnest($1::bigint[], $2::bigint[]) as given(id, token)), held as materialized (
        select s.id from mainspring.schedule s
         where s.id = any (array(select t.schedule_id from given join mainspring.task t on t.id = any (array[given.id])
                                  where t.cancel_mode = {CancelMode.RECALL:d}))
         order by s.id
           for update
    ), gone as (
        delete from mainspring.task t using given
         where t.id = any (array[given.id]) and t.token = given.token and t.state = {ASSIGNED:d}
           and t.cancel_mode = {CancelMode.RECALL:d} and (select count(*) from held) >= 0
           and (t.options is null or not t.options ? 'skip')          -- store/tasks/control.py ends that
        returning t.*
    )
    {_UNDECIDE}
"""


async def confirm(conn: Connection, tasks: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """An agent gave these back unstarted: withdraw those under a recall. Returns them."""
    rows = await partitions.write(conn, lambda: conn.fetch(_CONFIRM, tasks, tokens))
    return [row["id"] for row in rows]
