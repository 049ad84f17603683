"""Tasks: submit, list, show; cancel, pause, resume, restart, retry.

Next: store/tasks/enqueue.py
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainspring.model.access.actors import Actor
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.waits import Wait
from mainspring.model.words.names import check_path_name
from mainspring.store.limits.waits import waits as find_waits
from mainspring.store.postgres.connection import Connection, is_producer
from mainspring.store.schedules import schedules
from mainspring.store.tasks import broadcasts, control, enqueue, jobs, tasks
from mainspring.store.tasks.broadcasts import ChildView
from mainspring.store.tasks.enqueue import Submission
from mainspring.store.tasks.tasks import AttemptView, TaskView


class ListedTask(msgspec.Struct, frozen=True):
    task: TaskView
    wait: Wait | None  # why no agent takes it, though it is due


class ListedTasks(msgspec.Struct, frozen=True):
    items: list[ListedTask]
    next: int | None  # where the next page continues: `before` this id; None: there is none


class TaskDetail(msgspec.Struct, frozen=True):
    task: TaskView
    wait: Wait | None
    attempts: list[AttemptView]
    children: list[ChildView]  # the runs of a broadcast


async def submit(conn: Connection, actor: Actor, submission: Submission) -> int:
    """Returns the id of the new task, or of the one that has the submission's key."""
    id: int = await enqueue.submit(conn, submission)
    return id


async def listing(
    conn: Connection,
    actor: Actor,
    *,
    job: str | None = None,
    schedule: str | None = None,
    parent: int | None = None,
    states: Sequence[TaskState] = (),
    before: int | None = None,
    limit: int = 50,
) -> ListedTasks:
    """The newest first; a page may be short and still have a next one.

    A job, schedule or parent that does not exist is an error, not an empty list. A producer may not
    look them up.
    """
    if job is not None and not is_producer(conn):
        await jobs.find(conn, check_path_name(job, field="job"))
    if schedule is not None and not is_producer(conn):
        await schedules.find(conn, check_path_name(schedule, field="schedule"))
    if parent is not None:
        await tasks.get(conn, parent)
    found = await tasks.listing(
        conn, job=job, states=states, before=before, limit=limit, schedule=schedule, parent=parent
    )
    waiting = [view.id for view in found.tasks if view.state in (TaskState.PENDING.label, TaskState.ASSIGNED.label)]
    waits = await find_waits(conn, waiting) if waiting else {}
    return ListedTasks([ListedTask(view, waits.get(view.id)) for view in found.tasks], found.next)


async def show(conn: Connection, actor: Actor, id: int) -> TaskDetail:
    return TaskDetail(
        await tasks.get(conn, id),
        (await find_waits(conn, [id])).get(id),
        await tasks.attempts(conn, id),
        await broadcasts.children(conn, id),
    )


async def status(conn: Connection, actor: Actor, id: int) -> TaskView:
    """The task alone, as it stands."""
    return await tasks.get(conn, id)


async def cancel(conn: Connection, actor: Actor, id: int, *, kill: bool = False) -> TaskState:
    """End it: at once if no agent has it, else by a request to its agent; with `kill` it gets no grace."""
    return await tasks.cancel(conn, id, kill=kill)


async def pause(conn: Connection, actor: Actor, id: int) -> None:
    """Suspend the processes of a running command."""
    await control.pause(conn, id)


async def resume(conn: Connection, actor: Actor, id: int) -> None:
    await control.resume(conn, id)


async def restart(conn: Connection, actor: Actor, id: int) -> None:
    """Stop the running attempt and run the task again at once, which costs no attempt."""
    await control.restart(conn, id)


async def retry(conn: Connection, actor: Actor, id: int) -> None:
    """Run a task again that ended without success, attempts counted anew."""
    await tasks.run_again(conn, id)
