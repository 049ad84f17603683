"""Tasks as people see them: find, cancel, retry by hand, wait for, read the output.

Reads   mainspring.task, mainspring.task_history, mainspring.attempt, mainspring.output
Writes  blocked, pending → cancelled; terminal states → pending, by a person
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from mainspring.errors import InvalidTransition, TaskNotFound
from mainspring.model.tasks.pools import blocked
from mainspring.model.tasks.states import (
    CANCEL,
    IS_ACTIVE,
    IS_WAITING,
    PENDING,
    TERMINAL,
    CancelMode,
    TaskState,
)
from mainspring.store.postgres import hints
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import fetched, readable, views
from mainspring.store.tasks import dependencies, partitions
from mainspring.store.tasks.transitions import asking_agents, into_history, noted
from mainspring.store.views import recent
from mainspring.store.views.task_views import (
    FINISHED,
    LIVE,
    RETURNS,
    AttemptView,
    TaskView,
    labelled,
    named,
    task_view,
)

LAST_TOKEN = 2**63 - 1

_PARENTS = "array(select d.parent from mainspring.dependency d where d.child = $1 order by d.parent) as waiting_for"


def by_id(columns: str = "", also: str = "", bound: str = "") -> str:
    """The task $1, with `columns` of its row and `also` others; `bound` leaves out some of the history."""
    found = f"""
        select {LIVE} {columns} from mainspring.task t where t.id = $1
        union all
        select {FINISHED} {columns} from mainspring.task_history t where t.id = $1 {bound}
         limit 1
    """
    return named(found, f"{_PARENTS} {also}")


_TASK, _RECENT_TASK = by_id(), by_id(bound="and t.recorded_at >= $2")


async def get(conn: Connection, task: int) -> TaskView:
    rows = await fetched(conn, _RECENT_TASK, task, recent.since()) or await fetched(conn, _TASK, task)
    if not rows:
        raise no_task(task)
    return await task_view(rows[0], rows[0]["waiting_for"])


def no_task(task: int) -> TaskNotFound:
    return TaskNotFound(f"no task {task}; it never existed, or retention dropped it", field="task")


_COLUMNS = "token, state, session, started_at, {}, run_at, error_code, error, exit_code, armed_ahead"
_ATTEMPTS = f"""
    select found.*, a.name as agent, a.server as server_id, s.name as server
      from ((select number, {_COLUMNS.format("finished_at")} from mainspring.attempt
              where task_id = $1 and token < $2 and ($3::bigint[] is null or token = any ($3))
              order by token desc limit $4)
            union all
            select attempt, {_COLUMNS.format("finished_at")} from mainspring.task_history
             where id = $1 and token < $2 and session is not null           -- a broadcast itself has no attempts
            union all
            select attempt, token, state, session, started_at, null, run_at, null, null, null, null
              from mainspring.task where id = $1 and token < $2 and {IS_ACTIVE} and session is not null) found
      left join mainspring.agent a using (session)
      left join mainspring.server s on s.id = a.server
     where $3::bigint[] is null or found.token = any ($3)
     order by found.token desc limit $4
"""


async def attempts(
    conn: Connection,
    task: int,
    *,
    tokens: Sequence[int] | None = None,
    before: int = LAST_TOKEN,
    limit: int | None = None,
) -> list[AttemptView]:
    """The attempts of a task in order, all, these, or the last ones before a token: earlier ones, the one that ended
    it, the one that runs."""
    rows = await readable(conn, _ATTEMPTS, task, before, tokens, limit)
    return views(AttemptView, map(labelled, reversed(rows)))


_TOKEN = f"""
    select token from (
        select token, number from mainspring.attempt where task_id = $1
        union all
        select token, attempt from mainspring.task_history where id = $1 and session is not null
        union all
        select token, attempt from mainspring.task where id = $1 and {IS_ACTIVE} and session is not null) found
     where number = $2::bigint and token is not null
     order by token desc limit 1
"""


async def token_of(conn: Connection, task: int, number: int) -> int | None:
    """The token of the last attempt with this number; None if there was none."""
    token: int | None = await conn.fetchval(_TOKEN, task, number)
    return token


# SKIP LOCKED: a statement for many never waits for one that is being claimed, started or ended, in whatever order.
def _cancel_waiting(which: str) -> str:
    return f"""
        with ended as (
            delete from mainspring.task t where {which} and t.{IS_WAITING} returning t.*
        ), edges as (
            delete from mainspring.dependency d using ended where d.child = ended.id
        ), {noted("ended", f"{CANCEL.target:d}")}
        {into_history("ended", CANCEL, "cancelled", "'cancelled before it started'")}
        returning id
    """


def _cancel_held(which: str) -> str:
    return asking_agents(f"""
        update mainspring.task t
           set cancel_at = coalesce(cancel_at, mainspring.now()),
               -- It replaces a recall or a restart.
               cancel_mode = case when $2 or cancel_mode = {CancelMode.KILL:d} then {CancelMode.KILL:d} end
         where {which} and t.{IS_ACTIVE}
    """)


FREE = """
    t.id in (select l.id from mainspring.task l where l.id = any($1::bigint[]) order by l.id for update skip locked)
