"""Queues: the live tasks by job and state, counted by the leader; what they were minute by minute.

A count reads whole blocks of mainspring.task: all of them, or a sample. It holds no lock that another statement waits
for, and PostgreSQL ends it after the time that it is given.
Writes  mainspring.queue_figure, mainspring.queue_count, mainspring.queue_minute
Next:   store/figures/rollups.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from mainspring.model.tasks.pools import PARKED
from mainspring.model.tasks.states import ACTIVE, LIVE, PENDING, TaskState, among
from mainspring.store.figures.rollups import ALL_JOBS
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import Batch

AT_ONCE = 500  # rows that become queues within a millisecond
BUSIEST = 200  # jobs with a row for each minute


class Queue(NamedTuple):
    """The live tasks of one job in one state."""

    job: int
    state: TaskState
    tasks: int
    due: int  # those whose instant has come
    oldest: datetime  # the first instant among them; in a sample, of those that were seen
    limited: int = 0  # due ones that wait for a limit of their job, not for an agent


class Count(NamedTuple):
    queues: list[Queue]
    is_estimated: bool

    @property
    def tasks(self) -> int:
        return sum(queue.tasks for queue in self.queues)


_BLOCKS = """
    select pg_relation_size(format('%I.task', 'mainspring')) / current_setting('block_size')::integer, mainspring.now()
"""


async def blocks(conn: Connection) -> int:
    """The size of the table of live tasks, dead rows included: what a whole count costs."""
    return (await blocks_now(conn))[0]


async def blocks_now(conn: Connection) -> tuple[int, datetime]:
    """The same, and what time it is."""
    size, now = await conn.fetchrow(_BLOCKS)
    return size, now


# A sample scan reads whole blocks, as a sequential one does; the latter is twice as fast.
_COUNT = f"""
    select job_id, state, count(*) as tasks, count(*) filter (where run_at <= (select mainspring.now())) as due,
           least(greatest(min(run_at), '1970-01-01Z'), '2200-01-01Z') as oldest,  -- anybody with SQL can write others
           count(*) filter (where run_at <= (select mainspring.now()) and state = {PENDING:d}
                              and (pool = {PARKED} or pool = any ((select array(
                                       select id from mainspring.pool where target is not null))::integer[])))
               as limited
      from mainspring.task {{sample}}
     group by job_id, state
"""
_COUNT_ALL = _COUNT.format(sample="")
_COUNT_SAMPLE = _COUNT.format(sample="tablesample system ($1)")


async def count_within(conn: Connection, share: float, seconds: float) -> Count:
    """The same, in a transaction of its own. QueryCanceledError if it takes longer."""
    async with conn.transaction():
        await conn.execute(
            f"set local statement_timeout = {max(1, round(seconds * 1000))}; set local enable_seqscan = on;"
            "set local enable_indexscan = off; set local max_parallel_workers_per_gather = 0"
        )
        return await count(conn, share)


async def count(conn: Connection, share: float) -> Count:
    """Count the live tasks, from a share of the blocks if that is below 1."""
    share = min(1.0, share)
    rows = await (conn.fetch(_COUNT_SAMPLE, share * 100) if share < 1.0 else conn.fetch(_COUNT_ALL))
    found: list[Queue] = []
    for start in range(0, len(rows), AT_ONCE):
        found += [
            Queue(job, TaskState(state), round(tasks / share), round(due / share), oldest, round(limited / share))
            for job, state, tasks, due, oldest, limited in rows[start : start + AT_ONCE]
        ]
        await asyncio.sleep(0)
    return Count(found, share < 1.0)


# The rows of jobs and states without live tasks are deleted. Sorted: two leaders at once take their locks in one order.
_WRITE = """
    with given as (
        select * from unnest($1::integer[], $2::smallint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::bigint[])
                   as given(job_id, state, tasks, due, oldest, limited)
    ), gone as (
        delete from mainspring.queue_figure q
         where not exists (select from given where given.job_id = q.job_id and given.state = q.state)
    ), noted as (
        insert into mainspring.queue_count (counted_at, created, seconds, is_estimated)
        select mainspring.now(), case when is_called then last_value else 0 end, $8, $7 from mainspring.task_id
        on conflict (the_one) do update
           set counted_at = excluded.counted_at, created = excluded.created, seconds = excluded.seconds,
               is_estimated = excluded.is_estimated
    )
    insert into mainspring.queue_figure as q (job_id, state, tasks, due, oldest, limited)
    select job_id, state, tasks, due, oldest, limited from given order by job_id, state
    on conflict (job_id, state) do update
       set tasks = excluded.tasks, due = excluded.due, oldest = excluded.oldest, limited = excluded.limited
     where (q.tasks, q.due, q.oldest, q.limited)
           is distinct from (excluded.tasks, excluded.due, excluded.oldest, excluded.limited)
