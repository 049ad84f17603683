"""Tasks and attempts as people see them: the columns of their tables → views.

Reads   mainspring.task, mainspring.task_history, with the names of their jobs, schedules and agents
Next:   store/tasks/tasks.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.model.flows.options import read_options
from mainspring.model.limits.limits import plain_key
from mainspring.model.tasks.payload import UNREADABLE
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.zones import zone_or_utc
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import NO_TIME, clamped, decoded


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
    batch: int | None = None  # that it is a member of
    callback_of: int | None = None  # the batch whose callback it is
    tags: tuple[str, ...] = ()
    expires_at: datetime | None = None  # start deadline, while it waits
    rule: str | None = None  # the priority rule that decided its priority
    timeout: float | None = None  # seconds, in place of its job's
    retries: int | None = None  # in place of its job's
    submitter: str | None = None  # who submitted it: an actor, or a role of PostgreSQL
    on_parent_failure: str | None = None  # if a task that it runs after does not succeed; None: skip
    stalls_after: float | None = None  # seconds, in place of its job's


class WaitView(msgspec.Struct, frozen=True):
    """Why no agent takes a task that is due: model/tasks/waits.py has the codes."""

    code: str
    reason: str


class TaskSummary(msgspec.Struct, frozen=True):
    """A task in a list. The last members are there with `fields=all` only."""

    id: int
    namespace: str
    job: str
    state: str
    priority: int
    attempt: int
    run_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    lateness_ms: float | None
    error_code: str | None
    exit_code: int | None
    key: str | None
    concurrency_key: str | None
    schedule: str | None
    scope: str | None
    plan_time: datetime | None
    waiting_for: list[int]
    paused_at: datetime | None
    parent: int | None
    batch: int | None
    agent: str | None
    only_on: str | None
    result_due: bool
    recorded_at: datetime | None
    tags: tuple[str, ...]
    waits: WaitView | None
    unreadable: list[str]
    args: Any | UnsetType = UNSET
    progress: Any | UnsetType = UNSET
    checkpoint: Any | UnsetType = UNSET
    result: Any | UnsetType = UNSET
    error: str | UnsetType | None = UNSET


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
AT_ONCE = 250_000  # characters of JSON that are read before others have their turn

# Whether the handler of a row of the history may still return: its process is there, perhaps reconnected.
RETURNS = """exists (
    select from mainspring.agent before join mainspring.agent a on a.instance = before.instance
     where before.session = {0}.session and a.ended_at is null and a.lease_until > mainspring.now())
"""

_COMMON = """
    t.id, t.job_id, t.state, t.priority, t.attempt, t.run_at, t.created_at, t.key, t.schedule_id,
    nullif(t.scope, '') as scope, t.plan_time, t.parent_id as parent, t.target as only_on, t.concurrency_key, t.session,
    t.options, t.submitted_by, t.batch_id as batch
"""
_LIVE = f"""
    {_COMMON}, case when t.session is not null then t.started_at end as started_at,   -- a broadcast starts nowhere
    null::timestamptz as finished_at, null::timestamptz as recorded_at, null::text as error_code, t.paused_at,
    false as due, null::integer as exit_code, null::real as armed_ahead, t.expires_at
"""
_FINISHED = f"""
    {_COMMON}, t.started_at, t.finished_at, t.recorded_at, t.error_code, null::timestamptz as paused_at,
    t.result_due as due, t.exit_code, t.armed_ahead,
    null::timestamptz as expires_at
"""
_HEAVY = "t.args, t.progress, t.checkpoint"

# For a SELECT from mainspring.task t and mainspring.task_history t, with or without what takes room. They have the same
# columns in the same order.
LIVE = f"{_LIVE}, {_HEAVY}, null::jsonb as result, null as error"
FINISHED = f"{_FINISHED}, {_HEAVY}, t.result, t.error"
LIVE_SUMMARY, FINISHED_SUMMARY = _LIVE, _FINISHED

# In the order that `task_view` reads. What is computed here is computed once: below the UNION PostgreSQL would prepare
# it for each partition.
_VIEW = f"""
    found.id, coalesce(j.name, '(deleted)'), found.state, found.priority, found.attempt, found.run_at,
    found.created_at, found.started_at, found.finished_at, found.args, found.progress, found.checkpoint, found.result,
    found.error_code, found.error, found.key, s.name, found.scope, found.plan_time, found.paused_at, found.parent,
    coalesce(a.name, found.only_on), found.only_on, found.concurrency_key, coalesce(found.due, false),
    case when found.due then not {RETURNS.format("found")} else found.due is null end, found.exit_code,
    found.recorded_at, found.armed_ahead, coalesce(j.namespace, 'default'), s.timezone, found.batch, found.expires_at,
    found.options, found.submitted_by
"""
# In the order that `summary` reads.
_SUMMARY = """
    found.id, coalesce(j.namespace, 'default'), coalesce(j.name, '(deleted)'), found.state, found.priority,
    found.attempt, found.run_at, found.created_at, found.started_at, found.finished_at, found.error_code,
    found.exit_code, found.key, found.concurrency_key, s.name, found.scope, found.plan_time, found.paused_at,
    found.parent, found.batch, coalesce(a.name, found.only_on), found.only_on, coalesce(found.due, false),
    found.recorded_at, found.options, s.timezone
