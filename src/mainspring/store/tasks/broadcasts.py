"""Broadcasts: one task (the parent) that becomes a run (a child) on every agent that matches, all at one instant.

A parent lies in a pool that no ordinary claim serves: its requirements have "@broadcast". `expand` makes its children
and moves it to running, in one statement: all of it or nothing, and once, however many servers try. A child is born
assigned, and belongs to one agent by name; while it waits for a retry its pool is negative, out of every claim's way.
    parent   pending → running → succeeded | failed | cancelled      token, but no session: no agent has it
    child    assigned → running → … as any task; pending → assigned again only by `assign`
The claim rows that are made here are `untold`: see store/tasks/claims.py.
Next: server/dispatch/broadcaster.py; how a broadcast ends is in store/tasks/broadcast_ends.py
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks.claims import BATCH_TOKENS

CHILDREN_OF_A_BATCH = 1000  # fewer than there are tokens: the parent takes the first

_LOOK = """
    select found.id, found.state, date_part('epoch', (select mainspring.now()) - found.run_at) as overdue
      from mainspring.pool p
     cross join generate_series(0, 9) as level(priority)
     cross join lateral (
         select t.id, t.state, t.run_at from mainspring.task t
          where t.pool = p.id and t.priority = level.priority
            and t.run_at <= (select mainspring.now()) + make_interval(secs => $1)
            and t.state in (1, 3) and t.parent_id is null
     ) found
     where p.requirements ? '@broadcast'
     order by level.priority desc, found.id
"""


class Parent(NamedTuple):
    task: int
    is_running: bool
    overdue: float  # seconds; negative: it is not due yet


async def look(conn: Connection, *, ahead: float) -> list[Parent]:
    """Broadcasts that run, and those due within so many seconds."""
    return [Parent(id, state == TaskState.RUNNING, overdue) for id, state, overdue in await conn.fetch(_LOOK, ahead)]


# Agents are told apart by name: of two sessions of one name the newer counts, the other is a connection that was lost.
# `agent.labels @>` is asked of live sessions only. Tokens: the parent's is the first of the first batch, so those of
# its children are greater.
_EXPAND = f"""
    with notice as materialized (
        select greatest($2::float8, 4 * max(ack_time)) as seconds from mainspring.agent
         where ended_at is null and lease_until > (select mainspring.now())
    ), parent as materialized (
        select t.ctid as place, t.*,
               greatest(t.run_at, (select mainspring.now()) + make_interval(secs => (select seconds from notice)))
                   as instant,
               (select mainspring.now()) as made, mainspring.labels(p.requirements) as labels
          from mainspring.task t join mainspring.pool p on p.id = t.pool
         where t.id = $1 and t.state = 1 and p.requirements ? '@broadcast'
           for update of t skip locked
    ), live as materialized (
        select distinct on (a.name) a.name, a.session from parent join mainspring.agent a on a.labels @> parent.labels
         where a.ended_at is null and a.lease_until > (select mainspring.now())
           and not exists (select from mainspring.draining d where d.name = a.name)
         order by a.name, a.session desc
    ), placed as materialized (
        select name, session, nextval('mainspring.task_id') as id, turn / {CHILDREN_OF_A_BATCH} as part,
               turn % {CHILDREN_OF_A_BATCH} + 1 as turn
          from (select live.*, row_number() over (order by name) - 1 as turn from live) numbered
    ), number as materialized (
        select part, nextval('mainspring.claim_batch') as batch
          from (select distinct part from placed order by part) parts
    ), noted as (
        insert into mainspring.claim (session, batch, tasks, untold)
        select placed.session, number.batch, array[placed.id], true from placed join number using (part)
    ), child as (
        insert into mainspring.task
            (id, run_at, created_at, job_id, pool, state, priority, attempt, args, plan_time, scope, origin,
             parent_id, target, session, token)
        select placed.id, parent.instant, parent.made, parent.job_id, -parent.pool, 2, parent.priority, 1, parent.args,
               parent.plan_time, parent.scope, parent.origin, parent.id, placed.name, placed.session,
               number.batch * {BATCH_TOKENS} + placed.turn
          from parent cross join placed join number using (part)
    ), sent as (
        update mainspring.task t
           set state = 3, run_at = parent.instant, started_at = parent.made,
               token = (select min(batch) from number) * {BATCH_TOKENS}
          from parent
         where t.ctid = parent.place and t.state = 1 and exists (select from placed)
        returning t.id
    )
    select (select count(*) from placed) as agents, pg_notify('mainspring', 'armed') from sent
