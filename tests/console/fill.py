"""Data to look at: schedules with a past, and a day of figures."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import asyncpg

from tests.console.conftest import Up

# A ledger of 40 plan times with their tasks: most on time, some late, one failed, some skipped.
_PAST = """
    with given as (
        select s.id as schedule_id, s.job_id, j.pool, n,
               date_trunc('minute', mainspring.now()) - n * interval '10 min' as at
          from mainspring.schedule s join mainspring.job j on j.id = s.job_id, generate_series(1, 40) n
         where s.name = any($1::text[])
    ), numbered as (
        select *,
               case when n % 13 = 0 then 'overlap' when n = 29 then 'misfire' when n = 9 then 'skipped' end as reason,
               case when n = 5 then 11 else 10 end as state,
               case when n % 7 = 0 then 2300 else 1 + (schedule_id * 7 + n) % 9 end as late,
               nextval('mainspring.task_id') as task
          from given
    ), decided as (
        insert into mainspring.fire (schedule_id, plan_time, task_id, reason, decided_at)
        select schedule_id, at, case when reason is null then task end, reason, at - interval '7 s' from numbered
        on conflict do nothing
    )
    insert into mainspring.task_history
        (id, run_at, created_at, started_at, finished_at, recorded_at, job_id, pool, state, priority, attempt, crashes,
         args, schedule_id, plan_time, scope, origin, error_code, error)
    select task, at, at - interval '7 s', at + late * interval '1 ms', at + interval '4 s', at + interval '4 s', job_id,
           pool, state, 5, 1, 0, '{}', schedule_id, at, '', 'plan', case when state = 11 then 'error' end,
           case when state = 11 then 'RuntimeError: the shop does not answer' end
      from numbered where reason is null
"""
_FIGURES = """
    insert into mainspring.figure (minute, writer, job_id, count, outcome, again, planned, planned_max, duration_sum)
    select date_trunc('minute', mainspring.now()) - n * interval '1 min', gen_random_uuid(), job.id,
           30 + n % 17 + (10 * sin(n / 9.0))::integer, outcome.is, false,
           case when outcome.is = 10 then
               array[0, 2, 9, 14, 6, 3, 1, 1, 0, 0, n % 3, 0, 0, (n % 20 = 0)::integer, 0, 0, 0, 0, 0, 0] end, 1.9, 30
      from generate_series(1, 1440) n, (values (10), (11)) outcome("is"),
           (select id from mainspring.job where name = $1 union all select 0) job
     where outcome.is = 10 or n % 31 = 0
"""
_QUEUES = """
    insert into mainspring.queue_minute
        (minute, counted_at, oldest, created, waiting, due, active, job_id, is_estimated)
    select m, m, case when n % 5 = 0 then m - n % 40 * interval '1 s' end, n, 20 + n % 30, n % 12, 3 + n % 9, 0, false
      from generate_series(3, 1440) n,
           lateral (select date_trunc('minute', mainspring.now()) - n * interval '1 min' as m) t
    on conflict do nothing
"""


def execute(up: Up, statement: str, *args: object) -> None:
    async def run() -> None:
        conn = await asyncpg.connect(up.dsn)
        try:
            await conn.execute(statement, *args)
        finally:
            await conn.close()

    with ThreadPoolExecutor(1) as thread:  # Playwright runs a loop in this one
        thread.submit(asyncio.run, run()).result(60)


def past(up: Up, *names: str) -> None:
    """A ledger for these schedules, with what came of each plan time."""
    execute(up, _PAST, list(names))


def figures(up: Up, job: str) -> None:
    """A day of figures, and the depth of the queues."""
    execute(up, _FIGURES, job)
    execute(up, _QUEUES)