"""

# Once a minute; the next counts of that minute find its row of all jobs.
_KEEP_MINUTE = f"""
    with of_job as (
        select job_id, sum(tasks) filter (where state not in {among(ACTIVE)}) as waiting,
               sum(tasks) filter (where state in {among(ACTIVE)}) as active,
               sum(due) filter (where state = {PENDING:d}) as due, sum(limited) as limited,
               min(oldest) filter (where state = {PENDING:d} and due > 0) as oldest, sum(tasks) as tasks
          from mainspring.queue_figure group by job_id
    ), kept as (
        (select job_id, waiting, due, limited, active, oldest from of_job order by tasks desc, job_id limit {BUSIEST})
         union all
        select {ALL_JOBS}, sum(waiting), sum(due), sum(limited), sum(active), min(oldest) from of_job
    )
    insert into mainspring.queue_minute
        (minute, job_id, counted_at, created, waiting, due, limited, active, oldest, is_estimated)
    select date_trunc('minute', c.counted_at, 'UTC'), job_id, c.counted_at, c.created, coalesce(waiting, 0),
           coalesce(due, 0), coalesce(limited, 0), coalesce(active, 0), oldest, c.is_estimated
      from mainspring.queue_count c cross join kept
     where not exists (select from mainspring.queue_minute m
                        where m.job_id = {ALL_JOBS} and m.minute = date_trunc('minute', c.counted_at, 'UTC'))
    on conflict (job_id, minute) do nothing
"""


async def write(conn: Connection, count: Count, seconds: float) -> None:
    """Replace what was counted before; the first count of a minute is kept."""
    queues = sorted(count.queues)
    async with conn.transaction():
        await conn.execute(
            _WRITE,
            [queue.job for queue in queues],
            [queue.state for queue in queues],
            [queue.tasks for queue in queues],
            [queue.due for queue in queues],
            [queue.oldest for queue in queues],
            [queue.limited for queue in queues],
            count.is_estimated,
            seconds,
        )
        await conn.execute(_KEEP_MINUTE)


class LastCount(NamedTuple):
    counted_at: datetime
    is_estimated: bool
    age: float  # seconds


async def last(conn: Connection) -> LastCount | None:
    row = await conn.fetchrow("""
        select counted_at, is_estimated, date_part('epoch', mainspring.now() - counted_at) from mainspring.queue_count
    """)
    return None if row is None else LastCount(*row)


_COUNTED = f"""
    select job_id, state, tasks, due, oldest, limited from mainspring.queue_figure
     where (job_id, state) > ($2, $3) and ($1::integer[] is null or job_id = any($1))
     order by job_id, state limit {AT_ONCE}
"""


async def counted(conn: Connection, jobs: Sequence[int] | None) -> list[Queue]:
    """What was counted last, of these jobs or of all. In steps: ten thousand jobs at once would hold the event loop."""
    found: list[Queue] = []
    job, state = -1, -1
    while rows := await conn.fetch(_COUNTED, jobs, job, state):
        found += [Queue(job, TaskState(state), *counts) for job, state, *counts in rows]
        job, state = rows[-1]["job_id"], rows[-1]["state"]
        if len(rows) < AT_ONCE:
            break
    return found


_IN_EACH_STATE = f"""
    select {ALL_JOBS}, state, sum(tasks)::bigint, sum(due)::bigint,
           coalesce(min(oldest) filter (where due > 0), min(oldest)), sum(limited)::bigint
      from mainspring.queue_figure where $1::integer[] is null or job_id = any($1)
     group by state
