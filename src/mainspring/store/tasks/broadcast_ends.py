"""Broadcast ends: a broadcast ends with its last child, by their states; or at its instant, without any agent.

Every statement is guarded by the state it leaves and safe to repeat; two servers may run it at once.
Next: server/dispatch/broadcaster.py
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.tasks.states import CANCEL, FAIL_UNSENT, LOSE_UNSENT, PENDING, RUNNING, SKIP, Move, TaskState
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions
from mainspring.store.tasks.transitions import into_history

FAILED_NAMED = 20  # agents that the result of a broadcast names

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
    )
    insert into mainspring.task_history
        (id, run_at, created_at, started_at, finished_at, recorded_at, token, job_id, pool, state, priority, attempt,
         crashes, args, result, error_code, error, key, schedule_id, plan_time, scope, origin)
    select id, run_at, created_at, first_start, (select mainspring.now()), (select mainspring.now()), token, job_id,
           pool,
           case when cardinality(failed_on) = 0 then {TaskState.SUCCEEDED:d}
                when cancel_at is not null then {TaskState.CANCELLED:d} else {TaskState.FAILED:d} end,
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
           key, schedule_id, plan_time, scope, origin
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
           and t.run_at <= (select mainspring.now())
        returning t.*
    )
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
    )
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
        )
        {into_history("gone", move, "agent_gone", error)}
    """


_LOST = _gone(LOSE_UNSENT, True, "'agent ' || target || ', where it ran, is gone; nobody else may run it again'")
_SKIPPED = _gone(SKIP, False, "'agent ' || target || ' is gone, and it never ran there'")


async def end_with_their_agents(conn: Connection, *, lease: float) -> int:
    """pending → lost, or skipped if it never ran, for children whose agent has not come back within a lease."""
    return await partitions.execute(conn, _LOST, lease) + await partitions.execute(conn, _SKIPPED, lease)
