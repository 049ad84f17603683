"""Dependencies: what becomes of a blocked task when the tasks that it waits for have ended.

    all have succeeded     blocked → pending
    one has not            on_parent_failure says: skip  blocked → skipped, at once
                                                   fail  blocked → failed, at once
                                                   run   blocked → pending, once all have ended

What is skipped or failed here has ended too, so that its own children follow theirs. Each statement can be repeated and
does all that is due at once: a server that dies in between loses nothing.

A retry of a task with its children finds those that ended because of it, and blocks them again (pending → blocked).
Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mainspring.errors import ValidationError
from mainspring.model.tasks.claim_floors import Released
from mainspring.model.tasks.pools import blocked, unblocked
from mainspring.model.tasks.states import BLOCK_AGAIN, BLOCKED, FAIL_BLOCKED, PENDING, SKIP, UNBLOCK, TaskState
from mainspring.store.postgres import hints
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions
from mainspring.store.tasks.transitions import into_history, noted
from mainspring.store.views.task_views import RETURNS

# A handler that has completed its task by transaction() may still return: its children wait for the result.
_RESULT_IS_DUE = f"case when h.result_due then {RETURNS.format('h')} else false end"

# Those of $1 that have ended, and have children. One that retention has dropped did not succeed.
_ENDED = f"""
    ended as materialized (
        select given.parent, coalesce(found.succeeded, false) as succeeded
          from (select distinct d.parent from mainspring.dependency d where d.parent = any($1::bigint[])) given
         cross join lateral (
             select bool_or(h.state = {TaskState.SUCCEEDED:d}) as succeeded, bool_or({_RESULT_IS_DUE}) as is_due
               from mainspring.task_history h where h.id = given.parent
         ) found
         where found.is_due is not true
           and not exists (select from mainspring.task t where t.id = given.parent)
    )
"""
_RUNS_ANYWAY = "c.options->>'on_parent_failure' = 'run'"

_UNBLOCK = f"""
    with {_ENDED}, met as (
        delete from mainspring.dependency d
         using ended
         where d.parent = any($1::bigint[]) and d.parent = ended.parent
           and (ended.succeeded or exists (select from mainspring.task c where c.id = d.child and {_RUNS_ANYWAY}))
        returning d.child
    ), counted as (
        select child, count(*) as met from met group by child
    ), moved as (
        update mainspring.task t
           set waiting_for = t.waiting_for - counted.met,
               state = case when t.waiting_for > counted.met then {BLOCKED:d} else {PENDING:d} end,
               pool = case when t.waiting_for > counted.met then t.pool else {unblocked("t.pool")} end,
               run_at = greatest(t.run_at, (select mainspring.now()))   -- late from now on, not since it was blocked
          from counted
         where t.id = counted.child and t.{UNBLOCK.leaves}
        returning t.id, t.state, t.pool, t.priority, t.run_at
    )
    select pool, priority, date_part('epoch', run_at) as run_at, id, ({hints.due("moved")}) as hints
      from moved where state = {PENDING:d}
"""

_CAUSE = """
    'task ' || (select min(cause) from doomed where doomed.id = failed.id) || ', which it waits for, did not succeed'
"""
_OUTCOME = f"""
    case failed.options->>'on_parent_failure' when 'fail' then {FAIL_BLOCKED.target:d} else {SKIP.target:d} end
"""
_IS_NOT_RUN = f"join mainspring.task c on c.id = d.child and ({_RUNS_ANYWAY}) is not true"
_FAIL = f"""
    with recursive {_ENDED}, doomed(id, cause) as (
        select d.child, d.parent
          from ended join mainspring.dependency d on d.parent = ended.parent {_IS_NOT_RUN}
         where not ended.succeeded
        union
        select d.child, d.parent from doomed join mainspring.dependency d on d.parent = doomed.id {_IS_NOT_RUN}
    ), failed as (
        delete from mainspring.task t
         where t.id in (select id from doomed) and t.{FAIL_BLOCKED.leaves}
        returning t.*
    ), cleared as (
        delete from mainspring.dependency d where d.child in (select id from doomed)
    ), {noted("failed", _OUTCOME)}
    {into_history("failed", _OUTCOME, "dependency", _CAUSE)}
    returning id
