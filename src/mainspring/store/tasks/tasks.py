"""Tasks as people see them: find, list, cancel, retry by hand, wait for, read the output.

Reads   mainspring.task, mainspring.task_history, mainspring.attempt, mainspring.output
Writes  blocked, pending → cancelled; terminal states → pending, by a person
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from mainspring.errors import InvalidTransition, TaskNotFound
from mainspring.model.limits.limits import plain_key
from mainspring.model.tasks.pools import blocked
from mainspring.model.tasks.states import CANCEL, IS_ACTIVE, IS_WAITING, PENDING, TERMINAL, CancelMode, TaskState
from mainspring.model.words.zones import zone_or_utc
from mainspring.store.postgres import hints
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import readable, views
from mainspring.store.tasks import partitions
from mainspring.store.tasks.transitions import asking_agents, into_history, noted

WINDOW = 2_000  # ids that a listing searches at first; more while that is fast
FAST = 0.05  # seconds
PATIENCE = 2.0  # seconds that a listing searches at most


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
    unreadable: list[str] = []  # fields that hold what no program here can read, and why
    exit_code: int | None = None  # of a command that failed; negative: the signal that ended it
    armed_ahead: float | None = None  # seconds before run_at that its agent had it; negative: after it; None: not told


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


_LIVE = """
    select t.id, coalesce(j.name, '(deleted)') as job, t.state, t.priority, t.attempt, t.run_at, t.created_at,
           case when t.session is not null then t.started_at end as started_at,   -- a broadcast itself starts nowhere
           null::timestamptz as finished_at, t.args, t.progress, t.checkpoint, null::jsonb as result,
           null::text as error_code, null::text as error, t.key, s.name as schedule, s.timezone,
           nullif(t.scope, '') as scope, t.plan_time, t.paused_at, t.parent_id as parent, t.target as only_on,
           t.concurrency_key, t.session, false as result_due, null::integer as exit_code, null::real as armed_ahead
      from mainspring.task t left join mainspring.job j on j.id = t.job_id
      left join mainspring.schedule s on s.id = t.schedule_id
"""
_FINISHED = """
    select t.id, coalesce(j.name, '(deleted)') as job, t.state, t.priority, t.attempt, t.run_at, t.created_at,
           t.started_at, t.finished_at, t.args, t.progress, t.checkpoint, t.result, t.error_code, t.error, t.key,
           s.name as schedule, s.timezone, nullif(t.scope, '') as scope, t.plan_time, null::timestamptz as paused_at,
           t.parent_id as parent, t.target as only_on, t.concurrency_key, t.session,
           coalesce(t.result_due, false) as result_due, t.exit_code, t.armed_ahead
      from mainspring.task_history t left join mainspring.job j on j.id = t.job_id
      left join mainspring.schedule s on s.id = t.schedule_id
"""
# Sessions are kept as long as their tasks. Joined last, only with the rows that are shown.
_WITH_AGENT = """
    select found.*, coalesce(a.name, only_on) as agent from ({}) found left join mainspring.agent a using (session)
"""


def labelled(row: Any) -> dict[str, Any]:
    """The columns of a task or an attempt, with the label of its state and its lateness."""
    started, due = row["started_at"], row["run_at"]
    lateness = None if started is None else round((started - due).total_seconds() * 1000, 3)
    return {**row, "state": TaskState(row["state"]).label, "lateness_ms": lateness}


def _views(rows: Sequence[Any], waiting_for: Sequence[int] = ()) -> list[TaskView]:
    columns = [{**labelled(row), "waiting_for": waiting_for} for row in rows]
    for row in columns:
        if row["plan_time"] is not None:
            row["plan_time"] = row["plan_time"].astimezone(zone_or_utc(row["timezone"]))
        if row["concurrency_key"] is not None:
            row["concurrency_key"] = plain_key(row["concurrency_key"])
    return views(TaskView, columns, json=("args", "progress", "checkpoint", "result"))


async def get(conn: Connection, task: int) -> TaskView:
    found = f"{_LIVE} where t.id = $1 union all {_FINISHED} where t.id = $1"
    rows = await readable(conn, _WITH_AGENT.format(found), task)
    if not rows:
        raise TaskNotFound(f"no task {task}; it never existed, or retention dropped it", field="task")
    waiting = await conn.fetch("select parent from mainspring.dependency where child = $1 order by 1", task)
    return _views(rows[:1], [edge["parent"] for edge in waiting])[0]


class TaskPage(NamedTuple):
    tasks: list[TaskView]
    next: int | None  # tasks before this id were not searched; None: there are none


_ENDS = """
    select coalesce(least((select min(id) from mainspring.task), (select min(id) from mainspring.task_history)), 0),
           coalesce(greatest((select max(id) from mainspring.task), (select max(id) from mainspring.task_history)), 0)
