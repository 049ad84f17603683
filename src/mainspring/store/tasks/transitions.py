"""Transitions: what became of attempts. Every statement is guarded by state and token, and safe to repeat.

    start     assigned → running
    finish    assigned, running → a terminal state, into the history
    complete  the same, in the handler's own transaction
    retry     assigned, running → pending; the attempt goes to mainspring.attempt

`t.id = any (array[given.id])` means `t.id = given.id` in a form that no join can merge: whatever the planner believes
about the size of the table or the batch, it probes the index once per report. `finish_many` is for a connection that
hashes (store/postgres/database.py): it reads the index once for the whole batch, which saves a tenth of a task's cost.

A row that does not move belongs to a stale or repeated report; `keep_stale` tells which, and keeps it as evidence.
The life of a task ends here, as a row of mainspring.task_history. A reported end of a task with slots of a limit goes
through store/limits/handover.py, which gives them to the next one. Whatever else deletes such a row fires the trigger
`free_slots` (0001_schema.sql, 6): it returns the next parked task and notifies its gate, which wakes
server/planning/limits.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from mainspring.model.messages import Ending, Start
from mainspring.model.tasks.pools import IS_NOT_DAEMON, unblocked
from mainspring.model.tasks.states import FAIL, RETRY, RUNS_AGAIN, START, SUCCEEDED, CancelMode, Move, TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.store.postgres import hints
from mainspring.store.postgres.connection import SEARCH_PATH
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import affected

V = TypeVar("V")

AT_ONCE = 1000  # endings whose arrays are made in one step of the event loop
NUMBERS = 4  # arrays that are sent as text: ids, tokens, starts, ends

_START = f"""
    with given as (select * from unnest($1::bigint[], $2::bigint[], $3::float8[]) as given(id, token, at))
    update mainspring.task t
       set {START.enters}, started_at = to_timestamp(given.at),
           -- A recall comes too late now.
           cancel_at = case when t.cancel_mode = {CancelMode.RECALL:d} then null else t.cancel_at end,
           cancel_mode = nullif(t.cancel_mode, {CancelMode.RECALL:d})
      from given
     where t.id = any (array[given.id]) and t.token = given.token and t.{START.leaves}
"""


async def start(conn: Connection, starts: Sequence[Start]) -> None:
    """assigned → running, with the agent's time of the start."""
    await conn.execute(_START, [s.task for s in starts], [s.token for s in starts], [s.at for s in starts])


# The endings in the parameters, and their tasks, deleted. {is_given} finds the row of a task, {also} are more columns,
# {only} more conditions.
# Arrays that are shorter than the first are padded with nulls: a column that is null in the whole batch is sent empty.
_ENDED_BUT_FOR = f"""
    given as (
        select * from unnest($1::text::bigint[], $2::text::bigint[], $3::text::float8[], $4::text::float8[],
                             $5::smallint[], $6::text[], $7::text[], $8::text[], $9::integer[], $10::text::real[])
                   as given(id, token, started, finished, state, result, code, error, exit_code, armed_ahead)
    ), ended as (
        delete from mainspring.task t using given
         where {{is_given}} and t.token = given.token and t.{FAIL.leaves}
           -- A daemon ends only as cancelled, and only by request: see store/daemons/replicas.py.
           and (t.{IS_NOT_DAEMON} or given.state = {TaskState.CANCELLED:d} and t.cancel_at is not null
                                    and t.cancel_mode is distinct from {CancelMode.RESTART:d})
           {{only}}
        -- The batch comes early: `counted` reads it of every row, and the columns before it.
        returning t.id, t.batch_id, t.run_at, t.created_at, to_timestamp(given.started) as started_at,
                  coalesce(to_timestamp(given.finished), (select mainspring.now())) as finished_at,
                  t.token, t.session, t.job_id, coalesce(t.gate, t.pool) as pool,
                  coalesce(given.state, {TaskState.SUCCEEDED:d}) as state, t.priority, t.attempt, t.crashes, t.args,
                  t.checkpoint, t.progress, given.result::jsonb as result, given.code, given.error, given.exit_code,
                  given.armed_ahead, t.key, t.schedule_id, t.plan_time, t.scope, t.origin, t.parent_id, t.target,
                  t.concurrency_key, t.key_given, t.submitted_by, t.options{{also}}
    )
"""
_INTO_HISTORY_BUT_FOR = """
    insert into mainspring.task_history
        (id, run_at, created_at, started_at, finished_at, recorded_at, token, session, job_id, pool,
         state, priority, attempt, crashes, args, checkpoint, progress, result, error_code, error, exit_code,
         armed_ahead, key, schedule_id, plan_time, scope, origin, parent_id, target, concurrency_key, key_given,
         submitted_by, batch_id, options, result_due)
    select id, run_at, created_at, started_at, finished_at, (select mainspring.now()), token, session,
           job_id, pool, state, priority, attempt, crashes, args, checkpoint, progress, result, code, error, exit_code,
           armed_ahead, key, schedule_id, plan_time, scope, origin, parent_id, target, concurrency_key, key_given,
           submitted_by, batch_id, options, {result_due}
      from ended
"""


