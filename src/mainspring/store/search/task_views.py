"""Tasks and attempts as people see them: the columns of their tables → views.

Reads   mainspring.task, mainspring.task_history, with the names of their jobs, schedules and agents
Next:   store/tasks/tasks.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from mainspring.model.limits.limits import plain_key
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.zones import zone_or_utc
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import views


class TaskView(msgspec.Struct, frozen=True):
    """A task, live or finished."""

    id: int
    job: str
    state: str
    priority: int
    attempt: int
    run_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    lateness_ms: float | None
    args: Any
    progress: Any
    checkpoint: Any
    result: Any
    error_code: str | None
    error: str | None
    key: str | None
    schedule: str | None
    scope: str | None
    plan_time: datetime | None  # by the clocks of its schedule
    waiting_for: list[int]
    paused_at: datetime | None = None
    parent: int | None = None  # the broadcast that it is part of
    agent: str | None = None  # the one that holds or ended it; else the only one that may run it
    only_on: str | None = None  # the only one that may run it
    concurrency_key: str | None = None
    result_due: bool = False  # completed by transaction(); its handler has not returned yet
    result_lost: bool = False  # completed by transaction(); its handler will never return
    unreadable: list[str] = []  # fields that hold what no program here can read, and why
    exit_code: int | None = None  # of a command that failed; negative: the signal that ended it
    recorded_at: datetime | None = None  # when its end was written
    armed_ahead: float | None = None  # seconds before run_at that its agent had it; negative: after it; None: not told
    namespace: str = "default"


class AttemptView(msgspec.Struct, frozen=True):
    number: int
    token: int
    state: str
    agent: str | None
    started_at: datetime | None
    finished_at: datetime | None
    lateness_ms: float | None
    error_code: str | None
    error: str | None
    exit_code: int | None = None  # as in TaskView
    session: int | None = None  # of the agent
    server: str | None = None  # that the session was connected to
    server_id: UUID | None = None
    armed_ahead: float | None = None  # as in TaskView


JSON = ("args", "progress", "checkpoint", "result")

# Whether the handler of a row of the history may still return: its process is there, perhaps reconnected.
RETURNS = """exists (
    select from mainspring.agent before join mainspring.agent a on a.instance = before.instance
     where before.session = {0}.session and a.ended_at is null and a.lease_until > mainspring.now())
"""

_COMMON = """
    t.id, t.job_id, t.state, t.priority, t.attempt, t.run_at, t.created_at, t.key, t.schedule_id,
    nullif(t.scope, '') as scope, t.plan_time, t.parent_id as parent, t.target as only_on, t.concurrency_key, t.session
"""
_LIVE = f"""
    {_COMMON}, case when t.session is not null then t.started_at end as started_at,   -- a broadcast starts nowhere
    null::timestamptz as finished_at, null::timestamptz as recorded_at, null::text as error_code, t.paused_at,
    false as result_due, false as result_lost, null::integer as exit_code, null::real as armed_ahead
"""
_FINISHED = f"""
    {_COMMON}, t.started_at, t.finished_at, t.recorded_at, t.error_code, null::timestamptz as paused_at,
    coalesce(t.result_due, false) as result_due,
    case when t.result_due is null then true
         when t.result_due then not {RETURNS.format("t")} else false end as result_lost, t.exit_code, t.armed_ahead
"""
_NOTHING = (
    "null::jsonb as args, null::jsonb as progress, null::jsonb as checkpoint, null::jsonb as result, null as error"
)

# For a SELECT from mainspring.task t and mainspring.task_history t, with or without what takes room. They have the same
# columns in the same order.
LIVE = f"{_LIVE}, t.args, t.progress, t.checkpoint, null::jsonb as result, null as error"
FINISHED = f"{_FINISHED}, t.args, t.progress, t.checkpoint, t.result, t.error"
LIVE_SUMMARY, FINISHED_SUMMARY = f"{_LIVE}, {_NOTHING}", f"{_FINISHED}, {_NOTHING}"


def named(found: str) -> str:
    """The rows of a query with these columns, with their names. Joined last, only with the rows that are shown.

    Sessions are kept as long as their tasks.
    """
    return f"""
        select found.*, coalesce(j.name, '(deleted)') as job, coalesce(j.namespace, 'default') as namespace,
               s.name as schedule, s.timezone, coalesce(a.name, only_on) as agent
          from ({found}) found
          left join mainspring.job j on j.id = found.job_id
          left join mainspring.schedule s on s.id = found.schedule_id
          left join mainspring.agent a using (session)
    """


def labelled(row: Any) -> dict[str, Any]:
    """The columns of a task or an attempt, with the label of its state and its lateness."""
    started, due = row["started_at"], row["run_at"]
    lateness = None if started is None else round((started - due).total_seconds() * 1000, 3)
    return {**row, "state": TaskState(row["state"]).label, "lateness_ms": lateness}


def task_views(rows: Sequence[Any], waiting_for: Mapping[int, Sequence[int]]) -> list[TaskView]:
    """`waiting_for` has the tasks that each of them waits for."""
    columns = [{**labelled(row), "waiting_for": waiting_for.get(row["id"], ())} for row in rows]
    for row in columns:
        if row["plan_time"] is not None:
            row["plan_time"] = row["plan_time"].astimezone(zone_or_utc(row["timezone"]))
        if row["concurrency_key"] is not None:
            row["concurrency_key"] = plain_key(row["concurrency_key"])
    return views(TaskView, columns, json=JSON)


_PARENTS = "select child, parent from mainspring.dependency where child = any($1::bigint[]) order by child, parent"


async def waiting_for(conn: Connection, tasks: Sequence[int]) -> dict[int, list[int]]:
    """The tasks that those of `tasks` wait for which are blocked by dependencies."""
    found: dict[int, list[int]] = {}
    for edge in await conn.fetch(_PARENTS, tasks):
        found.setdefault(edge["child"], []).append(edge["parent"])
    return found