"""


async def settle(conn: Connection, parents: Sequence[int]) -> list[Released]:
    """Move the children of tasks that have ended; returns those that became pending."""
    failed = await partitions.write(conn, lambda: conn.fetch(_FAIL, parents))
    rows = await conn.fetch(_UNBLOCK, [*parents, *(row["id"] for row in failed)])
    return [Released(row["pool"], row["priority"], (row["run_at"], row["id"])) for row in rows]


_LEFT_OVER = f"""
    select distinct d.parent from mainspring.dependency d
     where not exists (select from mainspring.task t where t.id = d.parent)
       and not exists (select from mainspring.task_history h where h.id = d.parent and {_RESULT_IS_DUE})
     limit $1
"""


async def left_over(conn: Connection, limit: int) -> list[int]:
    """Parents that have ended while tasks still wait for them."""
    return [row["parent"] for row in await conn.fetch(_LEFT_OVER, limit)]


async def any_there(conn: Connection) -> bool:
    """Whether any task waits for another."""
    return bool(await conn.fetchval("select exists (select from mainspring.dependency)"))


# ── retry with children ────────────────────────────────────────────────────────────────────────────

MOST_REVIVED = 10_000  # tasks in one transaction
_MOST_EDGES = 100_000

_BECAUSE = f"""
    with recursive ended(id, cause, job_id) as (
        select found.id, d.parent, found.job_id
          from mainspring.dependent d
         cross join lateral (select h.id, h.job_id from mainspring.task_history h
                              where h.id = d.child and h.error_code = 'dependency' limit 1) found
         where d.parent = $1
        union
        select found.id, d.parent, found.job_id
          from ended join mainspring.dependent d on d.parent = ended.id
         cross join lateral (select h.id, h.job_id from mainspring.task_history h
                              where h.id = d.child and h.error_code = 'dependency' limit 1) found
    )
    select ended.id, ended.cause, coalesce(j.name, '') from ended left join mainspring.job j on j.id = ended.job_id
     limit {_MOST_EDGES}
"""


async def ended_because_of(conn: Connection, task: int, reaches: Callable[[str], bool]) -> list[int]:
    """The tasks of jobs within reach that ended unrun because of this one, and because of those."""
    by_cause: dict[int, list[int]] = {}
    for id, cause, job in await conn.fetch(_BECAUSE, task):
        if reaches(job):
            by_cause.setdefault(cause, []).append(id)
    found, left = {task}, [task]
    while left:
        new = set(by_cause.get(left.pop(), ())) - found
        found |= new
        left += new
    if len(found) > MOST_REVIVED:
        raise ValidationError(
            f"with_children: more than {MOST_REVIVED:,} tasks ended because of task {task}; retry some of them first, "
            "each with its own children",
            field="with_children",
        )
    return sorted(found - {task})


# In the transaction that made them pending again, so that no claim has seen them. An edge to a parent that has not
# succeeded and is not retried lets the settler end the task again.
_BLOCK = f"""
    with edge as (
        insert into mainspring.dependency (parent, child)
        select parent.id::bigint, t.id
          from mainspring.task t cross join lateral jsonb_array_elements_text(t.options->'parents') as parent(id)
         where t.id = any($1::bigint[]) and t.{BLOCK_AGAIN.leaves}
           and not exists (select from mainspring.task_history h
                            where h.id = parent.id::bigint and h.state = {TaskState.SUCCEEDED:d})
        on conflict (parent, child) do update set child = excluded.child      -- it counts
        returning child
    ), counted as (
        select child, count(*) as unmet, count(pg_notify('{hints.CHANNEL}', 'dependency')) as hints
          from edge group by child
    )
    update mainspring.task t
       set {BLOCK_AGAIN.enters}, waiting_for = counted.unmet, pool = {blocked("t.pool")}
      from counted
     where t.id = counted.child and t.{BLOCK_AGAIN.leaves}
"""


async def block_again(conn: Connection, tasks: Sequence[int]) -> None:
    """pending → blocked, for those of `tasks` that have parents without success; in their retry's transaction."""
    await conn.execute(_BLOCK, tasks)
