"""Waiting for tasks to end."""

from __future__ import annotations

import asyncio

import pytest
from tests.conftest import MakeTask
from tests.operations.conftest import ACTOR

from mainspring.errors import StoreUnavailable, TaskNotFound, WaitTimeout
from mainspring.model.tasks.states import TaskState
from mainspring.operations.work import tasks, waiting
from mainspring.store.postgres.database import Connection, Database


async def test_all_waiters_of_a_task_hear_how_it_ended(
    conn: Connection, database: Database, make_task: MakeTask
) -> None:
    id = await make_task()
    waiters = waiting.Waiting(database)
    both = asyncio.gather(waiters.wait(id, 10), waiters.wait(id, None))
    await asyncio.sleep(0)
    await tasks.cancel(conn, ACTOR, id)
    waiters.hint([id])
    assert [ended.state for ended in await both] == [TaskState.CANCELLED] * 2
    await waiters.close()


async def test_a_wait_that_is_too_short_times_out(database: Database, make_task: MakeTask) -> None:
    with pytest.raises(WaitTimeout, match="has not ended within 0.01 s"):
        await waiting.wait(database, await make_task(), 0.01)


async def test_a_task_that_does_not_exist_is_not_waited_for(database: Database) -> None:
    with pytest.raises(TaskNotFound):
        await waiting.wait(database, 99, None)


async def test_closing_fails_who_still_waits(database: Database, make_task: MakeTask) -> None:
    waiters = waiting.Waiting(database)
    waits = asyncio.ensure_future(waiters.wait(await make_task(), None))
    await asyncio.sleep(0)
    await waiters.close()
    with pytest.raises(StoreUnavailable, match="the application closed"):
        await waits
