"""Overlap: tasks of a schedule that must not overlap are blocked until no other task of their group lives.

A group is the tasks of one schedule and scope. An index of its own has only those that wait. Every move is guarded by
the state it leaves: of two servers that decide at once, one finds nothing to move.
Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from mainspring.model.schedules.overlap import LiveTask
from mainspring.model.schedules.schedules import Overlap
from mainspring.model.tasks.claim_floors import Released
from mainspring.model.tasks.pools import IS_BLOCKED, IS_QUEUED, unblocked
from mainspring.model.tasks.states import (
    ASSIGNED,
    BLOCKED,
    CANCEL,
    IS_ACTIVE,
    PENDING,
    RUNNING,
    RUNS_AGAIN,
    SKIP,
    UNBLOCK,
    CancelMode,
)
from mainspring.store.cluster.segments import holds, owned
from mainspring.store.postgres import hints
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions
from mainspring.store.tasks.transitions import into_history, noted

WAITING_OF_A_GROUP = 100  # read in one step


class Group(NamedTuple):
    overlap: Overlap
    turns: list[LiveTask]
    due_in: float | None  # seconds until the first waiting task that is not due


# A recursive query hops from group to group along the index, so that a long queue in one does not hide the others. It
# returns all released tasks of each group and the first of those that wait. Those that wait for another schedule
# (store/followed/after.py) have no turn.
_GROUPS = f"""
    with recursive {owned(server="$3")}, key as (
        (select schedule_id, scope from mainspring.task
          where schedule_id is not null and {IS_BLOCKED} and waiting_for = 0 order by schedule_id, scope limit 1)
        union all
        select next.schedule_id, next.scope from key cross join lateral (
            select t.schedule_id, t.scope from mainspring.task t
             where t.schedule_id is not null and t.{IS_BLOCKED} and t.waiting_for = 0
               and (t.schedule_id, t.scope) > (key.schedule_id, key.scope)
             order by t.schedule_id, t.scope limit 1) next
    ), soon as materialized (
        select key.*, first.run_at from key cross join lateral (
            select t.run_at from mainspring.task t
             where t.schedule_id = key.schedule_id and t.schedule_id is not null
               and t.scope = key.scope and t.{IS_BLOCKED} and t.waiting_for = 0
             order by t.plan_time limit 1) first
         where first.run_at <= (select mainspring.now()) + make_interval(secs => $1)
    )
    select soon.schedule_id, soon.scope, turn.*, coalesce(s.policies->>'overlap', 'allow') as overlap
      from soon
      join mainspring.schedule s on s.id = any (array[soon.schedule_id]) and {holds("s.segment")}
     cross join lateral (
        (select t.id, false as waits, t.run_at <= (select mainspring.now()) as is_due,
                t.cancel_at is not null
                and (t.state = {ASSIGNED:d} or coalesce(t.cancel_mode, 0) not in {RUNS_AGAIN}) as stopping, t.plan_time,
                null::float8 as due_in
           from mainspring.task t
          where t.schedule_id = soon.schedule_id and t.schedule_id is not null and t.scope = soon.scope
            and t.{IS_QUEUED} and t.origin is distinct from 'backfill')
         union all
        (select t.id, true, t.run_at <= (select mainspring.now()), t.cancel_at is not null, t.plan_time,
                date_part('epoch', t.run_at - (select mainspring.now()))
           from mainspring.task t
          where t.schedule_id = soon.schedule_id and t.scope = soon.scope and t.{IS_BLOCKED}
            and t.schedule_id is not null and t.waiting_for = 0
          order by t.plan_time limit $2)
     ) turn
     order by soon.schedule_id, soon.scope, turn.plan_time
