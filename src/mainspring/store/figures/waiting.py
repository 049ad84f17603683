"""Waiting: due tasks that no agent holds, by pool, with the age of the oldest. Bounded, whatever is stored.

Of each pool and priority the oldest are read, along the index that claims use, and at most COUNTED of a pool.
Next: operations/condition/health.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from mainspring.model.placement.placement import Requirements, decode
from mainspring.model.tasks.pools import PARKED
from mainspring.model.tasks.states import PENDING
from mainspring.model.tasks.waits import Known, why
from mainspring.store.postgres.database import Connection

COUNTED = 1000  # tasks of one pool at most
LIMIT = "limit"  # the code of tasks that wait for a limit of their job
HELD = "held"  # of tasks of a job that is held; of all of them, where everything is
DISPATCHING = "dispatching"  # of tasks that an agent can take


class Waiting(NamedTuple):
    """The due tasks of one pool that no agent holds."""

    requirements: Requirements | None  # None: they wait for a limit of their job
    tasks: int  # counted up to COUNTED
    oldest: datetime  # when the first was due
    age: float  # seconds since then
    jobs: list[str]  # of those that were counted
    is_held: bool = False


# One probe for each pool and priority: tasks that are not due cost nothing, however many there are.
_WAITING = f"""
    select p.requirements, p.target is not null or p.id = {PARKED} as is_limited,
           found.tasks, found.oldest, extract(epoch from (select mainspring.now()) - found.oldest)::float8 as age,
           array(select j.name from mainspring.job j where j.id = any (found.jobs) order by j.name) as jobs,
           exists (select from mainspring.hold h
                    where h.released_at is null
                      and (h.job_id is null or p.target is not null and h.job_id = any (found.jobs))) as is_held
      from (select id, requirements, target from mainspring.pool union all select {PARKED}, '{{}}', null) p
     cross join lateral (
         select count(*)::integer as tasks, min(due.run_at) as oldest, array_agg(distinct due.job_id) as jobs
           from (select t.run_at, t.job_id
                   from generate_series(9, 0, -1) as level(priority)
                  cross join lateral (
                      select run_at, job_id from mainspring.task
                       where pool = p.id and priority = level.priority and run_at <= (select mainspring.now())
                         and state = {PENDING:d}
                       order by run_at limit {COUNTED}) t
                  limit {COUNTED}) due
     ) found
     where found.tasks > 0
     order by found.oldest
"""


async def waiting(conn: Connection) -> list[Waiting]:
    """All pools with due tasks that no agent holds, the one with the oldest first."""
    return [
        Waiting(None if limited else decode(text), tasks, oldest, age, list(jobs), is_held)
        for text, limited, tasks, oldest, age, jobs, is_held in await conn.fetch(_WAITING)
    ]


def by_code(found: Sequence[Waiting], agents: Sequence[Known]) -> dict[str, int]:
    """How many tasks wait, by what they wait for."""
    counts: dict[str, int] = {}
    for pool in found:
        wait = None if pool.requirements is None else why(pool.requirements, agents)
        code = LIMIT if pool.requirements is None else DISPATCHING if wait is None else wait.code
        code = HELD if pool.is_held else code
        counts[code] = counts.get(code, 0) + pool.tasks
    return counts
