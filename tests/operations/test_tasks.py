"""Tasks: submit, list, show; cancel, pause, resume, restart, retry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.conftest import MakeTask
from tests.operations.conftest import ACTOR, BAD_NAME, echo

from mainspring.errors import InvalidTransition, JobNotFound, ScheduleNotFound, TaskNotFound, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.tasks.states import TaskState
from mainspring.operations import jobs, tasks
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks.enqueue import Submission


async def test_a_task_is_listed_and_shown_with_what_it_waits_for(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    id = await tasks.submit(conn, ACTOR, Submission("hello", '{"day": "mon"}'))
    [listed] = (await tasks.listing(conn, ACTOR, job="hello")).items
    assert (listed.task.id, listed.wait and listed.wait.code) == (id, "no_agents")
    found = await tasks.show(conn, ACTOR, id)
    assert (found.task.args, found.wait, found.attempts, found.children) == ({"day": "mon"}, listed.wait, [], [])
    assert await tasks.status(conn, ACTOR, id) == found.task


async def test_a_list_has_pages_and_filters(conn: Connection, make_task: MakeTask) -> None:
    first, second = await make_task(), await make_task(TaskState.RUNNING)
    assert [listed.task.id for listed in (await tasks.listing(conn, ACTOR)).items] == [second, first]
    assert [listed.task.id for listed in (await tasks.listing(conn, ACTOR, limit=1)).items] == [second]
    assert [listed.task.id for listed in (await tasks.listing(conn, ACTOR, before=second)).items] == [first]
    assert [listed.task.id for listed in (await tasks.listing(conn, ACTOR, states=[TaskState.RUNNING])).items] == [
        second
    ]


async def test_a_filter_that_names_nothing_is_an_error(conn: Connection) -> None:
    with pytest.raises(JobNotFound):
        await tasks.listing(conn, ACTOR, job="none")
    with pytest.raises(ScheduleNotFound):
        await tasks.listing(conn, ACTOR, schedule="none")
    with pytest.raises(TaskNotFound):
        await tasks.listing(conn, ACTOR, parent=9)
    with pytest.raises(ValidationError):
        await tasks.listing(conn, ACTOR, job=BAD_NAME)


async def test_a_pending_task_is_cancelled_at_once_and_can_be_retried(conn: Connection, make_task: MakeTask) -> None:
    id = await make_task()
    assert await tasks.cancel(conn, ACTOR, id) is TaskState.CANCELLED
    await tasks.retry(conn, ACTOR, id)
    assert (await tasks.status(conn, ACTOR, id)).state == "pending"


async def test_a_running_task_is_asked_to_stop(conn: Connection, make_task: MakeTask) -> None:
    id = await make_task(TaskState.RUNNING)
    assert await tasks.cancel(conn, ACTOR, id, kill=True) is TaskState.RUNNING


async def test_a_running_command_is_paused_and_resumed(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    id = await tasks.submit(conn, ACTOR, Submission("hello", "{}"))
    await conn.execute("update mainspring.task set state = 3, token = 1, session = 1, attempt = 1")
    await tasks.pause(conn, ACTOR, id)
    assert (await tasks.status(conn, ACTOR, id)).paused_at is not None
    await tasks.resume(conn, ACTOR, id)
    assert (await tasks.status(conn, ACTOR, id)).paused_at is None
    await tasks.restart(conn, ACTOR, id)


@pytest.mark.parametrize("operation", [tasks.pause, tasks.resume, tasks.restart, tasks.retry])
async def test_a_pending_task_cannot_be(
    conn: Connection, make_task: MakeTask, operation: Callable[[Connection, Actor, int], Awaitable[None]]
) -> None:
    id = await make_task()
    with pytest.raises(InvalidTransition):
        await operation(conn, ACTOR, id)
    assert (await tasks.status(conn, ACTOR, id)).state == "pending"