def counted(source: str, outcome: object = "state") -> str:
    """SQL that adds the deleted rows of `source` to the counts of their batches (0001_schema.sql, Batches)."""
    return f"""
        counted_ends as (
            insert into mainspring.batch_change (batch_id, outcome, count)
            select batch_id, {outcome}, count(*) from {source} where batch_id is not null group by 1, 2
            returning pg_notify('{hints.CHANNEL}', 'batch')
        )
    """


_PROBED = "t.id = any (array[given.id])"
_INTO_HISTORY = _INTO_HISTORY_BUT_FOR.format(result_due="false")
_ENDED = _ENDED_BUT_FOR.format(is_given=_PROBED, also="", only="")
_ENDED_MANY = _ENDED_BUT_FOR.format(is_given="t.id = any ($1::text::bigint[]) and t.id = given.id", also="", only="")
_COUNTED = counted("ended")
_FINISH = f"with {_ENDED}, {_COUNTED} {_INTO_HISTORY}"
_FINISH_MANY = f"with {_ENDED_MANY}, {_COUNTED} {_INTO_HISTORY}"
_COMPLETE = f"with {_ENDED}, {_COUNTED} {_INTO_HISTORY_BUT_FOR.format(result_due='true')}"


def ending(also: str, only: str) -> str:
    """The same as CTEs, for a larger statement: `ended` has these columns too. $1 to $10 are those of `finished`."""
    return f"{_ENDED_BUT_FOR.format(is_given=_PROBED, also=also, only=only)}, {_COUNTED}, recorded as ({_INTO_HISTORY})"


async def finish(conn: Connection, endings: list[Ending]) -> list[Ending]:
    """assigned, running → the state of each ending. Returns those that moved."""
    return await _finish(conn, _FINISH, endings)


async def finish_many(conn: Connection, endings: list[Ending]) -> list[Ending]:
    """The same on a connection that hashes."""
    return await _finish(conn, _FINISH_MANY, endings)


async def _finish(conn: Connection, statement: str, endings: list[Ending]) -> list[Ending]:
    return await moved(conn, endings, affected(await conn.execute(statement, *await finished(endings))))


# The rows of one statement have one time of recording, and those of the last one the greatest. As a rule: another flush
# or server may end some of the same attempts meanwhile. Then the figures count one of them twice and another never.
_MOVED = """
    with found as materialized (
        select h.id, h.token, h.recorded_at from unnest($1::bigint[], $2::bigint[]) as given(id, token)
          join mainspring.task_history h on h.id = any (array[given.id]) and h.token = given.token
    )
    select distinct id, token from found where recorded_at = (select max(recorded_at) from found) limit $3
"""


