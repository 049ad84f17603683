"""What tests of alerts share: a clock that they set, tasks that ended, rules and channels."""

from __future__ import annotations

from typing import Any

from mainspring.model.alerts.rules import checked, read_rule
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.store.alerts import channels, rules
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import jobs
from tests.cluster import shift_clock

SECRET = "a secret of the test's own"


class Time:
    """The database's clock, as far ahead of the true one as the test has gone."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.ahead = 0.0

    async def go(self, seconds: float) -> None:
        self.ahead += seconds
        await shift_clock(self._conn, self.ahead)


async def only_rule(conn: Connection, name: str, **spec: Any) -> None:
    """This rule and no other."""
    await conn.execute("update mainspring.alert_rule set enabled = false")
    await add_rule(conn, name, **spec)


async def add_rule(conn: Connection, name: str, **spec: Any) -> None:
    await rules.put(conn, name, checked(read_rule(spec)))


async def add_channel(
    conn: Connection, url: str, name: str = "ops", kind: Any = "webhook", secret: Any = SECRET
) -> None:
    await channels.put(conn, name, kind, url, secret, True)


async def job_id(conn: Connection, job: str) -> int:
    await jobs.register(conn, {job: Definition(Python(job))})
    return int(await conn.fetchval("select id from mainspring.job where name = $1", job))


_END = """
    insert into mainspring.task_history
        (id, run_at, created_at, started_at, finished_at, recorded_at, job_id, pool, state, priority, attempt, crashes,
         args, error_code, error)
    select nextval('mainspring.task_id'), at, at, at, at, at, $1, 1, $2, 5, 1, 0, '{}', $4, $5
      from (select mainspring.now() + number * interval '1 microsecond' as at
              from generate_series(1, $3::integer) as number) ended
"""


async def end_tasks(
    conn: Connection,
    job: str,
    count: int = 1,
    *,
    state: TaskState = TaskState.FAILED,
    code: str | None = "exception",
    error: str | None = "ValueError: no such day",
) -> None:
    """So many tasks of a job end now."""
    await conn.execute(_END, await job_id(conn, job), int(state), count, code, error)
