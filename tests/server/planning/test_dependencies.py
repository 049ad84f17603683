"""DependenciesLoop: single steps on a real database."""

from __future__ import annotations

import pytest

from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.server.planning.dependencies import DependenciesLoop
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs, tasks, transitions


@pytest.fixture
async def dependencies_loop(database: Database, conn: Connection) -> DependenciesLoop:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    return DependenciesLoop(database)


async def enqueue(conn: Connection, *after: int) -> int:
    return int(await conn.fetchval("select mainspring.enqueue('job', after => $1)", list(after) or None))


async def end(conn: Connection, task: int, state: TaskState = TaskState.SUCCEEDED) -> list[Ending]:
    await conn.execute("update mainspring.task set state = 3, token = 1 where id = $1", task)
    endings = [Ending(task, 1, 1, 1, state, 1.0, 2.0)]
    await transitions.finish(conn, endings)
    return endings


async def state(conn: Connection, task: int) -> str:
    return (await tasks.get(conn, task)).state


async def test_with_nothing_to_settle_it_finds_nothing(conn: Connection, dependencies_loop: DependenciesLoop) -> None:
    assert await dependencies_loop.step() == 0
    dependencies_loop.ended([Ending(1, 1, 1, 1, TaskState.SUCCEEDED, 1.0, 2.0)])
    assert not dependencies_loop.wake.is_set(), "nobody waits for anything"


async def test_who_waits_goes_on_when_the_recorder_tells(conn: Connection, dependencies_loop: DependenciesLoop) -> None:
    parent = await enqueue(conn)
    child = await enqueue(conn, parent)
    woken: list[int] = []
    dependencies_loop.on_released.connect(lambda released: woken.extend(each.position[1] for each in released))
    assert await dependencies_loop.step() == 0
    dependencies_loop.ended(await end(conn, parent))
    assert dependencies_loop.wake.is_set()
    await dependencies_loop.step()
    assert (await state(conn, child), woken) == ("pending", [child])
    assert await dependencies_loop.step() == 0


async def test_what_ended_elsewhere_is_found_by_looking(conn: Connection, dependencies_loop: DependenciesLoop) -> None:
    parent = await enqueue(conn)
    child = await enqueue(conn, parent)
    grandchild = await enqueue(conn, child)
    await end(conn, parent, TaskState.FAILED)
    await dependencies_loop.step()
    assert [await state(conn, task) for task in (child, grandchild)] == ["skipped", "skipped"]
    assert await dependencies_loop.step() == 0


async def test_a_parent_that_nobody_remembers_is_not_waited_for_forever(
    conn: Connection, dependencies_loop: DependenciesLoop
) -> None:
    """Retention dropped it before anybody settled; a step that always finds it would never rest."""
    parent = await enqueue(conn)
    child = await enqueue(conn, parent)
    await end(conn, parent, TaskState.FAILED)
    await conn.execute("delete from mainspring.task_history")
    await dependencies_loop.step()
    assert await dependencies_loop.step() == 0
    assert await state(conn, child) == "skipped"