async def moved(conn: Connection, endings: list[Ending], count: int) -> list[Ending]:
    """Those that the last statement has ended, which were so many. All of them, as a rule: then nothing is asked."""
    if count == len(endings) or count == 0:
        return endings if count else []
    ids, tokens = [e.task for e in endings], [e.token for e in endings]
    return among(endings, await conn.fetch(_MOVED, ids, tokens, count))


def among(endings: list[Ending], moved: Iterable[Sequence[int]]) -> list[Ending]:
    """Those of `endings` whose task and token are in `moved`, each once."""
    attempts = {(e.task, e.token): e for e in endings}
    return [attempts[task, token] for task, token in moved]


async def finished(endings: Sequence[Ending]) -> list[str | list[Any]]:
    """What a statement that ends tasks takes from reports, as its arrays; those of many in two steps of the loop."""
    arrays = _arrays(endings)
    made = list(islice(arrays, NUMBERS))
    if len(endings) > AT_ONCE:
        await asyncio.sleep(0)
    return [*made, *arrays]


def _arrays(endings: Sequence[Ending]) -> Iterator[str | list[Any]]:
    yield _numbers([e.task for e in endings])
    yield _numbers([e.token for e in endings])
    yield _numbers([e.started_at or None for e in endings])
    yield _numbers([e.finished_at or None for e in endings])
    states = [e.state for e in endings]
    yield [] if states.count(SUCCEEDED) == len(states) else states
    yield _unless_all_null([e.result for e in endings])
    yield _unless_all_null([e.code for e in endings])
    yield _unless_all_null([e.error for e in endings])
    yield _unless_all_null([e.exit_code for e in endings])
    yield _numbers([e.armed_ahead for e in endings])


def _numbers(values: list[Any]) -> str:
    """An array of numbers and nulls as text. The driver encodes arrays element by element, which takes four times as
    long, and more than PostgreSQL takes to read this."""
    return "{" + msgspec.json.encode(values)[1:-1].decode() + "}"


def _unless_all_null(values: list[V | None]) -> list[V | None]:
    return [] if values.count(None) == len(values) else values


COMMIT_WITHIN = 10.0  # seconds between a completion and the end of the handler's transaction

# The handler's connection has the search path of its role; it is pinned for our statement, and then as it was: deferred
# constraints of the application run at the commit.
_HURRY = """
    select pg_catalog.current_setting('search_path'), pg_catalog.set_config('search_path', $1, true),
           pg_catalog.set_config('idle_in_transaction_session_timeout', $2, true)
"""
_RESTORE = "select set_config('search_path', $1, true)"


async def complete(conn: Connection, endings: list[Ending]) -> list[Ending]:
    """running → succeeded in the handler's own transaction, which must end soon. Returns those that were not stale.

    The result is due until the handler has returned and `add_results` has recorded it.
    A process that hangs before its commit would keep the row locked, and with it the task and its slots.
    """
    search_path = await conn.fetchval(_HURRY, SEARCH_PATH, f"{COMMIT_WITHIN * 1000:.0f}")
    completed = await _finish(conn, _COMPLETE, endings)
    await conn.execute(_RESTORE, search_path)
    return completed


def into_history(source: str, move: Move | str, code: str, error: str) -> str:
    """SQL that inserts the deleted rows of `source` into the history, for a task whose end is not an attempt's.

    `error` is an SQL expression over a row of `source`; so is `move`, where the state differs by row.
    """
    state = move if isinstance(move, str) else f"{move.target:d}"
    return f"""
        insert into mainspring.task_history
            (id, run_at, created_at, finished_at, recorded_at, job_id, pool, state, priority, attempt, crashes,
             args, checkpoint, progress, error_code, error, key, schedule_id, plan_time, scope, origin, parent_id,
             target, concurrency_key, key_given, submitted_by, batch_id, options)
        select id, run_at, created_at, (select mainspring.now()), (select mainspring.now()), job_id,
               coalesce(gate, {unblocked("pool")}), {state}, priority, attempt, crashes, args, checkpoint,
               progress, '{code}', {error}, key, schedule_id, plan_time, scope, origin, parent_id, target,
               concurrency_key, key_given, submitted_by, batch_id, options
          from {source}
    """


