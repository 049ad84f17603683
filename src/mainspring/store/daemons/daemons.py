"""Daemons: create missing replicas, stop surplus ones, restart outdated ones one by one.

Each statement covers all daemons and is guarded by what it changes: any number of servers may run it.
Next: store/daemons/replicas.py
"""

from __future__ import annotations

from mainspring.model.tasks.pools import DAEMON, IS_DAEMON
from mainspring.model.tasks.states import CANCEL, IS_ACTIVE, PENDING, RUNNING, CancelMode
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import affected
from mainspring.store.tasks import partitions
from mainspring.store.tasks.transitions import asking_agents, into_history, noted

KEPT_OUTPUT = 2 << 20  # newest bytes of each replica
TRIMMED = 5_000  # chunks of output in one statement

_LOCK = "select true from mainspring.work_lock where name = 'replicas' for update skip locked"

_ANY = f"""
    select exists (select from mainspring.schedule where kind = 'daemon')
        or exists (select from mainspring.task where {IS_DAEMON})
"""


async def any_there(conn: Connection) -> bool:
    """Whether there is any daemon, or a replica to stop."""
    return bool(await conn.fetchval(_ANY))


# The unique index decides between two servers that create the same replica. Here and below each condition on another
# table is an index probe: NOT EXISTS or a plain join might scan all of it.
_MAKE = f"""
    with made as (
        insert into mainspring.task
            (run_at, created_at, job_id, pool, state, priority, args, schedule_id, plan_time, scope, origin, generation)
        select now, now, j.id, {DAEMON}, {PENDING:d}, j.priority, coalesce(s.policies->'args', '{{}}'), s.id, now,
               replica::text, 'daemon', s.generation
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
    """Create the missing replicas of enabled schedules; returns how many."""
    return int(await conn.fetchval(_MAKE))


# The schedule is deleted, disabled, no longer a daemon, or wants fewer.
_SURPLUS = f"""
    t.{IS_DAEMON} and (
        select true from mainspring.schedule s
         where s.id = t.schedule_id and s.enabled
           and case when s.kind = 'daemon' then t.scope::integer <= s.expression::integer end
         limit 1) is null
"""
_END_SURPLUS = f"""
    with gone as (
        delete from mainspring.task t where {_SURPLUS} and t.state = {PENDING:d} returning t.*
    ), {noted("gone", f"{CANCEL.target:d}")}
    {into_history("gone", CANCEL, "stopped", "'it is not wanted any more'")}
"""
_STOP_SURPLUS = asking_agents(f"""
    update mainspring.task t set cancel_at = mainspring.now(), cancel_mode = null
     where {_SURPLUS} and t.{IS_ACTIVE} and (t.cancel_at is null or t.cancel_mode = {CancelMode.RESTART:d})
""")


async def stop_surplus(conn: Connection) -> int:
    """Cancel surplus replicas; those that run are stopped by their agents. Returns how many."""
    return await partitions.execute(conn, _END_SURPLUS) + len(await conn.fetch(_STOP_SURPLUS))


_IS_UP = f"""
    (o.state = {RUNNING:d} and o.cancel_at is null
     and case when j.definition ? 'health' then coalesce(o.healthy, false)
              else o.started_at <= mainspring.now()
                   - make_interval(secs => coalesce((s.policies->>'ready')::float8, 1.0)) end)
"""

# A replica that backs off starts at once with the new generation, which may be the fix.
_HURRY = f"""
    update mainspring.task t set run_at = mainspring.now(), failures = null, generation = s.generation
      from mainspring.schedule s
     where t.{IS_DAEMON} and t.state = {PENDING:d} and s.id = any (array[t.schedule_id]) and s.enabled
       and t.generation < s.generation
    returning t.id
"""
# The first outdated replica of each schedule, once all renewed ones are up. A replica counts as renewed from the moment
# in which it is asked to stop, so the next one waits until it is back. One that never started, because no agent has
# room for it, says nothing about the new generation: the others do not wait for it.
_ROLL = f"""
    with next as materialized (
        select distinct on (t.schedule_id) t.id, t.token, s.generation
          from mainspring.schedule s
          join mainspring.job j on j.id = any (array[s.job_id])
          join mainspring.task t on t.schedule_id = any (array[s.id]) and t.origin = 'daemon'
         where s.kind = 'daemon' and s.enabled
           and t.{IS_ACTIVE} and t.cancel_at is null and t.generation < s.generation
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
         where t.id = any (array[next.id]) and t.token = next.token and t.{IS_ACTIVE} and t.cancel_at is null
        returning t.id
    )
    select id, pg_notify('mainspring', 'cancel') from asked
"""


async def roll(conn: Connection) -> int:
    """Restart outdated replicas, one of each daemon at a time; returns how many.

    One server at a time, which reads after it has the lock: two might each find another replica to be the next.
    """
    async with conn.transaction():
        if not await conn.fetchval(_LOCK):
            return 0
        hurried = await conn.fetch(_HURRY)
        return len(hurried) + len(await conn.fetch(_ROLL))


_RENEW = """
    update mainspring.schedule set generation = generation + 1
     where id = $1 and kind = 'daemon'
    returning generation, pg_notify('mainspring', 'schedule')
"""


async def renew(conn: Connection, schedule_id: int) -> None:
    """Make all replicas outdated: `roll` restarts them one by one."""
    await conn.execute(_RENEW, schedule_id)


# Keeps the newest chunks of each replica, as many as fit. Tokens grow, so they give the order.
_TRIM = f"""
    with piece as (
        select o.task_id, o.token, o.number,
               sum(octet_length(o.data)) over (partition by o.task_id order by o.token desc, o.number desc) as behind
          from mainspring.output o
         where o.task_id = any (array(select id from mainspring.task where {IS_DAEMON}))
    ), old as (
        select task_id, token, number from piece where behind > $1 limit $2
    )
    delete from mainspring.output o using old
     where o.task_id = old.task_id and o.token = old.token and o.number = old.number
"""


async def trim(conn: Connection) -> int:
    """Delete the oldest output of replicas that have written much; returns how many chunks."""
    return affected(await conn.execute(_TRIM, KEPT_OUTPUT, TRIMMED))
