"""Control: pause, resume or restart a running task; another priority or time for one that no agent has; skip one that
has not started.

The former are requests in the task's row, guarded by its state; the gateway of the agent's server sends them.
Of a change, what the task waits for decides where it goes:

    served                   stays in its pool; a hint lowers the floor that claims start from
    gated                    stays at its gate, in the order of that
    parked                   returns to its gate: those parked for a key are released in their order, due or not
    released, with slots     keeps them if it is due, else returns to its gate and frees them for the next
    blocked                  stays blocked, for its dependencies or its turn
    daemon, run of a broadcast   refused: their schedule, or their broadcast, decides
A skip:

    blocked, pending → skipped     at once; its children follow as those of any task that did not succeed
    assigned                       its agent is asked for a recall, as by store/schedules/revoke.py; `options.skip` says
                                   by whom and why. Given back, it ends as skipped (`confirm_skips`); if it starts
                                   first, the recall has come too late, and it runs
    its agent is lost meanwhile    it may have started: the rescuer ends it as cancelled (store/tasks/rescue.py)
Next: store/tasks/session_tasks.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from mainspring.errors import InvalidTransition
from mainspring.model.tasks.pools import IS_DAEMON, IS_NOT_DAEMON, IS_PARKED
from mainspring.model.tasks.states import (
    ACTIVE,
    ASSIGNED,
    IS_WAITING,
    LIVE,
    RUNNING,
    RUNS_AGAIN,
    SKIP,
    SKIP_ARMED,
    TERMINAL,
    CancelMode,
    TaskState,
)
from mainspring.store.postgres import hints
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import readable
from mainspring.store.tasks import jobs, partitions, tasks
from mainspring.store.tasks.transitions import asking_agents, into_history, noted
from mainspring.store.views.task_views import TaskView

_PAUSE = asking_agents(f"""
    update mainspring.task t set paused_at = coalesce(t.paused_at, mainspring.now())
      from mainspring.job j
     where t.id = $1 and t.state = {RUNNING:d} and t.session is not null and t.cancel_at is null
       and j.id = t.job_id and j.definition->'run'->>'type' = 'command'
""")
_RESUME = asking_agents(f"""
    update mainspring.task t
       set paused_at = null,            -- the time since then does not count for its deadline
           paused_for = coalesce(t.paused_for, interval '0') + (mainspring.now() - t.paused_at)
     where id = $1 and state = {RUNNING:d} and paused_at is not null
""")
_RESTART = asking_agents(f"""
    update mainspring.task t set cancel_at = mainspring.now(), cancel_mode = {CancelMode.RESTART:d}
      from mainspring.job j
     where t.id = $1 and t.state = {RUNNING:d} and t.session is not null
       and (t.cancel_at is null or t.cancel_mode in {RUNS_AGAIN})
       and j.id = t.job_id and coalesce(j.definition->>'delivery', '') <> 'at_most_once'