def noted(source: str, outcome: object) -> str:
    """SQL that notes the deleted rows of `source` for the figures and for their batches: no recorder counts what no
    attempt has ended.

    `outcome` is a final state, or an SQL expression over a row of `source`. store/figures/rollups.py takes the notes.
    """
    return f"""
        noted_ends as (
            insert into mainspring.figure_note (job_id, outcome, count)
            select job_id, {outcome}, count(*) from {source} group by 1, 2
        ), {counted(source, outcome)}
    """


def asking_agents(update: str) -> str:
    """SQL that updates requests in the rows of tasks `t`, and wakes the gateways that send them to the agents."""
    return f"""
        with asked as ({update} returning t.id, t.state)
        select id, pg_notify('mainspring', 'cancel'), state from asked
    """


# The attempts in `moved`, which did not end their task. The first arrays are those of `attempt_columns`.
INTO_ATTEMPTS = """
    insert into mainspring.attempt
        (task_id, token, number, session, state, started_at, finished_at, recorded_at, run_at, error_code, error,
         exit_code, armed_ahead)
    select id, token, attempt, session, state, to_timestamp(started), to_timestamp(finished), (select mainspring.now()),
           run_at, code, error, exit_code, armed_ahead
      from moved
"""

# A task that holds slots gives them up and returns to its gate.
_RETRY = f"""
    with given as (
        select * from unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::float8[], $5::float8[],
                             $6::text[], $7::text[], $8::integer[], $9::real[], $10::float8[], $11::integer[],
                             $12::integer[])
                   as given(id, token, state, started, finished, code, error, exit_code, armed_ahead, delay, cost,
                            crash)
    ), was as materialized (
        select given.*, t.session, t.attempt, t.run_at,
               case when t.key_slot is not null then t.concurrency_key end as freed
          from given join mainspring.task t on t.id = any (array[given.id])
           for update of t                       -- a release that counts its slots as held waits for this statement
    ), moved as (
        update mainspring.task t
           set {RETRY.enters}, session = null, started_at = null,
               -- A task that was armed ahead and never started keeps its time.
               run_at = greatest(t.run_at, (select mainspring.now()) + make_interval(secs => was.delay)),
               attempt = t.attempt - 1 + was.cost, crashes = t.crashes + was.crash, cancel_at = null,
               cancel_mode = null, paused_at = null, paused_for = null,
               pool = coalesce(t.gate, t.pool), job_slot = null, key_slot = null,
               expires_at = case when was.started is null then t.expires_at end  -- it is for the first start
          from was
         where t.id = any (array[was.id]) and t.token = was.token and t.{RETRY.leaves}
           and (t.cancel_at is null or t.cancel_mode in {RUNS_AGAIN})       -- a cancelled task does not run again
           and t.{IS_NOT_DAEMON}                                             -- see store/daemons/replicas.py
        returning was.*, t.gate, t.pool, t.priority, t.run_at as due_at
    ), hinted as materialized (
        select (select count(mainspring.unpark(freed, 1)) + count(pg_notify('{hints.CHANNEL}', 'gate ' || gate))
                  from moved where gate is not null)
               + ({hints.due("moved", run_at="due_at")}) as hints
    )
    {INTO_ATTEMPTS}
     where (select hints from hinted) is not null      -- always true; it forces the CTE to run
    returning task_id, token
"""


