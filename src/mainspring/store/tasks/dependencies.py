"""Dependencies: blocked → pending when the last parent has succeeded, → skipped when one has not.

Each statement can be repeated, and does in one go what became due: a settler that dies loses nothing.
Next: server/planning/dependencies.py
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions
from mainspring.store.tasks.history import into_history

_UNBLOCK = """
    with met as (
        delete from mainspring.dependency d
         using mainspring.task_history h
         where d.parent = any($1::bigint[]) and h.id = d.parent and h.state = 10
        returning d.child
    ), counted as (
        select child, count(*) as met from met group by child
    )
    update mainspring.task t
       set waiting_for = t.waiting_for - counted.met,
           state = case when t.waiting_for > counted.met then 0 else 1 end,
           pool = case when t.waiting_for > counted.met then t.pool else abs(t.pool) end,
           run_at = greatest(t.run_at, (select mainspring.now()))   -- due from now, not from when it was blocked
      from counted
     where t.id = counted.child and t.state = 0
    returning t.state
"""

# A child of a task that did not succeed, or that retention has dropped, never runs, nor do its own children.
_CAUSE = """
    'task ' || (select min(cause) from doomed where doomed.id = skipped.id) || ', which it waits for, did not succeed'
"""
_SKIP = f"""
    with recursive doomed(id, cause) as (
        select d.child, d.parent from mainspring.dependency d
         where d.parent = any($1::bigint[])
           and not exists (select from mainspring.task t where t.id = d.parent)
           and not exists (select from mainspring.task_history h where h.id = d.parent and h.state = 10)
        union
        select d.child, d.parent from mainspring.dependency d join doomed on d.parent = doomed.id
    ), skipped as (
        delete from mainspring.task t
         where t.id in (select id from doomed) and t.state = 0
        returning t.*
    ), cleared as (
        delete from mainspring.dependency d where d.child in (select id from doomed)
    )
    {into_history("skipped", TaskState.SKIPPED, "dependency", _CAUSE)}
"""


async def settle(conn: Connection, parents: Sequence[int]) -> int:
    """Move the children of tasks that have ended; returns how many became pending."""
    rows = await conn.fetch(_UNBLOCK, parents)
    await partitions.write(conn, lambda: conn.execute(_SKIP, parents))
    return sum(row["state"] for row in rows)


_LEFT_OVER = """
    select distinct d.parent from mainspring.dependency d
     where not exists (select from mainspring.task t where t.id = d.parent)
     limit $1
"""


async def left_over(conn: Connection, limit: int) -> list[int]:
    """Parents that have ended while somebody still waits for them."""
    return [row["parent"] for row in await conn.fetch(_LEFT_OVER, limit)]


async def any_there(conn: Connection) -> bool:
    """Whether any task waits for another."""
    return bool(await conn.fetchval("select exists (select from mainspring.dependency)"))