"""


async def groups(conn: Connection, server: UUID, *, within: float) -> list[Group]:
    """The groups in segments of `server` with a waiting task that is due within so many seconds."""
    rows = await conn.fetch(_GROUPS, within, WAITING_OF_A_GROUP, server)
    return [
        Group(
            tasks[0]["overlap"],
            [LiveTask(t["id"], t["waits"], t["is_due"], t["stopping"]) for t in tasks],
            min((t["due_in"] for t in tasks if t["waits"] and not t["is_due"]), default=None),
        )
        for tasks in (list(group) for _, group in groupby(rows, key=lambda row: (row["schedule_id"], row["scope"])))
    ]


# Checks again that the group has no released task: another server may have released one since the group was read.
_RELEASE = f"""
    with given as (select * from unnest($1::bigint[]) as given(id)), moved as (
        update mainspring.task t set {UNBLOCK.enters}, pool = {unblocked("t.pool")}
          from given
         where t.id = any (array[given.id]) and t.{UNBLOCK.leaves} and t.{IS_BLOCKED} and t.waiting_for = 0
           and ($2 or (select true from mainspring.task other         -- one probe per row: EXISTS might scan all tasks
                        where other.schedule_id = t.schedule_id and other.schedule_id is not null
                          and other.scope = t.scope and other.{IS_QUEUED} and other.origin is distinct from 'backfill'
                        limit 1) is null)
        returning t.pool, t.priority, t.run_at, t.id
    )
    select pool, priority, date_part('epoch', run_at) as run_at, id, ({hints.due("moved")}) as hints from moved
"""


async def release(conn: Connection, tasks: Sequence[int], *, beside_others: bool = False) -> list[Released]:
    """blocked → pending for tasks whose group is free; for all of them with `beside_others`, if overlap is allowed."""
    rows = await conn.fetch(_RELEASE, tasks, beside_others)
    return [Released(row["pool"], row["priority"], (row["run_at"], row["id"])) for row in rows]


_SKIP = f"""
    with given as (select * from unnest($1::bigint[]) as given(id)), gone as (
        delete from mainspring.task t using given
         where t.id = any (array[given.id]) and t.state = {BLOCKED:d} and t.{IS_BLOCKED} and t.waiting_for = 0
        returning t.*
    ), noted as (
        update mainspring.fire f set task_id = null, reason = 'overlap', decided_at = mainspring.now()
          from gone
         where f.schedule_id = gone.schedule_id and f.plan_time = gone.plan_time and f.scope = gone.scope
           and f.task_id = gone.id
    ), {noted("gone", f"{SKIP.target:d}")}
    {into_history("gone", SKIP, "overlap", "'the task before it was still there at its instant'")}
"""


async def skip(conn: Connection, tasks: Sequence[int]) -> int:
    """blocked → skipped: the ledger keeps the reason."""
    return await partitions.execute(conn, _SKIP, tasks)


# A task that waits for a retry is cancelled at once; agents stop the others, also those that started under a recall and
# those that are to restart.
_STOP = f"""
    update mainspring.task t set cancel_at = mainspring.now(), cancel_mode = case when $2 then {CancelMode.KILL:d} end
      from unnest($1::bigint[]) as given(id)
     where t.id = any (array[given.id]) and t.{IS_ACTIVE}
       and (t.cancel_at is null or t.state = {RUNNING:d} and t.cancel_mode = {CancelMode.RECALL:d}
            or t.cancel_mode = {CancelMode.RESTART:d})
    returning t.id
"""
_END = f"""
    with gone as (
        delete from mainspring.task t using unnest($1::bigint[]) as given(id)
         where t.id = any (array[given.id]) and t.state = {PENDING:d}
        returning t.*
    ), {noted("gone", f"{CANCEL.target:d}")}
    {into_history("gone", CANCEL, "cancelled", "'the next task of its schedule took its place'")}
"""


async def stop(conn: Connection, tasks: Sequence[int], *, kill: bool) -> int:
    """Make room: stop tasks that agents hold, with or without their grace; cancel those that no agent holds."""
    return len(await conn.fetch(_STOP, tasks, kill)) + await partitions.execute(conn, _END, tasks)
