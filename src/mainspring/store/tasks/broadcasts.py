"""Broadcasts: one task (the parent) that becomes a run (a child) on every agent that matches, all at one instant.

A parent is in a pool that no ordinary claim serves: its requirements have "@broadcast". `expand` creates its children
and moves it to running in one statement: all or nothing, and once, however many servers try. A child is created
assigned and belongs to one agent by name; its pool is of the kind *blocked*, so no other claim takes it for a retry.
    parent   pending → running → succeeded | failed | cancelled      token, but no session: no agent holds it
    child    assigned → running → … as any task; pending → assigned again only by `assign`
The claims made here are marked `undispatched`: see store/tasks/claims.py.
A parent ends with its last child, by their states; or at its instant, if no agent matches. Every statement is guarded
by the state it leaves and safe to repeat; two servers may run it at once.
Next: store/tasks/transitions.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from mainspring.model.tasks.pools import blocked, unblocked
from mainspring.model.tasks.states import (
    ARM,
    ASSIGNED,
    CANCEL,
    EXPAND,
    FAIL_UNSENT,
    IS_ACTIVE,
    LOSE_UNSENT,
    PENDING,
    RUNNING,
    SKIP,
    CancelMode,
    Move,
    TaskState,
    among,
)
from mainspring.store.cluster.holds import any_hold_of
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import readable, views
from mainspring.store.tasks import partitions
from mainspring.store.tasks.claims import BATCH_TOKENS
from mainspring.store.tasks.transitions import into_history, noted
from mainspring.store.views.task_views import labelled

CHILDREN_OF_A_BATCH = 2000  # fewer than there are tokens: the parent takes the first
FAILED_NAMED = 20  # agents that the result of a broadcast names

_LOOK = f"""
    select found.id, found.state, date_part('epoch', (select mainspring.now()) - found.run_at) as overdue
      from mainspring.pool p
     cross join generate_series(0, 9) as level(priority)
     cross join lateral (
         select t.id, t.state, t.run_at, t.job_id from mainspring.task t
          where t.pool = p.id and t.priority = level.priority
            and t.run_at <= (select mainspring.now()) + make_interval(secs => $1)
            and t.state in {among((PENDING, RUNNING))} and t.parent_id is null
     ) found
     where p.requirements ? '@broadcast' and p.target is null    -- else it is the gate of a held job
       and (found.state = {RUNNING:d} or not {any_hold_of("found.job_id")})
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
         where t.id = $1 and t.{EXPAND.leaves} and p.requirements ? '@broadcast' and p.target is null
           and not {any_hold_of("t.job_id")}
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
        insert into mainspring.claim (session, batch, tasks, undispatched)
        select placed.session, number.batch, array[placed.id], true from placed join number using (part)
    ), child as (
        insert into mainspring.task
            (id, run_at, created_at, job_id, pool, state, priority, attempt, args, plan_time, scope, origin,
             parent_id, target, session, token, submitted_by, options)
        select placed.id, parent.instant, parent.made, parent.job_id, {blocked("parent.pool")}, {ASSIGNED:d},
               parent.priority, 1, parent.args, parent.plan_time, parent.scope, parent.origin, parent.id, placed.name,
               placed.session, number.batch * {BATCH_TOKENS} + placed.turn, parent.submitted_by,
               parent.options
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
           and not {any_hold_of("t.job_id")}
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
        insert into mainspring.claim (session, batch, tasks, undispatched)
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
     where (target, id) > ($2, $3)
     order by target, id limit $4
"""


async def children(
    conn: Connection, task: int, *, after: tuple[str, int] = ("", 0), limit: int | None = None
) -> list[ChildView]:
    """The runs of a broadcast by agent, from behind one of them; none for any other task."""
    return views(ChildView, map(labelled, await readable(conn, _CHILDREN, task, *after, limit)))


# ── ends ────────────────────────────────────────────────────────────────────────────────────────


_OUTCOME = f"""
    case when cardinality(failed_on) = 0 then {TaskState.SUCCEEDED:d}
         when cancel_at is not null then {TaskState.CANCELLED:d} else {TaskState.FAILED:d} end
"""

# A child is in `task` or, from the same commit on, in the history: once none is live, the history has all of them. A
# broadcast that was retried by hand has older children too, created before its start. A child started with its first
# attempt.
_END = f"""
    with given as (select * from unnest($1::bigint[]) as given(id)), gone as (
        delete from mainspring.task t using given
         where t.id = any (array[given.id]) and t.state = {RUNNING:d} and t.session is null
           and (select true from mainspring.task c where c.parent_id = t.id and c.parent_id is not null limit 1) is null
        returning t.*
    ), child as materialized (
        select gone.id as parent, h.target, h.state = {TaskState.SUCCEEDED:d} as succeeded,
               coalesce((select min(a.started_at) from mainspring.attempt a where a.task_id = h.id),
                        h.started_at) as start
          from gone join mainspring.task_history h on h.parent_id = gone.id and h.parent_id is not null
         where h.created_at >= gone.started_at
    ), summed as (
        select gone.*, total.*
          from gone cross join lateral (
              select count(*) as agents, count(*) filter (where child.succeeded) as succeeded_on,
                     coalesce(array_agg(target order by target) filter (where not child.succeeded),
                              '{{}}') as failed_on,
                     min(child.start) as first_start, max(child.start) as last_start
                from child where child.parent = gone.id) total
    ), {noted("summed", _OUTCOME)}
    insert into mainspring.task_history
        (id, run_at, created_at, started_at, finished_at, recorded_at, token, job_id, pool, state, priority, attempt,
         crashes, args, result, error_code, error, key, schedule_id, plan_time, scope, origin, submitted_by,
         batch_id, options)
    select id, run_at, created_at, first_start, (select mainspring.now()), (select mainspring.now()), token, job_id,
           pool,
           {_OUTCOME},
           priority, attempt, crashes, args,
           jsonb_build_object(
               'agents', agents, 'succeeded', succeeded_on, 'failed', to_jsonb(failed_on[1:{FAILED_NAMED}]),
               'spread_ms', round((date_part('epoch', last_start - first_start) * 1000)::numeric, 3),
               'lateness_ms', round((date_part('epoch', last_start - run_at) * 1000)::numeric, 3)),
           case when cardinality(failed_on) = 0 then null when cancel_at is not null then 'cancelled'
                else 'broadcast_failed' end,
           case when cardinality(failed_on) > 0 then
                cardinality(failed_on) || ' of ' || agents || ' agents did not succeed: '
                || array_to_string(failed_on[1:{FAILED_NAMED}], ', ')
                || case when cardinality(failed_on) > {FAILED_NAMED} then ', …' else '' end end,
           key, schedule_id, plan_time, scope, origin, submitted_by, batch_id, options
      from summed
    returning id
"""


async def end(conn: Connection, parents: Sequence[int]) -> list[int]:
    """running → succeeded, failed, cancelled for those of `parents` whose children have all ended; returns them."""
    rows = await partitions.write(conn, lambda: conn.fetch(_END, parents))
    return [row["id"] for row in rows]


_WITHOUT_AGENTS = f"""
    with given as (select * from unnest($1::bigint[]) as given(id)), gone as (
        delete from mainspring.task t using given
         where t.id = any (array[given.id]) and t.{FAIL_UNSENT.leaves} and t.parent_id is null
           and t.run_at <= (select mainspring.now()) and not {any_hold_of("t.job_id")}
        returning t.*
    ), {noted("gone", f"{FAIL_UNSENT.target:d}")}
    {into_history("gone", FAIL_UNSENT, "no_agents", "'no agent that matches was there at its instant'")}
    returning id
"""


async def end_without_agents(conn: Connection, parents: Sequence[int]) -> list[int]:
    """pending → failed for broadcasts that are due and match no agent."""
    rows = await partitions.write(conn, lambda: conn.fetch(_WITHOUT_AGENTS, parents))
    return [row["id"] for row in rows]


_CANCEL_WAITING = f"""
    with gone as (
        delete from mainspring.task t using mainspring.task p
         where t.parent_id is not null and t.state = {PENDING:d} and p.id = t.parent_id and p.cancel_at is not null
        returning t.*
    ), {noted("gone", f"{CANCEL.target:d}")}
    {into_history("gone", CANCEL, "cancelled", "'its broadcast was cancelled before it ran again'")}
"""


async def cancel_waiting(conn: Connection) -> int:
    """pending → cancelled for children that wait to run again and whose broadcast is being cancelled."""
    return await partitions.execute(conn, _CANCEL_WAITING)


def _gone(move: Move, has_run: bool, error: str) -> str:
    """Ends children that are due and whose agent has been gone for longer than a lease.

    The condition on the instant has a form that no index serves: see store/tasks/broadcasts.py.
    """
    return f"""
        with gone as (
            delete from mainspring.task t
             where t.parent_id > 0 and t.state = {PENDING:d} and t.run_at - interval '0' <= (select mainspring.now())
               and not exists (select from mainspring.agent a
                                where a.name = t.target
                                  and a.lease_until > (select mainspring.now()) - make_interval(secs => $1))
               and {"" if has_run else "not"} exists (select from mainspring.attempt a where a.task_id = t.id)
            returning t.*
        ), {noted("gone", f"{move.target:d}")}
        {into_history("gone", move, "agent_gone", error)}
    """


_LOST = _gone(LOSE_UNSENT, True, "'agent ' || target || ', where it ran, is gone; no other agent may run it'")
_SKIPPED = _gone(SKIP, False, "'agent ' || target || ' is gone, and it never ran there'")


async def end_with_their_agents(conn: Connection, *, lease: float) -> int:
    """pending → lost, or skipped if it never ran, for children whose agent has not come back within a lease."""
    return await partitions.execute(conn, _LOST, lease) + await partitions.execute(conn, _SKIPPED, lease)