""")


async def pause(conn: Connection, task: int) -> None:
    """Stop the processes of a running command for a while. InvalidTransition for any other task."""
    if not await conn.fetch(_PAUSE, task):
        raise await _refusal(conn, task, "paused", "command")


async def resume(conn: Connection, task: int) -> None:
    """Let a paused task continue."""
    if not await conn.fetch(_RESUME, task):
        view = await tasks.get(conn, task)
        raise tasks.refused(view, f"is {view.state} and not paused; nothing to resume", {RUNNING})


async def restart(conn: Connection, task: int) -> None:
    """Stop the running attempt and run the task again at once; that costs no attempt."""
    if not await conn.fetch(_RESTART, task):
        raise await _refusal(conn, task, "restarted", "repeatable")


async def _refusal(conn: Connection, task: int, done: str, needs: str) -> InvalidTransition:
    """Why a task cannot be paused or restarted, and what can be done instead."""
    view = await tasks.get(conn, task)
    if view.state != RUNNING.label:
        instead = "`mainspring task retry` runs it again" if view.finished_at else "only one that runs can be"
        if view.state == TaskState.SUCCEEDED.label:
            instead = "`mainspring task submit` makes another"
        return tasks.refused(view, f"is {view.state} and cannot be {done}; {instead}", {RUNNING})
    definition = (await jobs.find(conn, view.job)).definition
    if definition.placement.broadcast and view.parent is None:
        why = f"is a broadcast and cannot be {done} as a whole; `mainspring task show {task}` names its runs"
    elif needs == "command" and type(definition.run).__name__ != "Command":
        kind = type(definition.run).__name__
        why = f"runs {view.job!r}, which is {kind}; only commands can be {done}, cancel it instead"
    elif needs == "repeatable" and definition.delivery == "at_most_once":
        why = "is of an at_most_once job, which never runs twice; cancel it instead"
    else:
        why = f"is being stopped and cannot be {done}"
    return tasks.refused(view, why, {RUNNING})


# ── what waits ──────────────────────────────────────────────────────────────────────────────────

_IS_SINGLE = f"t.{IS_NOT_DAEMON} and t.parent_id is null"  # of a daemon or a broadcast, the whole decides


# The row lock makes a claim, a release or a second change wait for this statement or pass the row by, so that what is
# decided here about its place is still true when it is written.
def _change(which: str, lock: str = "") -> str:
    return f"""
        with was as materialized (
            select t.id, t.pool, t.gate, t.job_id, wanted.run_at, t.priority as old_priority, t.run_at as old_run_at,
                   t.expires_at as old_expires_at,
                   t.{IS_PARKED} or (t.job_slot is not null or t.key_slot is not null)
                       and wanted.run_at > (select mainspring.now()) as returns,
                   t.job_slot is not null or t.key_slot is not null as has_slots,
                   case when t.key_slot is not null then t.concurrency_key end as held_key
              from mainspring.task t
             cross join lateral (
                 select case when $4 then (select mainspring.now()) else coalesce($3::timestamptz, t.run_at) end
                        as run_at
             ) wanted
             where {which} and t.{IS_WAITING} and {_IS_SINGLE}
               for update of t {lock}
        ), moved as (
            update mainspring.task t
               set priority = coalesce($2::smallint, t.priority), run_at = was.run_at,
                   -- So long after its time as before. In seconds: days would follow a change of clocks.
                   expires_at = t.expires_at
                              + make_interval(secs => extract(epoch from was.run_at - t.run_at)::float8),
                   pool = case when was.returns then t.gate else t.pool end,
                   job_slot = case when not was.returns then t.job_slot end,
                   key_slot = case when not was.returns then t.key_slot end
              from was
             where t.id = was.id and t.{IS_WAITING}
            returning t.id, t.state, t.pool, t.priority, t.run_at, t.expires_at, was.old_priority, was.old_run_at,
                      was.old_expires_at
        )
        select state, id, priority, run_at, expires_at, old_priority, old_run_at, old_expires_at,
               ({hints.due("moved")}) as hints,
               (select count(mainspring.slot_freed(was.gate, was.job_id, was.held_key))
                  from was where was.returns and was.has_slots) as freed
          from moved
    """


_CHANGE, _CHANGE_ONES = _change("t.id = $1"), _change("t.id = any($1::bigint[])", "skip locked")

_IS_REPLICA = f"select true from mainspring.task t where t.id = $1 and t.{IS_DAEMON}"


class Waiting(NamedTuple):
    """What can be changed of a task that waits."""

    priority: int
    run_at: datetime
    expires_at: datetime | None


class Changed(NamedTuple):
    state: TaskState
    before: Waiting
    after: Waiting


async def change(
    conn: Connection, task: int, *, priority: int | None = None, run_at: datetime | None = None, now: bool = False
) -> Changed:
    """Change a task that waits; with `now` it is due at once. InvalidTransition if an agent has it, or it has ended."""
    waiting = LIVE - ACTIVE
    for _ in range(100):  # it may be given back between the two statements
        rows = await readable(conn, _CHANGE, task, priority, run_at, now)
        if rows:
            return _changed(rows[0])
        view = await tasks.get(conn, task)
        if view.parent is not None:
            raise tasks.refused(view, f"is a run of the broadcast {view.parent}, which decides when it runs", ())
        if await conn.fetchval(_IS_REPLICA, task):
            raise tasks.refused(view, "is a replica of a daemon, whose schedule decides when it runs", ())
        if TaskState.from_label(view.state) not in waiting:
            why = "an agent has it" if view.finished_at is None else "it is too late to change it"
            raise tasks.refused(view, f"is {view.state}; {why}", waiting)
    raise InvalidTransition(f"task {task} changes too fast to be edited; try again", field="task")


async def change_each(conn: Connection, given: Sequence[int], *, priority: int | None, now: bool) -> dict[int, Changed]:
    """`change` for many, in one statement that waits for no lock; returns those that are changed."""
    rows = await readable(conn, _CHANGE_ONES, given, priority, None, now)
    return {row["id"]: _changed(row) for row in rows}


def _changed(row: Mapping[str, Any]) -> Changed:
    before = Waiting(row["old_priority"], row["old_run_at"], row["old_expires_at"])
    return Changed(TaskState(row["state"]), before, Waiting(row["priority"], row["run_at"], row["expires_at"]))


# ── skip ────────────────────────────────────────────────────────────────────────────────────────

SKIPPED_FROM = SKIP.sources | SKIP_ARMED.sources


def _skip_waiting(which: str) -> str:
    return f"""
        with ended as (
            delete from mainspring.task t where {which} and t.{IS_WAITING} and {_IS_SINGLE} returning t.*
        ), edges as (
            delete from mainspring.dependency d using ended where d.child = ended.id
        ), {noted("ended", f"{SKIP.target:d}")}
        {into_history("ended", SKIP, "skipped", "$2::text")}
        returning id
    """


def _ask_back(which: str) -> str:
    return asking_agents(f"""
        update mainspring.task t
           set cancel_at = coalesce(t.cancel_at, mainspring.now()), cancel_mode = {CancelMode.RECALL:d},
               options = coalesce(t.options, '{{}}') || jsonb_build_object('skip', $2::text)
         where {which} and t.state = {ASSIGNED:d} and {_IS_SINGLE}
           and (t.cancel_at is null or t.cancel_mode = {CancelMode.RECALL:d})
    """)


_ONE, _FREE = "t.id = $1", tasks.FREE
_SKIP_WAITING, _ASK_BACK = _skip_waiting(_ONE), _ask_back(_ONE)
_SKIP_WAITING_ONES, _ASK_BACK_ONES = _skip_waiting(_FREE), _ask_back(_FREE)


async def skip(conn: Connection, task: int, why: str) -> TaskState:
    """Returns the state that the task is in: skipped, or assigned if its agent is asked to give it back.

    `why` is what its error will say. InvalidTransition if it runs, or has ended.
    """
    for _ in range(100):  # it may be claimed, or requeued, between the statements
        if await partitions.write(conn, lambda: conn.fetchval(_SKIP_WAITING, task, why)) is not None:
            return TaskState.SKIPPED
        if await conn.fetchrow(_ASK_BACK, task, why) is not None:
            return ASSIGNED
        view = await tasks.get(conn, task)
        if (refusal := await _why_not_skipped(conn, view)) is not None:
            raise refusal
    raise InvalidTransition(f"task {task} changes too fast to be skipped; try again", field="task")


async def skip_each(conn: Connection, given: Sequence[int], why: str) -> set[int]:
    """`skip` for many, in two statements that wait for no lock; returns those that are skipped or asked back."""
    rows = await partitions.write(conn, lambda: conn.fetch(_SKIP_WAITING_ONES, given, why))
    done = {row["id"] for row in rows}
    left = [task for task in given if task not in done]
    return done | {row["id"] for row in await conn.fetch(_ASK_BACK_ONES, left, why)} if left else done


_BEING_STOPPED = f"""
    select t.{IS_DAEMON} as daemon, t.cancel_at is not null and t.cancel_mode is distinct from {CancelMode.RECALL:d}
           as is_stopping
      from mainspring.task t where t.id = $1