"""


async def listing(
    conn: Connection,
    *,
    job: str | None,
    states: Sequence[TaskState],
    before: int | None,
    limit: int,
    schedule: str | None = None,
    parent: int | None = None,
    patience: float = PATIENCE,
) -> TaskPage:
    """The newest tasks first, those before the id `before`. The runs of a broadcast only if it is the `parent`.

    Searches the tasks and the history in windows of ids, so that no filter reads the whole history at once, and stops
    after a full page or `patience` seconds.
    """
    wanted = """
         where ($1::text is null or j.name = $1) and (cardinality($2::smallint[]) = 0 or t.state = any($2))
           and t.id < $3 and t.id >= $6 and ($4::text is null or s.name = $4)
           and t.parent_id is not distinct from $5::bigint
         order by t.id desc limit $7
    """
    query = f"select * from ({_LIVE} {wanted}) live union all select * from ({_FINISHED} {wanted}) finished"
    newest = f"select * from ({query}) found order by id desc limit $7"
    sql = f"{_WITH_AGENT.format(newest)} order by found.id desc"

    first, last = await conn.fetchrow(_ENDS)
    end = min(last + 1, before if before is not None else last + 1)  # tasks from this id on are searched
    window = WINDOW if parent is None else end  # runs of a broadcast have an index
    rows: list[Any] = []
    stop_at = monotonic() + patience
    while end > first and len(rows) < limit:
        start = max(first, end - window)
        filters = (job, [int(state) for state in states], end, schedule, parent, start, limit - len(rows))
        asked_at = monotonic()
        rows += await readable(conn, sql, *filters)
        window = window * 4 if monotonic() - asked_at < FAST else max(WINDOW, window // 2)
        end = start
        if monotonic() >= stop_at:
            break
    if len(rows) == limit:
        end = rows[-1]["id"]
    return TaskPage(_views(rows), end if end > first else None)


_ATTEMPTS = f"""
    select found.*, a.name as agent, a.server as server_id, s.name as server
      from (select number, token, state, session, started_at, finished_at, run_at, error_code, error, exit_code,
                   armed_ahead
              from mainspring.attempt where task_id = $1
            union all
            select attempt, token, state, session, started_at, finished_at, run_at, error_code, error, exit_code,
                   armed_ahead
              from mainspring.task_history
             where id = $1 and token is not null and session is not null    -- a broadcast itself has no attempts
            union all
            select attempt, token, state, session, started_at, null, run_at, null, null, null, null
              from mainspring.task where id = $1 and {IS_ACTIVE} and session is not null) found
      left join mainspring.agent a using (session)
      left join mainspring.server s on s.id = a.server
     order by found.token
"""


async def attempts(conn: Connection, task: int) -> list[AttemptView]:
    """All attempts of a task in order: earlier ones, the one that ended it, the one that runs."""
    return views(AttemptView, map(labelled, await readable(conn, _ATTEMPTS, task)))


_CANCEL_WAITING = f"""
    with ended as (
        delete from mainspring.task t where t.id = $1 and t.{IS_WAITING} returning t.*
    ), edges as (
        delete from mainspring.dependency d using ended where d.child = ended.id
    ), {noted("ended", f"{CANCEL.target:d}")}
    {into_history("ended", CANCEL, "cancelled", "'cancelled before it started'")}
    returning id
"""
_CANCEL_HELD = asking_agents(f"""
    update mainspring.task t
       set cancel_at = coalesce(cancel_at, mainspring.now()),
           -- It replaces a recall or a restart.
           cancel_mode = case when $2 or cancel_mode = {CancelMode.KILL:d} then {CancelMode.KILL:d} end
     where id = $1 and {IS_ACTIVE}
