"""Expiry: blocked, pending → skipped, for tasks that have not started by their deadline.

An agent does not start what it holds after the deadline either (agent/run/runner.py).
Writes  mainspring.task, mainspring.task_history
Next:   store/tasks/dependencies.py
"""

from __future__ import annotations

from mainspring.model.tasks.states import SKIP
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions
from mainspring.store.tasks.transitions import into_history, noted

EXPIRED = "expired"  # error code

_ERROR = """
    'it had not started by its deadline, ' || to_char(skipped.expires_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS')
    || ' UTC'
"""
_EXPIRE = f"""
    with overdue as materialized (
        select t.ctid as place from mainspring.task t
         where t.expires_at <= (select mainspring.now()) and t.{SKIP.leaves}
         order by t.expires_at limit $1
           for update skip locked
    ), skipped as (
        delete from mainspring.task t using overdue
         where t.ctid = overdue.place and t.{SKIP.leaves}
        returning t.*
    ), freed as (
        delete from mainspring.dependency d where d.child in (select id from skipped)
    ), told as materialized (
        select count(pg_notify('mainspring', 'dependency')) as hints
          from (select from skipped where exists (select from mainspring.dependency d where d.parent = skipped.id)
                 limit 1) any_parent
    ), {noted("skipped", f"{SKIP.target:d}")}
    {into_history("skipped", SKIP, EXPIRED, _ERROR)}
     where (select hints from told) is not null   -- always true; it forces the CTE to run
"""


async def expire(conn: Connection, limit: int) -> int:
    """End up to `limit` of those whose deadline has passed, the oldest first; returns how many."""
    return await partitions.execute(conn, _EXPIRE, limit)
