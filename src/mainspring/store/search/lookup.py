"""Look-up: the ids of jobs, schedules and agents' sessions by patterns of their names, and the job and state of a task.

A producer may ask all of it: it reads the views that have the names.
Next: store/search/search.py
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.connection import Connection
from mainspring.store.views import recent

Named = list[tuple[int, str]]

_JOBS = "select id, name from mainspring.job j where namespace = 'default' and name like any($1::text[])"
_SCHEDULES = "select id, name from mainspring.schedule s where namespace = 'default' and name like any($1::text[])"
_WITH_JOBS = """
    select s.id, s.name, j.name from mainspring.schedule s join mainspring.job j on j.id = s.job_id
     where s.namespace = 'default' and s.name like any($1::text[])
"""
_SESSIONS = "select session, name from mainspring.agent a where name like any($1::text[])"


def _job_of(bound: str = "") -> str:
    return f"""
        select (select j.name from mainspring.job j where j.id = found.job_id) as name
          from (select t.job_id from mainspring.task t where t.id = $1
                union all
                select t.job_id from mainspring.task_history t where t.id = $1 {bound}
                 limit 1) found
    """


_JOB_OF, _JOB_OF_RECENT = _job_of(), _job_of("and t.recorded_at >= $2")
_STATE_OF = """
    select t.state from mainspring.task t where t.id = $1
    union all
    select t.state from mainspring.task_history t where t.id = $1
"""


async def jobs(conn: Connection, patterns: Sequence[str]) -> Named:
    """Ids and names; the patterns are those of LIKE."""
    return [tuple(row) for row in await conn.fetch(_JOBS, patterns)]


async def schedules(conn: Connection, patterns: Sequence[str]) -> Named:
    return [tuple(row) for row in await conn.fetch(_SCHEDULES, patterns)]


async def schedules_with_jobs(conn: Connection, patterns: Sequence[str]) -> list[tuple[int, str, str]]:
    """The same with the names of their jobs, which a producer may not ask for."""
    return [tuple(row) for row in await conn.fetch(_WITH_JOBS, patterns)]


async def sessions(conn: Connection, patterns: Sequence[str]) -> Named:
    """The sessions of agents, each with the agent's name."""
    return [tuple(row) for row in await conn.fetch(_SESSIONS, patterns)]


async def job_of(conn: Connection, task: int) -> str | None:
    """The name of a task's job, empty if the job was deleted; None: there is no such task."""
    row = await conn.fetchrow(_JOB_OF_RECENT, task, recent.since()) or await conn.fetchrow(_JOB_OF, task)
    return None if row is None else row["name"] or ""


async def state_of(conn: Connection, task: int) -> TaskState | None:
    """None: there is no such task."""
    state: int | None = await conn.fetchval(_STATE_OF, task)
    return None if state is None else TaskState(state)