"""
_CANCEL_WAITING, _CANCEL_HELD = _cancel_waiting("t.id = $1"), _cancel_held("t.id = $1")
_CANCEL_WAITING_ONES, _CANCEL_HELD_ONES = _cancel_waiting(FREE), _cancel_held(FREE)


async def cancel(conn: Connection, task: int, *, kill: bool = False) -> TaskState:
    """blocked, pending → cancelled at once; of an assigned or running task its agent is asked to stop it.

    With `kill` it gets no grace. Returns the state that the task is in. InvalidTransition if it has ended.
    """
    for _ in range(100):  # it may be claimed, or requeued, between the two statements
        if await partitions.write(conn, lambda: conn.fetchval(_CANCEL_WAITING, task)) is not None:
            return TaskState.CANCELLED
        if (held := await conn.fetchrow(_CANCEL_HELD, task, kill)) is not None:
            return TaskState(held["state"])
        view = await get(conn, task)
        state = TaskState.from_label(view.state)
        if state in TERMINAL:
            raise refused(view, f"has already {_ended(state)}; nothing to cancel", CANCEL.sources)
    raise InvalidTransition(f"task {task} changes too fast to be cancelled; try again", field="task")


async def cancel_each(conn: Connection, tasks: Sequence[int], *, kill: bool = False) -> set[int]:
    """`cancel` for many, in two statements; returns those that are cancelled or asked to stop.

    The others have ended, or another statement changes them at this moment.
    """
    done = {row["id"] for row in await partitions.write(conn, lambda: conn.fetch(_CANCEL_WAITING_ONES, tasks))}
    left = [task for task in tasks if task not in done]
    return done | {row["id"] for row in await conn.fetch(_CANCEL_HELD_ONES, left, kill)} if left else done


def refused(view: TaskView, why: str, allowed: Iterable[TaskState]) -> InvalidTransition:
    """The error for a task whose state does not allow it, with the states that would."""
    return InvalidTransition(
        f"task {view.id} {why}", field="task", state=view.state, allowed=[state.label for state in sorted(allowed)]
    )


def _ended(state: TaskState) -> str:
    return "succeeded" if state is TaskState.SUCCEEDED else f"ended ({state.label})"


RETRIED = TERMINAL - {TaskState.SUCCEEDED}  # what a person may run again

# Everything is made from the rows that this statement has removed: of two callers at once, one gets them.
_RUN_AGAIN = f"""
    with given as (
        select distinct on (id) id, recorded_at from mainspring.task_history
         where id = any($1::bigint[]) and state <> {TaskState.SUCCEEDED:d}
           and error_code is distinct from 'recalled'   -- its plan time has another task
           and origin is distinct from 'daemon'         -- its schedule has created another
         order by id, recorded_at
    ), removed as (
        delete from mainspring.task_history h using given
         where h.id = given.id and h.recorded_at = given.recorded_at
        returning h.*
    ), kept as (
        insert into mainspring.attempt
            (task_id, token, number, session, state, started_at, finished_at, recorded_at, run_at, error_code, error,
             exit_code, armed_ahead)
        select id, token, attempt, session, state, started_at, finished_at, mainspring.now(), run_at, error_code, error,
               exit_code, armed_ahead
          from removed where token is not null and session is not null
    ), in_ledger as (
        update mainspring.fire f set task_id = removed.id, reason = null
          from removed
         where f.schedule_id = removed.schedule_id and f.plan_time = removed.plan_time and f.scope = removed.scope
           and f.task_id is null                    -- it was skipped
    ), made as (
        insert into mainspring.task
            (id, run_at, created_at, job_id, pool, state, priority, attempt, args, checkpoint, key,
             schedule_id, plan_time, scope, origin, parent_id, target, concurrency_key, key_given, submitted_by,
             batch_id, options, is_bounded)
        select removed.id, mainspring.now(), removed.created_at, job_id,
               case when parent_id is not null then {blocked("removed.pool")}
                    when j.definition ? 'gate' or j.held is not null then j.pool  -- it may have got limits since
                    else removed.pool end,
               {PENDING:d}, removed.priority, 0, args, checkpoint, key, schedule_id, plan_time, scope, origin,
               parent_id, target, case when key_given then concurrency_key end, key_given, removed.submitted_by,
               removed.batch_id, removed.options, case when j.max_queued is not null then true end
          from removed left join mainspring.job j on j.id = removed.job_id
        returning id, pool, priority, run_at, job_id, is_bounded
    ), uncounted_ends as (
        insert into mainspring.batch_change (batch_id, outcome, count)
        select batch_id, state, -count(*) from removed where batch_id is not null group by 1, 2
    ), uncounted as (                               -- their numbers are not new: see mainspring.queue_bound
        delete from mainspring.queue_bound b
         where exists (select from made) and b.job_id in (select 0 union select job_id from made where is_bounded)
    )
    select id, ({hints.due("made")}) as hints,
           (select mainspring.reopen_batches(array_agg(distinct batch_id)) from removed where batch_id is not null)
               as reopened
      from made