"""
_WITH_HEAVY = f"{_SUMMARY}, found.args, found.progress, found.checkpoint, found.result, found.error"


def _joined(columns: str, found: str) -> str:
    """One look-up for each row that is shown: PostgreSQL would rather read all jobs. Sessions are kept as long as their
    tasks."""
    return f"""
        select {columns}
          from ({found}) found
          left join lateral (
              select j.name, j.namespace from mainspring.job j where j.id = found.job_id limit 1) j on true
          left join lateral (
              select s.name, s.timezone from mainspring.schedule s where s.id = found.schedule_id limit 1) s on true
          left join lateral (
              select a.name, a.server from mainspring.agent a where a.session = found.session limit 1) a on true
    """


def named(found: str, also: str) -> str:
    """The rows of a query with the columns of LIVE or FINISHED, in the order that `task_view` reads, and `also` others
    behind them."""
    return _joined(f"{_VIEW}, {also}", found)


def summarised(found: str, *, whole: bool) -> str:
    """The rows of a query with the columns of LIVE_SUMMARY or LIVE, in the order that `summary` reads."""
    return _joined(_WITH_HEAVY if whole else _SUMMARY, found)


_LABELS = {int(state): state.label for state in TaskState}
_TIMES = ("run_at", "created_at", "started_at", "finished_at", "plan_time", "paused_at", "recorded_at")


def labelled(row: Any) -> dict[str, Any]:
    """The columns of a task or an attempt, with the label of its state and its lateness."""
    return {**row, "state": _LABELS[row["state"]], "lateness_ms": lateness_ms(row["run_at"], row["started_at"])}


def lateness_ms(run_at: datetime, started_at: datetime | None) -> float | None:
    return None if started_at is None else round((started_at - run_at).total_seconds() * 1000, 3)


def _checked(times: tuple[Any, ...], unreadable: list[str]) -> tuple[Any, ...]:
    """The times of a row, some of them None, as they can be shown; what cannot be is noted."""
    for at in times:
        if at is not None and at.tzinfo is None:
            break
    else:
        return times
    unreadable += [f"{_TIMES[place]}: {NO_TIME}" for place, at in enumerate(times) if at and at.tzinfo is None]
    return tuple(at and clamped(at) for at in times)


async def task_view(row: Any, waiting_for: list[int]) -> TaskView:
    """A row of `named`. By place, as `summary`."""
    (
        id, job, state, priority, attempt, run_at, created_at, started_at, finished_at, args, progress, checkpoint,
        result, error_code, error, key, schedule, scope, plan_time, paused_at, parent, agent, only_on, concurrency_key,
        result_due, result_lost, exit_code, recorded_at, armed_ahead, namespace, timezone, batch, expires_at, options,
        submitted_by, *_,
    ) = row  # fmt: skip
    unreadable: list[str] = []
    run_at, created_at, started_at, finished_at, plan_time, paused_at, recorded_at = _checked(
        (run_at, created_at, started_at, finished_at, plan_time, paused_at, recorded_at), unreadable
    )
    args, progress, checkpoint, result = await _read([args, progress, checkpoint, result], unreadable)
    its = read_options(options)
    return TaskView(
        id, job, _LABELS[state], priority, attempt, run_at, created_at, started_at, finished_at,
        lateness_ms(run_at, started_at), args, progress, checkpoint, result, error_code, error, key, schedule, scope,
        None if plan_time is None else plan_time.astimezone(zone_or_utc(timezone)), waiting_for, paused_at, parent,
        agent, only_on, None if concurrency_key is None else plain_key(concurrency_key), result_due,
        result_lost, unreadable, exit_code, recorded_at, armed_ahead, namespace, batch,
        None if its.callback is None else its.callback.batch, its.tags, expires_at, its.rule, its.timeout, its.retries,
        its.submitter or submitted_by, its.on_parent_failure, its.stalls_after,
    )  # fmt: skip


async def summary(row: Any, waiting_for: list[int]) -> TaskSummary:
    """A row of `summarised`. By place: a page has hundreds of them, and names cost more than the rest."""
    (
        id, namespace, job, state, priority, attempt, run_at, created_at, started_at, finished_at, error_code,
        exit_code, key, concurrency_key, schedule, scope, plan_time, paused_at, parent, batch, agent, only_on,
        result_due, recorded_at, options, timezone, *heavy,
    ) = row  # fmt: skip
    unreadable: list[str] = []
    run_at, created_at, started_at, finished_at, plan_time, paused_at, recorded_at = _checked(
        (run_at, created_at, started_at, finished_at, plan_time, paused_at, recorded_at), unreadable
    )
    if heavy:
        await _read(heavy, unreadable)
    return TaskSummary(
        id, namespace, job, _LABELS[state], priority, attempt, run_at, created_at, started_at, finished_at,
        lateness_ms(run_at, started_at), error_code, exit_code, key,
        None if concurrency_key is None else plain_key(concurrency_key), schedule, scope,
        None if plan_time is None else plan_time.astimezone(zone_or_utc(timezone)), waiting_for, paused_at, parent,
        batch, agent, only_on, result_due, recorded_at, () if options is None else read_options(options).tags, None,
        unreadable, *heavy,
    )  # fmt: skip


async def _read(heavy: list[Any], unreadable: list[str]) -> list[Any]:
    """Reads the columns of JSON, which come first; what cannot be read is noted."""
    for place, name in enumerate(JSON):
        text = heavy[place]
        if text is not None:
            try:
                heavy[place] = decoded(text)
            except UNREADABLE as error:
                heavy[place] = None
                unreadable.append(f"{name}: {str(error)[:200]}")
            if len(text) > AT_ONCE:
                await asyncio.sleep(0)  # a millisecond or two: others on this event loop have their turn
    return heavy


_PARENTS = "select child, parent from mainspring.dependency where child = any($1::bigint[]) order by child, parent"


async def waiting_for(conn: Connection, tasks: Sequence[int]) -> dict[int, list[int]]:
    """The tasks that those of `tasks` wait for which are blocked by dependencies."""
    found: dict[int, list[int]] = {}
    for edge in await conn.fetch(_PARENTS, tasks):
        found.setdefault(edge["child"], []).append(edge["parent"])
    return found
