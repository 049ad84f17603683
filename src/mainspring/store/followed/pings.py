"""Pings: the tasks of schedules with a ping_url, until their starts and ends are sent.

The leader reads them from the ledger, so submissions, starts and endings pay nothing. What was sent is noted after it
was sent: it is sent at least once. Of a schedule only the last OPEN tasks are kept, however long its address fails.
Next: model/watch/pings.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from mainspring.model.tasks.states import ASSIGNED, RUNNING, TaskState
from mainspring.store.postgres.connection import Connection

OPEN = 100  # tasks of a schedule
_UNCOMMITTED = timedelta(seconds=2)  # within which a run by hand is committed, whose plan time is its own instant

_FORGET = """
    with gone as (delete from mainspring.ping where schedule_id = any($1::integer[]))
    delete from mainspring.ping_cursor where schedule_id = any($1::integer[])
"""
_FOLLOW = """
    insert into mainspring.ping_cursor (schedule_id, read_to) select id, $2 from unnest($1::integer[]) id
    on conflict (schedule_id) do nothing
"""


async def follow(conn: Connection, schedules: Sequence[int], now: datetime) -> None:
    """Tell of the tasks of these schedules from now on."""
    if schedules:
        await conn.execute(_FOLLOW, schedules, now)


async def forget(conn: Connection, schedules: Sequence[int]) -> None:
    """They have no address any longer: tell of none."""
    if schedules:
        await conn.execute(_FORGET, schedules)


# All plan times before the cursor of the planner are decided. That of a disabled schedule stands still, and only runs
# by hand follow. A plan time that was left undecided then, and is caught up once it is enabled, gets no ping.
_READ = f"""
    with due as materialized (
        select c.schedule_id, c.read_to,
               least(mainspring.now() - $1::interval,
                     case when s.enabled then s.next_plan_at - interval '1 us' end) as upto
          from mainspring.ping_cursor c join mainspring.schedule s on s.id = c.schedule_id
    ), moved as (
        update mainspring.ping_cursor c set read_to = due.upto
          from due where c.schedule_id = due.schedule_id and c.read_to = due.read_to and due.upto > due.read_to
        returning c.schedule_id, due.read_to, due.upto
    )
    insert into mainspring.ping (task_id, schedule_id, plan_time, look_at)
    select f.task_id, moved.schedule_id, f.plan_time, mainspring.now()
      from moved cross join lateral (
          select task_id, plan_time from mainspring.fire
           where schedule_id = moved.schedule_id and plan_time > moved.read_to and plan_time <= moved.upto
             and task_id is not null
           order by plan_time desc limit {OPEN}) f
    on conflict do nothing
"""
_TRIM = f"""
    delete from mainspring.ping where task_id = any (array(
        select p.task_id
          from (select schedule_id from mainspring.ping group by schedule_id having count(*) > {OPEN}) many
         cross join lateral (select task_id from mainspring.ping
                              where schedule_id = many.schedule_id order by plan_time desc offset {OPEN}) p))
"""


async def any_followed(conn: Connection) -> bool:
    """Whether a schedule has a ping_url."""
    return bool(await conn.fetchval("select exists (select from mainspring.ping_cursor)"))


async def read_ledger(conn: Connection) -> None:
    """Note the tasks of plan times that were decided since the last time."""
    async with conn.transaction():
        await conn.execute("set local enable_partition_pruning = on; set local enable_seqscan = off")
        await conn.execute(_READ, _UNCOMMITTED)
        await conn.execute(_TRIM)


class Followed(NamedTuple):
    """A task to look at, and what became of it."""

    task: int
    schedule: int
    name: str
    url: str
    start_told: bool
    has_started: bool
    state: TaskState | None  # None: it was taken back
    due_in: float | None  # seconds until its time; None: it is not waiting


_DUE = f"""
    select p.task_id, p.schedule_id, s.name, s.policies->>'ping_url' as url, p.start_told,
           coalesce(h.started_at, t.started_at) is not null
               or coalesce(t.state = {RUNNING:d} or t.attempt > (t.state = {ASSIGNED:d})::integer, false) as started,
           coalesce(h.state, t.state) as state, extract(epoch from t.run_at - mainspring.now())::float8 as due_in
      from (select * from mainspring.ping where look_at <= (select mainspring.now()) order by look_at limit $1) p
      join mainspring.schedule s on s.id = p.schedule_id and s.policies ? 'ping_url'
      left join lateral (select state, started_at, run_at, attempt from mainspring.task where id = p.task_id limit 1) t
        on true
      left join lateral (
          select state, started_at from mainspring.task_history
           where id = p.task_id and recorded_at > p.plan_time - interval '1 day' limit 1
      ) h on true
     order by p.plan_time, p.task_id
"""


async def due(conn: Connection, limit: int) -> list[Followed]:
    """Tasks to look at now, in the order of their plan times."""
    async with conn.transaction():
        await conn.execute("set local enable_partition_pruning = on; set local enable_seqscan = off")
        rows = await conn.fetch(_DUE, limit)
    return [
        Followed(*told, None if state is None else TaskState(state), due_in)  # type: ignore[call-arg]
        for *told, state, due_in in rows
    ]


_LATER = """
    update mainspring.ping p set look_at = mainspring.now() + make_interval(secs => given.wait)
      from unnest($1::bigint[], $2::float8[]) as given(id, wait) where p.task_id = given.id
"""


async def later(conn: Connection, waits: dict[int, float]) -> None:
    """Look at these tasks again after so many seconds."""
    await conn.execute(_LATER, list(waits), list(waits.values()))


async def start_told(conn: Connection, task: int) -> None:
    await conn.execute("update mainspring.ping set start_told = true where task_id = $1", task)


async def told(conn: Connection, tasks: list[int]) -> None:
    """There is no more to tell of these tasks."""
    await conn.execute("delete from mainspring.ping where task_id = any($1::bigint[])", tasks)
