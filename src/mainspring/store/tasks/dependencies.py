"""Dependencies: blocked → pending when the last parent has succeeded, → skipped when one has not.

Each statement can be repeated and does all that is due at once: a server that dies in between loses nothing.
Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.tasks.claim_floors import Released
from mainspring.model.tasks.pools import unblocked
from mainspring.model.tasks.states import BLOCKED, PENDING, SKIP, UNBLOCK, TaskState
from mainspring.store.postgres import hints
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions
from mainspring.store.tasks.transitions import into_history, noted

_UNBLOCK = f"""
    with met as (
        delete from mainspring.dependency d
         using mainspring.task_history h
         where d.parent = any($1::bigint[]) and h.id = d.parent and h.state = {TaskState.SUCCEEDED:d}
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

# A child of a task that did not succeed, or that retention has dropped, never runs, nor do its children.
_CAUSE = """
    'task ' || (select min(cause) from doomed where doomed.id = skipped.id) || ', which it waits for, did not succeed'
"""
_SKIP = f"""
    with recursive doomed(id, cause) as (
        select d.child, d.parent from mainspring.dependency d
         where d.parent = any($1::bigint[])
           and not exists (select from mainspring.task t where t.id = d.parent)
           and not exists (select from mainspring.task_history h
                            where h.id = d.parent and h.state = {TaskState.SUCCEEDED:d})
        union
        select d.child, d.parent from mainspring.dependency d join doomed on d.parent = doomed.id
    ), skipped as (
        delete from mainspring.task t
         where t.id in (select id from doomed) and t.state = {BLOCKED:d}
        returning t.*
    ), cleared as (
        delete from mainspring.dependency d where d.child in (select id from doomed)
    ), {noted("skipped", f"{SKIP.target:d}")}
    {into_history("skipped", SKIP, "dependency", _CAUSE)}
"""


async def settle(conn: Connection, parents: Sequence[int]) -> list[Released]:
    """Move the children of tasks that have ended; returns those that became pending."""
    rows = await conn.fetch(_UNBLOCK, parents)
    await partitions.execute(conn, _SKIP, parents)
    return [Released(row["pool"], row["priority"], (row["run_at"], row["id"])) for row in rows]


_LEFT_OVER = """
    select distinct d.parent from mainspring.dependency d
     where not exists (select from mainspring.task t where t.id = d.parent)
     limit $1
"""


async def left_over(conn: Connection, limit: int) -> list[int]:
    """Parents that have ended while tasks still wait for them."""
    return [row["parent"] for row in await conn.fetch(_LEFT_OVER, limit)]


async def any_there(conn: Connection) -> bool:
    """Whether any task waits for another."""
    return bool(await conn.fetchval("select exists (select from mainspring.dependency)"))