"""


async def run_again(conn: Connection, task: int) -> None:
    """A person's retry: failed, timed_out, cancelled, skipped, lost → pending, with all its attempts again."""
    async with conn.transaction():
        if not await run_each_again(conn, [task]):
            view = await get(conn, task)
            raise refused(view, f"is {view.state}; only one that ended without success can be retried", RETRIED)


async def run_again_with_children(conn: Connection, task: int, reaches: Callable[[str], bool]) -> list[int]:
    """The same with all that ended unrun because of it, which waits for it again; returns those.

    Of the jobs that the caller reaches. ValidationError if they are too many.
    """
    async with conn.transaction():
        await run_again(conn, task)
        children = await dependencies.ended_because_of(conn, task, reaches)
        revived = sorted(await run_each_again(conn, children)) if children else []
        if revived:
            await dependencies.block_again(conn, revived)
    return revived


async def run_each_again(conn: Connection, tasks: Sequence[int]) -> set[int]:
    """The same for many; returns those that are pending again. The only statement that leaves a terminal state."""
    async with conn.transaction():
        await partitions.go_through_all(conn)
        return {row["id"] for row in await conn.fetch(_RUN_AGAIN, tasks)}


# A task that its handler completed by transaction() has ended for its waiters once the handler has returned, or can no
# longer report because its agent is gone.
_ENDED = f"""
    select h.id, h.state, h.result, h.error_code, h.error, h.result_due
      from mainspring.task_history h
     where h.id = any($1::bigint[]) and not (h.result_due is true and {RETURNS.format("h")})
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
     where task_id = $1 and (token, number) > ($2, $3) and token <= $4 order by token, number limit $5
"""


async def output(
    conn: Connection, task: int, *, after: tuple[int, int] = (0, 0), upto: int = LAST_TOKEN, limit: int = 200
) -> list[Piece]:
    """Output of the attempts up to the token `upto` in order, from behind the piece `after` = (token, number)."""
    return [Piece(*row) for row in await conn.fetch(_OUTPUT, task, *after, upto, limit)]


_OUTPUT_BEFORE = """
    select distinct on (token, number) token, number, stream, at, data from mainspring.output
     where task_id = $1 and (token, number) < ($2, $3) and token >= $4 order by token desc, number desc limit $5
"""


async def output_before(
    conn: Connection, task: int, before: tuple[int, int], *, since: int = 0, limit: int = 200
) -> list[Piece]:
    """The last pieces before the piece `before` of the attempts from the token `since` on, the last of them first."""
    return [Piece(*row) for row in await conn.fetch(_OUTPUT_BEFORE, task, *before, since, limit)]


# From the end, as far as the bytes that are wanted go.
_TAIL = """
    select token, number, size, sum(size) over (order by token desc, number desc) as bytes
      from (select distinct on (token, number) token, number, octet_length(data) as size from mainspring.output
             where task_id = $1 and token > $2 and token <= $3 and stream > 0
             order by token desc, number desc limit 2000) last
     order by token desc, number desc
"""


class Start(NamedTuple):
    """Where the last bytes of an output begin."""

    after: tuple[int, int]
    skip: int  # bytes of the first piece


async def tail(conn: Connection, task: int, size: int, *, after: int = 0, upto: int = LAST_TOKEN) -> Start:
    """Where the last `size` bytes begin, of attempts behind the token `after`; at most 2,000 pieces before the end."""
    first = Start((after, 0), 0)
    for row in await conn.fetch(_TAIL, task, after, upto):
        first = Start((row["token"], row["number"] - 1), max(0, row["bytes"] - size))
        if row["bytes"] >= size:
            break
    return first