"""


async def in_each_state(conn: Connection, jobs: Sequence[int] | None) -> list[Queue]:
    """The same, with these jobs or all of them as one."""
    rows = await conn.fetch(_IN_EACH_STATE, jobs)
    return [Queue(job, TaskState(state), *counts) for job, state, *counts in rows]


# The sequence grows by one for each task, however it was submitted. At least 30 seconds lie between the two readings.
ARRIVALS = f"""
    select greatest(0, now.created - before.created)
           / date_part('epoch', now.counted_at - before.counted_at)
      from mainspring.queue_count now
      join lateral (select created, counted_at from mainspring.queue_minute
                     where job_id = {ALL_JOBS} and counted_at <= now.counted_at - interval '30 seconds'
                       and minute > now.counted_at - interval '5 minutes'
                     order by minute desc limit 1) before on true
"""


async def arrivals(conn: Connection) -> float | None:
    """Tasks that were submitted per second within the last minute or two; None: not known yet."""
    rate: float | None = await conn.fetchval(ARRIVALS)
    return rate


def live(queues: Sequence[Queue]) -> dict[TaskState, int]:
    """How many tasks are in each state."""
    counts = {state: sum(queue.tasks for queue in queues if queue.state is state) for state in sorted(LIVE)}
    return {state: tasks for state, tasks in counts.items() if tasks}


# ── by job ──────────────────────────────────────────────────────────────────────────────────────


class QueueView(msgspec.Struct, frozen=True):
    """One job."""

    job: str
    waiting: int  # tasks that no agent holds
    due: int  # those whose time has come
    active: int  # tasks that an agent holds
    oldest_due: datetime | None  # the first instant among those that are due
    finished_per_second: float  # tasks, within the last minute or two


class Queues(msgspec.Struct, frozen=True):
    items: list[QueueView]
    counted_at: datetime | None  # None: not yet
    is_estimated: bool
    next: str | None = None  # the cursor of the next page; None: this is the last


# The figures are read for the jobs of the page only.
_BY_JOB = f"""
    with since as materialized (
        select date_trunc('minute', mainspring.now(), 'UTC') - interval '1 minute' as at
    )
    select j.name, coalesce(queue.waiting, 0)::bigint as waiting, coalesce(queue.due, 0)::bigint as due,
           coalesce(queue.active, 0)::bigint as active, queue.oldest,
           coalesce(done.tasks / (select date_part('epoch', mainspring.now() - at) from since), 0) as per_second
      from mainspring.job j
      cross join lateral (
        select sum(tasks) filter (where state not in {among(ACTIVE)}) as waiting,
               sum(tasks) filter (where state in {among(ACTIVE)}) as active,
               sum(due) filter (where state = {PENDING:d}) as due,
               min(oldest) filter (where state = {PENDING:d} and due > 0) as oldest
          from mainspring.queue_figure where job_id = j.id) queue
      cross join lateral (
        select sum(count) as tasks from mainspring.figure
         where job_id = j.id and minute >= (select at from since) and not again) done
     where j.namespace = 'default'
       and ($1::text is null or j.name > $1) and ($2::text[] is null or j.name like any ($2))
       and (queue.waiting is not null or queue.active is not null or done.tasks is not null)
     order by j.name limit $3
"""


async def by_job(
    conn: Connection, *, like: Sequence[str] | None = None, after: str | None = None, limit: int = 500
) -> Batch[QueueView]:
    """The jobs that have live tasks, or have ended some within the last minute or two, by name."""
    rows = await conn.fetch(_BY_JOB, after, like, limit)
    return Batch([QueueView(*row) for row in rows], rows[-1]["name"] if len(rows) == limit else None)