def attempt_columns(endings: Sequence[Ending]) -> tuple[list[Any], ...]:
    """What mainspring.attempt takes from reports, as the arrays of a statement."""
    return (
        [e.task for e in endings],
        [e.token for e in endings],
        [e.state for e in endings],
        [e.started_at or None for e in endings],
        [e.finished_at for e in endings],
        [e.code for e in endings],
        [e.error for e in endings],
        [e.exit_code for e in endings],
        [e.armed_ahead for e in endings],
    )


_BELONGS = """
    select t.id, t.token, t.job_id, t.attempt, (t.options->>'retries')::integer
      from unnest($1::bigint[], $2::bigint[]) as given(id, token)
      join mainspring.task t on t.id = any (array[given.id]) and t.token = given.token
"""


async def belongs(conn: Connection, endings: Sequence[Ending]) -> dict[tuple[int, int], tuple[int, int, int | None]]:
    """The job, the number and the task's own retries of these attempts, by task and token; without stale ones."""
    rows = await conn.fetch(_BELONGS, [e.task for e in endings], [e.token for e in endings])
    return {(task, token): (job, number, retries) for task, token, job, number, retries in rows}


async def retry(conn: Connection, attempts: Sequence[Again]) -> list[Ending]:
    """assigned, running → pending, due after each delay. Returns the endings that moved; of a cancelled one not."""
    endings = [a.ending for a in attempts]
    rows = await conn.fetch(
        _RETRY,
        *attempt_columns(endings),
        [a.delay for a in attempts],
        [int(a.costs) for a in attempts],
        [int(a.crash) for a in attempts],
    )
    return among(endings, rows)


# A report that was recorded before, but whose acknowledgement was lost, has left its token behind; any other report
# that moves nothing is stale.
_UNKNOWN = """
    select given.id, given.token from unnest($1::bigint[], $2::bigint[]) as given(id, token)
     where not exists (select from mainspring.task_history h where h.id = given.id and h.token = given.token)
       and not exists (select from mainspring.attempt a where a.task_id = given.id and a.token = given.token)
"""

_KEEP = """
    insert into mainspring.attempt
        (task_id, token, number, state, started_at, finished_at, recorded_at, run_at, error_code, error)
    select id, token, 0, state, to_timestamp(started), to_timestamp(finished), (select mainspring.now()),
           to_timestamp(finished), 'stale_attempt', error
      from unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::float8[], $5::float8[], $6::text[])
        as given(id, token, state, started, finished, error)
"""


async def keep_stale(conn: Connection, endings: Sequence[Ending]) -> list[Ending]:
    """Keep as evidence the endings that no statement has applied, now or before; returns them."""
    rows = await conn.fetch(_UNKNOWN, [e.task for e in endings], [e.token for e in endings])
    unknown = {(task, token) for task, token in rows}
    stale = [e for e in endings if (e.task, e.token) in unknown]
    if stale:
        await conn.execute(
            _KEEP,
            [e.task for e in stale],
            [e.token for e in stale],
            [e.state for e in stale],
            [e.started_at or None for e in stale],
            [e.finished_at for e in stale],
            [f"reported {TaskState(e.state).label}; the attempt was no longer its own" for e in stale],
        )
    return stale


# An attempt that `complete` has ended reports its result afterwards, or none if its handler failed after the commit.
_RESULT = """
    update mainspring.task_history h
       set result = given.result::jsonb, result_due = case when given.has_returned then false end
      from unnest($1::bigint[], $2::bigint[], $3::text[], $4::boolean[]) as given(id, token, result, has_returned)
     where h.id = given.id and h.token = given.token and h.result_due
    returning h.id, h.token
"""


async def add_results(conn: Connection, endings: list[Ending]) -> list[Ending]:
    """Record the results of attempts that `complete` has ended; returns those, which have succeeded."""
    rows = await conn.fetch(
        _RESULT,
        [e.task for e in endings],
        [e.token for e in endings],
        [e.result for e in endings],
        [e.state is TaskState.SUCCEEDED for e in endings],
    )
    return [replace(e, state=TaskState.SUCCEEDED) for e in among(endings, rows)]
