"""Dependencies: children become pending when their parents succeed, and are skipped when one does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TERMINAL, TaskState
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import dependencies, jobs, tasks, transitions


@pytest.fixture(autouse=True)
async def job(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"))})


async def enqueue(conn: Connection, *after: int) -> int:
    return int(await conn.fetchval("select mainspring.enqueue('job', after => $1)", list(after) or None))


async def end(conn: Connection, task: int, state: TaskState = TaskState.SUCCEEDED) -> None:
    await conn.execute("update mainspring.task set state = 3, token = 1 where id = $1", task)
    assert len(await transitions.finish(conn, [Ending(task, 1, 1, 1, state, 1.0, 2.0)])) == 1


async def states(conn: Connection, *given: int) -> list[str]:
    return [(await tasks.get(conn, task)).state for task in given]


async def edges(conn: Connection) -> int:
    return int(await conn.fetchval("select count(*) from mainspring.dependency"))


async def test_a_child_waits_out_of_every_claims_way(conn: Connection) -> None:
    parent = await enqueue(conn)
    child = await enqueue(conn, parent)
    view = await tasks.get(conn, child)
    assert (view.state, view.waiting_for) == ("blocked", [parent])
    assert await conn.fetchval("select pool < 0 from mainspring.task where id = $1", child)


async def test_a_child_becomes_pending_when_its_last_parent_has_succeeded(conn: Connection) -> None:
    first, second = await enqueue(conn), await enqueue(conn)
    child = await enqueue(conn, first, second, first)
    await end(conn, first)
    assert len(await dependencies.settle(conn, [first])) == 0
    assert (await tasks.get(conn, child)).waiting_for == [second]
    await end(conn, second)
    assert len(await dependencies.settle(conn, [first, second])) == 1
    row: Any = await conn.fetchrow("select * from mainspring.task where id = $1", child)
    assert (row["state"], row["waiting_for"], row["pool"] > 0) == (1, 0, True)
    assert row["run_at"] > row["created_at"], "due from now, not from when it was blocked"
    assert await edges(conn) == 0


async def test_both_parents_in_one_step_count_both(conn: Connection) -> None:
    parents = [await enqueue(conn) for _ in range(3)]
    child = await enqueue(conn, *parents)
    for parent in parents:
        await end(conn, parent)
    assert len(await dependencies.settle(conn, parents)) == 1
    assert await states(conn, child) == ["pending"]


async def test_a_child_that_was_to_run_later_still_does(conn: Connection) -> None:
    parent = await enqueue(conn)
    child = await conn.fetchval("select mainspring.enqueue('job', after => $1, delay => '1 hour')", [parent])
    await end(conn, parent)
    await dependencies.settle(conn, [parent])
    assert await conn.fetchval(
        "select run_at > mainspring.now() + interval '59 min' from mainspring.task where id = $1", child
    )


@pytest.mark.parametrize("state", sorted(TERMINAL - {TaskState.SUCCEEDED}))
async def test_a_parent_that_did_not_succeed_skips_its_children_and_theirs(conn: Connection, state: TaskState) -> None:
    parent, other = await enqueue(conn), await enqueue(conn)
    child = await enqueue(conn, parent, other)
    grandchild = await enqueue(conn, child)
    untouched = await enqueue(conn, other)
    await end(conn, parent, state)
    assert len(await dependencies.settle(conn, [parent])) == 0
    assert await states(conn, child, grandchild, untouched) == ["skipped", "skipped", "blocked"]
    view = await tasks.get(conn, child)
    assert (view.error_code, view.error) == ("dependency", f"task {parent}, which it waits for, did not succeed")
    assert await edges(conn) == 1


async def test_settling_again_changes_nothing(conn: Connection) -> None:
    good, bad = await enqueue(conn), await enqueue(conn)
    children = [await enqueue(conn, good), await enqueue(conn, bad)]
    await end(conn, good)
    await end(conn, bad, TaskState.FAILED)
    assert [len(await dependencies.settle(conn, [good, bad])) for _ in range(2)] == [1, 0]
    assert await states(conn, *children) == ["pending", "skipped"]


async def test_a_parent_that_still_lives_settles_nothing(conn: Connection) -> None:
    parent = await enqueue(conn)
    child = await enqueue(conn, parent)
    assert len(await dependencies.settle(conn, [parent])) == 0
    assert await states(conn, child) == ["blocked"]
    assert await dependencies.left_over(conn, 10) == []


async def test_unsettled_dependencies_are_found(conn: Connection) -> None:
    parents = [await enqueue(conn) for _ in range(3)]
    for parent in parents:
        await enqueue(conn, parent)
        await enqueue(conn, parent)
    await end(conn, parents[0])
    await end(conn, parents[2], TaskState.FAILED)
    assert sorted(await dependencies.left_over(conn, 10)) == [parents[0], parents[2]]
    assert len(await dependencies.left_over(conn, 1)) == 1


async def test_two_settlers_at_once_count_each_parent_once(dsn: str, conn: Connection) -> None:
    parents = [await enqueue(conn) for _ in range(4)]
    child = await enqueue(conn, *parents)
    for parent in parents:
        await end(conn, parent)
    connections = [await Database(dsn).connect() for _ in range(4)]
    woken = await asyncio.gather(
        *(dependencies.settle(c, [parents[number], parents[number - 1]]) for number, c in enumerate(connections))
    )
    for connection in connections:
        await connection.close()
    assert sum(map(len, woken)) == 1
    assert await states(conn, child) == ["pending"]


async def test_a_cancelled_child_leaves_no_edge_behind(conn: Connection) -> None:
    parent = await enqueue(conn)
    child = await enqueue(conn, parent)
    await tasks.cancel(conn, child)
    assert await edges(conn) == 0
