"""Control: pause, resume or restart a running task.

Each is a request in the task's row, guarded by its state; the gateway of the agent's server sends it.
Next: store/tasks/session_tasks.py
"""

from __future__ import annotations

from mainspring.errors import InvalidTransition
from mainspring.model.tasks.states import RUNNING, RUNS_AGAIN, CancelMode, TaskState
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import jobs, tasks
from mainspring.store.tasks.transitions import asking_agents

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
        raise InvalidTransition(f"task {task} is {view.state} and not paused; nothing to resume", field="task")


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
        return InvalidTransition(f"task {task} is {view.state} and cannot be {done}; {instead}", field="task")
    definition = (await jobs.find(conn, view.job)).definition
    if definition.placement.broadcast and view.parent is None:
        return InvalidTransition(
            f"task {task} is a broadcast and cannot be {done} as a whole; `mainspring task show {task}` names its runs",
            field="task",
        )
    if needs == "command" and type(definition.run).__name__ != "Command":
        kind = type(definition.run).__name__
        return InvalidTransition(
            f"task {task} runs {view.job!r}, which is {kind}; only commands can be {done}, cancel it instead",
            field="task",
        )
    if needs == "repeatable" and definition.delivery == "at_most_once":
        return InvalidTransition(
            f"task {task} is of an at_most_once job, which never runs twice; cancel it instead", field="task"
        )
    return InvalidTransition(f"task {task} is being stopped and cannot be {done}", field="task")
