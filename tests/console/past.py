"""A past for schedules: plan times and runs that a test writes, as servers and agents would have left them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import asyncpg

from tests.console.conftest import Up

STATES = {"succeeded": 10, "failed": 11}


class Fire(NamedTuple):
    """A decided plan time: with a run that began `late` seconds after it, or a reason why there is none."""

    at: datetime
    reason: str | None = None
    late: float = 0.0004
    took: float = 20.0
    state: str = "succeeded"


def execute(up: Up, *statements: tuple[Any, ...]) -> Any:
    """Run SQL; the rows of the last statement. In a thread: Playwright has an event loop in this one."""

    async def run() -> Any:
        conn = await asyncpg.connect(up.dsn)
        try:
            for sql, *arguments in statements:
                rows = await conn.fetch(sql, *arguments)
            return rows
        finally:
            await conn.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, run()).result(30)


_MADE = "update mainspring.schedule set created_at = $2, since = $2 where name = $1"
_FIRED = """
    with made as (
        insert into mainspring.task_history
            (id, run_at, created_at, started_at, finished_at, recorded_at, job_id, pool, state, priority, attempt,
             crashes, args, schedule_id, plan_time, scope, error, error_code)
        select nextval('mainspring.task_id'), $2::timestamptz, $2::timestamptz - interval '7 s', $3, $4,
               mainspring.now(), j.id, j.pool, $5::smallint, 5, 1, 0, '{}', s.id, $2, '', $6,
               case when $6::text is not null then 'failed' end
          from mainspring.schedule s join mainspring.job j on j.id = s.job_id where s.name = $1
        returning id, schedule_id
    ), tried as (
        insert into mainspring.attempt
            (task_id, number, token, state, run_at, started_at, finished_at, error, error_code, recorded_at,
             armed_ahead)
        select id, 1, id, $5::smallint, $2, $3, $4, $6, case when $6::text is not null then 'failed' end,
               mainspring.now(), 3.2
          from made
    )
    insert into mainspring.fire (schedule_id, plan_time, task_id, decided_at)
    select schedule_id, $2, id, $2::timestamptz - interval '7 s' from made
"""
_SKIPPED = """
    insert into mainspring.fire (schedule_id, plan_time, reason, decided_at)
    select id, $2, $3, $4 from mainspring.schedule where name = $1
"""


def give_past(up: Up, name: str, made: datetime, fires: Sequence[Fire]) -> None:
    """The schedule was made then, and this was decided about its plan times since; the others are missed."""
    statements: list[tuple[Any, ...]] = [(_MADE, name, made)]
    for fire in fires:
        if fire.reason is None:
            start = fire.at + timedelta(seconds=fire.late)
            error = "RuntimeError: the shop does not answer" if fire.state == "failed" else None
            end = start + timedelta(seconds=fire.took)
            statements.append((_FIRED, name, fire.at, start, end, STATES[fire.state], error))
        else:
            late = timedelta(hours=5) if fire.reason in ("misfire", "coalesced") else timedelta()
            statements.append((_SKIPPED, name, fire.at, fire.reason, fire.at + late))
    execute(up, *statements)
