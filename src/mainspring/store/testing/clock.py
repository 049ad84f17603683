"""Clock of a test: move the database's time, and see whether anything is due at it.

Writes  the function mainspring.now(), the leases
"""

from __future__ import annotations

from datetime import datetime

from mainspring.model.tasks.pools import IS_NOT_DAEMON
from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.connection import Connection
from mainspring.store.tasks import partitions


async def set_forward(conn: Connection, shift: float, step: float) -> None:
    """The database's time is `shift` seconds ahead from now on, `step` more than before.

    Leases move along: no process has missed a heartbeat.
    """
    await conn.execute(f"""
        create or replace function mainspring.now() returns timestamptz
            language sql volatile parallel safe
            as 'select clock_timestamp() + interval ''{shift:.6f} seconds''';
        update mainspring.agent set lease_until = lease_until + interval '{step:.6f} seconds' where ended_at is null;
        update mainspring.server set lease_until = lease_until + interval '{step:.6f} seconds' where ended_at is null;
        update mainspring.leader set lease_until = lease_until + interval '{step:.6f} seconds';
    """)
    await partitions.make_ahead(conn, days=3)


async def now(conn: Connection) -> datetime:
    at: datetime = await conn.fetchval("select mainspring.now()")
    return at


_BUSY = f"""
    select exists (select from mainspring.task
                    where state in ({TaskState.PENDING:d}, {TaskState.ASSIGNED:d}, {TaskState.RUNNING:d})
                      and run_at <= mainspring.now()
                      and {IS_NOT_DAEMON})               -- a daemon never ends
        or exists (select from mainspring.dependency d
                    where not exists (select from mainspring.task t where t.id = d.parent))
        or exists (select from mainspring.schedule where look_at <= mainspring.now() and problem is null)
"""


async def is_busy(conn: Connection) -> bool:
    """Whether a task is due or runs, a dependency is to be resolved, or a schedule is to be planned."""
    return bool(await conn.fetchval(_BUSY))