""")


async def cancel(conn: Connection, task: int, *, kill: bool = False) -> TaskState:
    """blocked, pending → cancelled at once; of an assigned or running task its agent is asked to stop it.

    With `kill` it gets no grace. Returns the state that the task is in. InvalidTransition if it has ended.
    """
    for _ in range(100):  # it may be claimed, or requeued, between the two statements
        if await partitions.write(conn, lambda: conn.fetchval(_CANCEL_WAITING, task)) is not None:
            return TaskState.CANCELLED
        if await conn.fetch(_CANCEL_HELD, task, kill):
            return TaskState.RUNNING
        view = await get(conn, task)
        state = TaskState.from_label(view.state)
        if state in TERMINAL:
            raise InvalidTransition(f"task {task} has already {_ended(state)}; nothing to cancel", field="task")
    raise InvalidTransition(f"task {task} changes too fast to be cancelled; try again", field="task")


def _ended(state: TaskState) -> str:
    return "succeeded" if state is TaskState.SUCCEEDED else f"ended ({state.label})"


_RUN_AGAIN = f"""
    with given as (
        select * from mainspring.task_history
         where id = $1 and state <> {TaskState.SUCCEEDED:d}
           and error_code is distinct from 'recalled'   -- its plan time has another task
           and origin is distinct from 'daemon'         -- its schedule has created another
         limit 1
    ), kept as (
        insert into mainspring.attempt
            (task_id, token, number, session, state, started_at, finished_at, recorded_at, run_at, error_code, error,
             exit_code, armed_ahead)
        select id, token, attempt, session, state, started_at, finished_at, mainspring.now(), run_at, error_code, error,
               exit_code, armed_ahead
          from given where token is not null and session is not null
    ), removed as (
        delete from mainspring.task_history h using given
         where h.id = given.id and h.recorded_at = given.recorded_at
        returning h.id
    ), in_ledger as (
        update mainspring.fire f set task_id = given.id, reason = null
          from given
         where f.schedule_id = given.schedule_id and f.plan_time = given.plan_time and f.scope = given.scope
           and f.task_id is null                    -- it was skipped
    ), made as (
        insert into mainspring.task
            (id, run_at, created_at, job_id, pool, state, priority, attempt, args, checkpoint, key,
             schedule_id, plan_time, scope, origin, parent_id, target, concurrency_key, key_given, submitted_by)
        select given.id, mainspring.now(), given.created_at, job_id,
               case when parent_id is not null then {blocked("given.pool")}
                    when j.definition ? 'gate' then j.pool                      -- its job may have got limits since
                    else given.pool end,
               {PENDING:d}, given.priority, 0, args, checkpoint, key, schedule_id, plan_time, scope, origin, parent_id,
               target, case when key_given then concurrency_key end, key_given, given.submitted_by
          from given join removed using (id) left join mainspring.job j on j.id = given.job_id
        returning id, pool, priority, run_at
    )
    select id, ({hints.due("made")}) as hints from made
"""


async def run_again(conn: Connection, task: int) -> None:
    """A person's retry: failed, timed_out, cancelled, skipped, lost → pending, with all its attempts again.

    The only statement that leaves a terminal state.
    """
    async with conn.transaction():
        await partitions.go_through_all(conn)
        if await conn.fetchval(_RUN_AGAIN, task) is None:
            state = (await get(conn, task)).state
            raise InvalidTransition(f"task {task} is {state}; only one that ended without success can be retried")


# A task that its handler completed by transaction() has ended for its waiters once the handler has returned, or can no
# longer report because its agent is gone.
_ENDED = """
    select h.id, h.state, h.result, h.error_code, h.error, h.result_due
      from mainspring.task_history h
     where h.id = any($1::bigint[])
       and not (h.result_due is true and exists (
               select from mainspring.agent before
                 join mainspring.agent a on a.instance = before.instance       -- the same process, perhaps reconnected
                where before.session = h.session and a.ended_at is null and a.lease_until > mainspring.now()))
"""


class Ended(NamedTuple):
    """How a task ended. `result_lost`: its handler completed it by transaction() and never returned."""

    state: TaskState
    result: str | None
    error_code: str | None
    error: str | None
    result_lost: bool = False


async def ended(conn: Connection, tasks: Sequence[int]) -> dict[int, Ended]:
    """Those of `tasks` that have ended."""
    return {
        row["id"]: Ended(
            TaskState(row["state"]), row["result"], row["error_code"], row["error"], row["result_due"] is not False
        )
        for row in await conn.fetch(_ENDED, tasks)
    }


_STILL_OPEN = """
    select id from mainspring.task where id = any($1::bigint[])
    union all
    select id from mainspring.task_history where id = any($1::bigint[]) and result_due
"""


async def still_open(conn: Connection, tasks: Sequence[int]) -> set[int]:
    """Those of `tasks` that are live, or whose result is due."""
    return {row[0] for row in await conn.fetch(_STILL_OPEN, tasks)}


# ── output ──────────────────────────────────────────────────────────────────────────────────────


class Piece(NamedTuple):
    """A chunk of output."""

    token: int
    number: int  # within its attempt, from 1 without gaps
    stream: int
    at: datetime
    data: bytes


# Two servers may record the same chunk, if an agent reconnects before the first server has acknowledged it.
_OUTPUT = """
    select distinct on (token, number) token, number, stream, at, data from mainspring.output
     where task_id = $1 and (token, number) > ($2, $3) order by token, number limit 200
"""


async def output(conn: Connection, task: int, *, after: tuple[int, int] = (0, 0)) -> list[Piece]:
    """Output of all attempts in order, from behind the piece `after` = (token, number)."""
    return [Piece(*row) for row in await conn.fetch(_OUTPUT, task, *after)]