"""


async def _why_not_skipped(conn: Connection, view: TaskView) -> InvalidTransition | None:
    """Why it cannot be skipped; None: it has changed meanwhile, and may be tried again."""
    state = TaskState.from_label(view.state)
    if state in TERMINAL:
        return tasks.refused(view, f"has already ended ({view.state}); nothing to skip", SKIPPED_FROM)
    if view.parent is not None:
        return tasks.refused(view, f"is a run of the broadcast {view.parent}; cancel it instead", ())
    row = await conn.fetchrow(_BEING_STOPPED, view.id)
    if row is not None and row["daemon"]:
        return tasks.refused(view, "is a replica of a daemon; `mainspring daemon stop` ends that", ())
    if state is RUNNING:
        instead = f"`mainspring task cancel {view.id}` stops it"
        return tasks.refused(view, f"is running; only what has not started can be skipped. {instead}", SKIPPED_FROM)
    if row is not None and row["is_stopping"]:
        return tasks.refused(view, "is being cancelled", SKIPPED_FROM)
    return None


_CONFIRM_SKIPS = f"""
    with given as (select * from unnest($1::bigint[], $2::bigint[]) as given(id, token)), ended as (
        delete from mainspring.task t using given
         where t.id = any (array[given.id]) and t.token = given.token and t.{SKIP_ARMED.leaves}
           and t.cancel_mode = {CancelMode.RECALL:d} and t.options ? 'skip'
        returning t.*
    ), {noted("ended", f"{SKIP_ARMED.target:d}")}
    {into_history("ended", SKIP_ARMED, "skipped", "options->>'skip'")}
    returning id
"""


async def confirm_skips(conn: Connection, given: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """An agent gave these back unstarted: end those that were to be skipped. Returns them."""
    return [row["id"] for row in await partitions.write(conn, lambda: conn.fetch(_CONFIRM_SKIPS, given, tokens))]
