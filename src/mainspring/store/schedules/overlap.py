"""Turns: tasks of schedules that must not overlap wait, blocked, until nothing else of their lane lives.

A lane is a schedule and scope. Its tasks are found by an index of their own, which holds only those that wait.
Every move is guarded by the state it leaves: of two servers that decide at once, one finds nothing to move.
Next: server/planning/overlap.py
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from mainspring.model.schedules.overlap import Turn
from mainspring.model.schedules.schedules import Overlap
from mainspring.model.tasks.claim_floors import Released
from mainspring.model.tasks.states import CancelMode, TaskState
from mainspring.store.cluster.segments import holds, owned
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions
from mainspring.store.tasks.history import into_history

WAITING_OF_A_LANE = 100  # looked at in one step


class Lane(NamedTuple):
    overlap: Overlap
    turns: list[Turn]
    due_in: float | None  # seconds until the first of those that wait and are not due


# Hops from lane to lane along the index, so that a long queue in one does not hide the others. Of each lane all
# that was released, and the first of those that wait.
_LANES = f"""
    with recursive {owned(server="$3")}, lane as (
        (select schedule_id, scope from mainspring.task
          where schedule_id is not null and pool < 0 order by schedule_id, scope limit 1)
        union all
        select next.schedule_id, next.scope from lane cross join lateral (
            select t.schedule_id, t.scope from mainspring.task t
             where t.schedule_id is not null and t.pool < 0
               and (t.schedule_id, t.scope) > (lane.schedule_id, lane.scope)
             order by t.schedule_id, t.scope limit 1) next
    ), soon as materialized (
        select lane.*, first.run_at from lane cross join lateral (
            select t.run_at from mainspring.task t
             where t.schedule_id = lane.schedule_id and t.schedule_id is not null
               and t.scope = lane.scope and t.pool < 0
             order by t.plan_time limit 1) first
         where first.run_at <= (select mainspring.now()) + make_interval(secs => $1)
    )
    select soon.schedule_id, soon.scope, turn.*, coalesce(s.policies->>'overlap', 'allow') as overlap
      from soon
      join mainspring.schedule s on s.id = any (array[soon.schedule_id]) and {holds("s.segment")}
     cross join lateral (
        (select t.id, false as waits, t.run_at <= (select mainspring.now()) as is_due,
                t.cancel_at is not null and (t.state = 2 or coalesce(t.cancel_mode, 0) not in (1, 3)) as stopping,
                t.plan_time, null::float8 as due_in
           from mainspring.task t
          where t.schedule_id = soon.schedule_id and t.schedule_id is not null and t.scope = soon.scope and t.pool > 0
            and t.origin is distinct from 'backfill')
         union all
        (select t.id, true, t.run_at <= (select mainspring.now()), t.cancel_at is not null, t.plan_time,
                date_part('epoch', t.run_at - (select mainspring.now()))
           from mainspring.task t
          where t.schedule_id = soon.schedule_id and t.scope = soon.scope and t.pool < 0 and t.schedule_id is not null
          order by t.plan_time limit $2)
     ) turn
     order by soon.schedule_id, soon.scope, turn.plan_time
"""


async def lanes(conn: Connection, server: UUID, *, within: float) -> list[Lane]:
    """The lanes, in segments of `server`, in which a task waits that is due within so many seconds."""
    rows = await conn.fetch(_LANES, within, WAITING_OF_A_LANE, server)
    return [
        Lane(
            tasks[0]["overlap"],
            [Turn(t["id"], t["waits"], t["is_due"], t["stopping"]) for t in tasks],
            min((t["due_in"] for t in tasks if t["waits"] and not t["is_due"]), default=None),
        )
        for tasks in (list(group) for _, group in groupby(rows, key=lambda row: (row["schedule_id"], row["scope"])))
    ]


# With the lane free as it was when somebody looked: another may have released a task of it since.
_RELEASE = """
    with given as (select * from unnest($1::bigint[]) as given(id))
    update mainspring.task t set state = 1, pool = -t.pool
      from given
     where t.id = any (array[given.id]) and t.state = 0 and t.pool < 0
       and ($2 or (select true from mainspring.task other         -- a probe per row: EXISTS might read all tasks
                    where other.schedule_id = t.schedule_id and other.schedule_id is not null
                      and other.scope = t.scope and other.pool > 0 and other.origin is distinct from 'backfill'
                    limit 1) is null)
    returning t.pool, t.priority, date_part('epoch', t.run_at) as run_at, t.id
"""


async def release(conn: Connection, tasks: Sequence[int], *, beside_others: bool = False) -> list[Released]:
    """blocked → pending for tasks whose turn it is, or for all of them where overlap is allowed now."""
    rows = await conn.fetch(_RELEASE, tasks, beside_others)
    return [Released(row["pool"], row["priority"], (row["run_at"], row["id"])) for row in rows]


_SKIP = f"""
    with given as (select * from unnest($1::bigint[]) as given(id)), gone as (
        delete from mainspring.task t using given
         where t.id = any (array[given.id]) and t.state = 0 and t.pool < 0
        returning t.*
    ), noted as (
        update mainspring.fire f set task_id = null, reason = 'overlap', decided_at = mainspring.now()
          from gone
         where f.schedule_id = gone.schedule_id and f.plan_time = gone.plan_time and f.scope = gone.scope
           and f.task_id = gone.id
    )
    {into_history("gone", TaskState.SKIPPED, "overlap", "'the task before it was still there at its instant'")}
"""


async def skip(conn: Connection, tasks: Sequence[int]) -> int:
    """blocked → skipped: the ledger keeps the reason."""
    status = await partitions.write(conn, lambda: conn.execute(_SKIP, tasks))
    return int(status.rpartition(" ")[2])


# One that waits for a retry is cancelled at once; the others are their agents' to stop. One that was asked back and
# has started runs on (cancel_mode 1), one that is restarted runs again: they are to stop now all the same.
_STOP = f"""
    update mainspring.task t set cancel_at = mainspring.now(), cancel_mode = case when $2 then {CancelMode.KILL:d} end
      from unnest($1::bigint[]) as given(id)
     where t.id = any (array[given.id]) and t.state in (2, 3)
       and (t.cancel_at is null or t.state = 3 and t.cancel_mode = {CancelMode.RECALL:d}
            or t.cancel_mode = {CancelMode.RESTART:d})
    returning t.id
"""
_END = f"""
    with gone as (
        delete from mainspring.task t using unnest($1::bigint[]) as given(id)
         where t.id = any (array[given.id]) and t.state = 1
        returning t.*
    )
    {into_history("gone", TaskState.CANCELLED, "cancelled", "'the next task of its schedule took its place'")}
"""


async def stop(conn: Connection, tasks: Sequence[int], *, kill: bool) -> int:
    """Make room: those that run are to stop, with or without their grace; those that do not are cancelled."""
    stopping = len(await conn.fetch(_STOP, tasks, kill))
    status = await partitions.write(conn, lambda: conn.execute(_END, tasks))
    return stopping + int(status.rpartition(" ")[2])
