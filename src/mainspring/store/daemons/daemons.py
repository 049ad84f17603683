"""Daemons: replicas are made where they are missing, stopped where they are too many, renewed one after another.

Each statement sees to all daemons at once, and is guarded by what it changes: any number of servers may run it.
Next: server/dispatch/daemons.py; the lives of a replica are in store/daemons/replicas.py
"""

from __future__ import annotations

from mainspring.model.tasks.states import CancelMode, TaskState
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions
from mainspring.store.tasks.history import into_history

KEPT_OUTPUT = 2 << 20  # bytes of each replica, the newest
TRIMMED = 5_000  # pieces of output in one statement

_LOCK = 0x726F6C6C  # "roll"

# One row for each replica that is wanted and not there; the unique index decides between two who see the same.
# Here and below each look at another table is a probe of an index: NOT EXISTS or a plain join might read all of it.
_ANY = """
    select exists (select from mainspring.schedule where kind = 'daemon')
        or exists (select from mainspring.task where pool = 0)
"""


async def any_there(conn: Connection) -> bool:
    """Whether there is anything to keep, or to stop."""
    found: bool = await conn.fetchval(_ANY)
    return found


_MAKE = """
    with made as (
        insert into mainspring.task
            (run_at, created_at, job_id, pool, state, priority, args, schedule_id, plan_time, scope, origin, generation)
        select now, now, j.id, 0, 1, j.priority, coalesce(s.policies->'args', '{}'), s.id, now, replica::text, 'daemon',
               s.generation
          from (select mainspring.now() as now) clock, mainspring.schedule s
          join mainspring.job j on j.id = any (array[s.job_id])
         cross join lateral generate_series(1, s.expression::integer) replica
         where s.kind = 'daemon' and s.enabled
           and (select true from mainspring.task t
                 where t.schedule_id = s.id and t.scope = replica::text and t.origin = 'daemon' limit 1) is null
        on conflict do nothing
        returning id
    )
    select count(*) from made
"""


async def make(conn: Connection) -> int:
    """Make the replicas that enabled schedules want and that are not there; returns how many."""
    return int(await conn.fetchval(_MAKE))


# Its schedule is gone, disabled, no daemon any more, or wants fewer.
_SURPLUS = """
    t.pool = 0 and (
        select true from mainspring.schedule s
         where s.id = t.schedule_id and s.enabled
           and case when s.kind = 'daemon' then t.scope::integer <= s.expression::integer end
         limit 1) is null
"""
_END_SURPLUS = f"""
    with gone as (
        delete from mainspring.task t where {_SURPLUS} and t.state = 1 returning t.*
    )
    {into_history("gone", TaskState.CANCELLED, "stopped", "'it is not wanted any more'")}
"""
_STOP_SURPLUS = f"""
    with asked as (
        update mainspring.task t set cancel_at = mainspring.now(), cancel_mode = null
         where {_SURPLUS} and t.state in (2, 3) and (t.cancel_at is null or t.cancel_mode = {CancelMode.RESTART:d})
        returning t.id
    )
    select id, pg_notify('mainspring', 'cancel') from asked
"""


async def stop_surplus(conn: Connection) -> int:
    """End the replicas that are not wanted any more, and ask the agents of those that run to stop them."""
    status = await partitions.write(conn, lambda: conn.execute(_END_SURPLUS))
    return int(status.rpartition(" ")[2]) + len(await conn.fetch(_STOP_SURPLUS))


_IS_UP = """
    (o.state = 3 and o.cancel_at is null
     and case when j.definition ? 'health' then coalesce(o.healthy, false)
              else o.started_at <= mainspring.now()
                   - make_interval(secs => coalesce((s.policies->>'ready')::float8, 1.0)) end)
"""

# What waits for its next life begins it now, with what is new: that may be its cure.
_HURRY = """
    update mainspring.task t set run_at = mainspring.now(), failures = null, generation = s.generation
      from mainspring.schedule s
     where t.pool = 0 and t.state = 1 and s.id = any (array[t.schedule_id]) and s.enabled
       and t.generation < s.generation
    returning t.id
"""
# The first outdated replica of each schedule, once all that were renewed are up. It counts as renewed from the moment
# in which it is asked to stop, so the next one waits until it is back. One that has not lived yet, because no agent
# has room for it, tells nothing about what is new: the others do not wait for it.
_ROLL = f"""
    with next as materialized (
        select distinct on (t.schedule_id) t.id, t.token, s.generation
          from mainspring.schedule s
          join mainspring.job j on j.id = any (array[s.job_id])
          join mainspring.task t on t.schedule_id = any (array[s.id]) and t.origin = 'daemon'
         where s.kind = 'daemon' and s.enabled
           and t.state in (2, 3) and t.cancel_at is null and t.generation < s.generation
           and (select true from mainspring.task o
                 where o.schedule_id = s.id and o.origin = 'daemon'
                   and (o.cancel_at is not null
                        or o.generation >= s.generation and o.attempt > 0 and not {_IS_UP})
                 limit 1) is null
         order by t.schedule_id, t.scope::integer
    ), asked as (
        update mainspring.task t
           set cancel_at = mainspring.now(), cancel_mode = {CancelMode.RESTART:d}, generation = next.generation,
               failures = null
          from next
         where t.id = any (array[next.id]) and t.token = next.token and t.state in (2, 3) and t.cancel_at is null
        returning t.id
    )
    select id, pg_notify('mainspring', 'cancel') from asked
"""


async def roll(conn: Connection) -> int:
    """Let outdated replicas restart, one of each daemon at a time; returns how many were told to.

    One server at a time, and it looks once it has the lock: else two might each see another replica as the next.
    """
    async with conn.transaction():
        if not await conn.fetchval("select pg_try_advisory_xact_lock($1)", _LOCK):
            return 0
        hurried = await conn.fetch(_HURRY)
        return len(hurried) + len(await conn.fetch(_ROLL))


_RENEW = """
    update mainspring.schedule set generation = generation + 1
     where id = $1 and kind = 'daemon'
    returning generation, pg_notify('mainspring', 'schedule')
"""


async def renew(conn: Connection, schedule_id: int) -> None:
    """Somebody wants all replicas restarted: `roll` does so, one after another."""
    await conn.execute(_RENEW, schedule_id)


# The newest pieces of each replica are kept, as many as fit; its tokens grow, so they tell what is newer.
_TRIM = """
    with piece as (
        select o.task_id, o.token, o.number,
               sum(octet_length(o.data)) over (partition by o.task_id order by o.token desc, o.number desc) as behind
          from mainspring.output o
         where o.task_id = any (array(select id from mainspring.task where pool = 0))
    ), old as (
        select task_id, token, number from piece where behind > $1 limit $2
    )
    delete from mainspring.output o using old
     where o.task_id = old.task_id and o.token = old.token and o.number = old.number
"""


async def trim(conn: Connection) -> int:
    """Forget the oldest output of replicas that have written much; returns how many pieces."""
    return int((await conn.execute(_TRIM, KEPT_OUTPUT, TRIMMED)).rpartition(" ")[2])