"""


async def expand(conn: Connection, task: int, *, notice: float) -> int:
    """pending → running, with a child on every live agent that matches; returns how many there are.

    They fire at the broadcast's own instant, or `notice` seconds from now if that is later, or more where an agent is
    slow to acknowledge. 0: somebody else was quicker, or there is no agent; then nothing is changed.
    """
    agents: int | None = await conn.fetchval(_EXPAND, task, notice)
    return agents or 0


# A child runs where it was meant to run: on the newest session of that agent's name. Its instant is asked for in a form
# that no index serves, so that children are found by being children, however many other tasks there are.
_ASSIGN = f"""
    with due as materialized (
        select t.ctid as place, t.id, t.target, t.pool from mainspring.task t
         where t.parent_id > 0 and t.state = 1
           and t.run_at - make_interval(secs => $1) <= (select mainspring.now())
           and (select true from mainspring.task p         -- a probe: its parent is being cancelled, and it with it
                 where p.id = t.parent_id and p.cancel_at is not null) is null
         limit {CHILDREN_OF_A_BATCH}
           for update of t skip locked
    ), live as materialized (
        select distinct on (a.name) a.name, a.session, a.labels from mainspring.agent a
         where a.ended_at is null and a.lease_until > (select mainspring.now()) and exists (select from due)
         order by a.name, a.session desc
    ), placed as materialized (
        select due.place, due.id, live.session, row_number() over () - 1 as turn
          from due join live on live.name = due.target join mainspring.pool p on p.id = abs(due.pool)
         where live.labels @> mainspring.labels(p.requirements)
    ), number as materialized (
        select nextval('mainspring.claim_batch') as batch from placed limit 1
    ), noted as (
        insert into mainspring.claim (session, batch, tasks, untold)
        select session, (select batch from number), array_agg(id), true from placed group by session
    ), assigned as (
        update mainspring.task t
           set state = 2, token = (select batch from number) * {BATCH_TOKENS} + placed.turn, attempt = attempt + 1,
               session = placed.session
          from placed
         where t.ctid = placed.place and t.state = 1
        returning t.id
    )
    select count(*) as tasks, (select max(pg_notify('mainspring', 'armed')::text) from number) from assigned
"""


async def assign(conn: Connection, *, ahead: float) -> int:
    """pending → assigned for children that are to run again, each on its own agent if that is there."""
    tasks: int = await conn.fetchval(_ASSIGN, ahead)
    return tasks


# Who cancels a broadcast, or puts another in its place, marks the parent alone.
_PASS_ON = """
    with found as materialized (
        select c.id, p.cancel_at, p.cancel_mode
          from mainspring.task p join mainspring.task c on c.parent_id = p.id and c.parent_id is not null
         where p.cancel_at is not null and c.state in (2, 3)
           and (c.cancel_at is null                                 -- else only if it is to stop in another way
                or c.cancel_mode is distinct from 2 and c.cancel_mode is distinct from p.cancel_mode)
           for update of c skip locked
    )
    update mainspring.task t set cancel_at = found.cancel_at, cancel_mode = found.cancel_mode
      from found
     where t.id = any (array[found.id]) and t.state in (2, 3)
"""


async def pass_on_cancels(conn: Connection) -> None:
    """The children of a broadcast that somebody wants cancelled are to be cancelled in the same way."""
    await conn.execute(_PASS_ON)


class ChildView(msgspec.Struct, frozen=True):
    """One run of a broadcast, as people see it."""

    id: int
    agent: str
    state: str
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    lateness_ms: float | None
    error: str | None


_CHILDREN = """
    select id, target, state, attempt, run_at, started_at, finished_at, error
      from (select id, target, state, attempt, run_at, started_at, null::timestamptz as finished_at, null as error
              from mainspring.task where parent_id = $1
             union all
            select id, target, state, attempt, run_at, started_at, finished_at, error
              from mainspring.task_history where parent_id = $1) child
     order by target, id
"""


async def children(conn: Connection, task: int) -> list[ChildView]:
    """The runs of a broadcast by agent; none for any other task."""
    return [
        ChildView(
            id=row["id"],
            agent=row["target"],
            state=TaskState(row["state"]).label,
            attempt=row["attempt"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
            lateness_ms=row["started_at"] and round((row["started_at"] - row["run_at"]).total_seconds() * 1000, 3),
            error=row["error"],
        )
        for row in await conn.fetch(_CHILDREN, task)
    ]
