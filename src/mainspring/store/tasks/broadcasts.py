"""Broadcasts: one task (the parent) that becomes a run (a child) on every agent that matches, all at one instant.

A parent is in a pool that no ordinary claim serves: its requirements have "@broadcast". `expand` creates its children
and moves it to running in one statement: all or nothing, and once, however many servers try. A child is created
assigned and belongs to one agent by name; its pool is of the kind *blocked*, so no other claim takes it for a retry.
    parent   pending → running → succeeded | failed | cancelled      token, but no session: no agent holds it
    child    assigned → running → … as any task; pending → assigned again only by `assign`
The claims made here are marked `untold`: see store/tasks/claims.py.
Next: store/tasks/broadcast_ends.py
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from mainspring.model.tasks.pools import blocked, unblocked
from mainspring.model.tasks.states import (
    ARM,
    ASSIGNED,
    EXPAND,
    IS_ACTIVE,
    PENDING,
    RUNNING,
    CancelMode,
    among,
)
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import views
from mainspring.store.tasks.claims import BATCH_TOKENS
from mainspring.store.tasks.tasks import labelled

CHILDREN_OF_A_BATCH = 1000  # fewer than there are tokens: the parent takes the first

_LOOK = f"""
    select found.id, found.state, date_part('epoch', (select mainspring.now()) - found.run_at) as overdue
      from mainspring.pool p
     cross join generate_series(0, 9) as level(priority)
     cross join lateral (
         select t.id, t.state, t.run_at from mainspring.task t
          where t.pool = p.id and t.priority = level.priority
            and t.run_at <= (select mainspring.now()) + make_interval(secs => $1)
            and t.state in {among((PENDING, RUNNING))} and t.parent_id is null
     ) found
     where p.requirements ? '@broadcast'
     order by level.priority desc, found.id
"""


class Parent(NamedTuple):
    task: int
    is_running: bool
    overdue: float  # seconds; negative: not due yet


async def look(conn: Connection, *, ahead: float) -> list[Parent]:
    """Broadcasts that run, and those due within so many seconds."""
    return [Parent(id, state == RUNNING, overdue) for id, state, overdue in await conn.fetch(_LOOK, ahead)]


# An agent is identified by name: of two sessions with one name the newer counts, the other has lost its connection.
# The parent's token is the first of the first batch, so the tokens of its children are greater.
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
         where t.id = $1 and t.{EXPAND.leaves} and p.requirements ? '@broadcast'
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
        select placed.id, parent.instant, parent.made, parent.job_id, {blocked("parent.pool")}, {ASSIGNED:d},
               parent.priority, 1, parent.args, parent.plan_time, parent.scope, parent.origin, parent.id, placed.name,
               placed.session, number.batch * {BATCH_TOKENS} + placed.turn
          from parent cross join placed join number using (part)
    ), sent as (
        update mainspring.task t
           set {EXPAND.enters}, run_at = parent.instant, started_at = parent.made,
               token = (select min(batch) from number) * {BATCH_TOKENS}
          from parent
         where t.ctid = parent.place and t.{EXPAND.leaves} and exists (select from placed)
        returning t.id
    )
    select (select count(*) from placed) as agents, pg_notify('mainspring', 'armed') from sent
"""


async def expand(conn: Connection, task: int, *, notice: float) -> int:
    """pending → running, with a child on every live agent that matches; returns how many there are.

    They fire at the broadcast's instant, or `notice` seconds from now if that is later, or later still where an agent
    is slow to acknowledge. 0: another server was faster, or no agent matches; then nothing changes.
    """
    agents: int | None = await conn.fetchval(_EXPAND, task, notice)
    return agents or 0


# A child runs on the newest session of its own agent. The condition on its instant has a form that no index serves, so
# the scan uses the index of children, however many other tasks there are.
_ASSIGN = f"""
    with due as materialized (
        select t.ctid as place, t.id, t.target, t.pool from mainspring.task t
         where t.parent_id > 0 and t.{ARM.leaves}
           and t.run_at - make_interval(secs => $1) <= (select mainspring.now())
           and (select true from mainspring.task p         -- one probe: not if its parent is being cancelled
                 where p.id = t.parent_id and p.cancel_at is not null) is null
         limit {CHILDREN_OF_A_BATCH}
           for update of t skip locked
    ), live as materialized (
        select distinct on (a.name) a.name, a.session, a.labels from mainspring.agent a
         where a.ended_at is null and a.lease_until > (select mainspring.now()) and exists (select from due)
         order by a.name, a.session desc
    ), placed as materialized (
        select due.place, due.id, live.session, row_number() over () - 1 as turn
          from due join live on live.name = due.target join mainspring.pool p on p.id = {unblocked("due.pool")}
         where live.labels @> mainspring.labels(p.requirements)
    ), number as materialized (
        select nextval('mainspring.claim_batch') as batch from placed limit 1
    ), noted as (
        insert into mainspring.claim (session, batch, tasks, untold)
        select session, (select batch from number), array_agg(id), true from placed group by session
    ), assigned as (
        update mainspring.task t
           set {ARM.enters}, token = (select batch from number) * {BATCH_TOKENS} + placed.turn, attempt = attempt + 1,
               session = placed.session
          from placed
         where t.ctid = placed.place and t.{ARM.leaves}
        returning t.id
    )
    select count(*) as tasks, (select max(pg_notify('mainspring', 'armed')::text) from number) from assigned
"""


async def assign(conn: Connection, *, ahead: float) -> int:
    """pending → assigned for children that are to run again, each on its own agent if that lives."""
    tasks: int = await conn.fetchval(_ASSIGN, ahead)
    return tasks


# A cancel, or an overlap policy that replaces a broadcast, marks only the parent.
_PASS_ON = f"""
    with found as materialized (
        select c.id, p.cancel_at, p.cancel_mode
          from mainspring.task p join mainspring.task c on c.parent_id = p.id and c.parent_id is not null
         where p.cancel_at is not null and c.{IS_ACTIVE}
           and (c.cancel_at is null                                 -- else only if the mode has changed
                or c.cancel_mode is distinct from {CancelMode.KILL:d} and c.cancel_mode is distinct from p.cancel_mode)
           for update of c skip locked
    )
    update mainspring.task t set cancel_at = found.cancel_at, cancel_mode = found.cancel_mode
      from found
     where t.id = any (array[found.id]) and t.{IS_ACTIVE}
"""


async def pass_on_cancels(conn: Connection) -> None:
    """Cancel the children of broadcasts that are being cancelled, in the same way."""
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
    select id, target as agent, state, attempt, run_at, started_at, finished_at, error
      from (select id, target, state, attempt, run_at, started_at, null::timestamptz as finished_at, null as error
              from mainspring.task where parent_id = $1
             union all
            select id, target, state, attempt, run_at, started_at, finished_at, error
              from mainspring.task_history where parent_id = $1) child
     order by target, id
"""


async def children(conn: Connection, task: int) -> list[ChildView]:
    """The runs of a broadcast by agent; none for any other task."""
    return views(ChildView, map(labelled, await conn.fetch(_CHILDREN, task)))
