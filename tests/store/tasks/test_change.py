"""Change: another priority or time for tasks that no agent has, wherever they wait."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.conftest import Eventually, MakeTask

from mainspring.errors import InvalidTransition, TaskNotFound
from mainspring.model.tasks.claim_floors import parse_released
from mainspring.model.tasks.define_job import define
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.pools import PARKED
from mainspring.model.tasks.states import ACTIVE, LIVE, TaskState
from mainspring.store.limits import release
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs, tasks
from mainspring.store.tasks.control import change

FAR = datetime(2199, 1, 1, tzinfo=UTC)


async def row(conn: Connection, task: int) -> Any:
    return await conn.fetchrow("select * from mainspring.task where id = $1", task)


async def limited(conn: Connection, number: int, **limits: Any) -> list[int]:
    """Tasks of a job with limits, in order, of which the gate has released as many as it allows."""
    await jobs.register(conn, {"job": define(Python("job"), limits)})  # type: ignore[arg-type]
    made = [await conn.fetchval("select mainspring.enqueue('job')") for _ in range(number)]
    await open_gates(conn)
    return made


async def open_gates(conn: Connection) -> None:
    for gate in await release.look(conn):
        await release.release(conn, gate, 10, ahead=0.0)


@pytest.mark.parametrize("state", sorted(LIVE - ACTIVE))
async def test_what_waits_gets_another_priority_and_time_and_stays_where_it_is(
    conn: Connection, make_task: MakeTask, state: TaskState
) -> None:
    task = await make_task(state)
    before = await row(conn, task)
    assert (await change(conn, task, priority=9, run_at=FAR)).state is state
    after = await row(conn, task)
    assert (after["priority"], after["run_at"]) == (9, FAR)
    kept = set(after.keys()) - {"priority", "run_at"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert (await change(conn, task, now=True)).state is state
    assert (await row(conn, task))["run_at"] <= await conn.fetchval("select mainspring.now()")
    assert (await row(conn, task))["priority"] == 9


@pytest.mark.parametrize("state", sorted(set(TaskState) - (LIVE - ACTIVE)))
async def test_what_an_agent_has_or_has_ended_is_left_alone(
    conn: Connection, make_task: MakeTask, state: TaskState
) -> None:
    if state in ACTIVE:
        task = await make_task(state)
    else:
        task = await make_task()
        await tasks.cancel(conn, task)
        await conn.execute("update mainspring.task_history set state = $2 where id = $1", task, int(state))
    with pytest.raises(InvalidTransition) as refused:
        await change(conn, task, priority=9)
    assert refused.value.details == {"state": state.label, "allowed": ["blocked", "pending"]}
    assert (await tasks.get(conn, task)).priority == 5


async def test_replicas_and_runs_of_broadcasts_are_not_changed(conn: Connection, make_task: MakeTask) -> None:
    replica, broadcast = await make_task(pool=0), await make_task()
    run = await make_task(parent_id=broadcast)
    for task in (replica, run):
        with pytest.raises(InvalidTransition, match="decides when it runs"):
            await change(conn, task, priority=9)
    with pytest.raises(TaskNotFound):
        await change(conn, 999, priority=9)


async def test_a_task_that_becomes_due_or_more_important_is_announced_with_its_position(
    dsn: str, conn: Connection
) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    task = await conn.fetchval("select mainspring.enqueue('job', run_at => $1)", FAR)
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await Database(dsn).connect()
    await listener.add_listener("mainspring", lambda *hint: heard.put_nowait(str(hint[-1])))
    await change(conn, task, priority=7)  # it is far: no floor lies above it
    for given in ({"now": True}, {"priority": 9}, {"run_at": datetime(2020, 1, 1, tzinfo=UTC)}):
        await change(conn, task, **given)
        released = parse_released((await asyncio.wait_for(heard.get(), 20)).removeprefix("due "))
        assert released is not None
        stored = await row(conn, task)
        assert (released.pool, released.priority, released.position) == (
            stored["pool"],
            stored["priority"],
            (stored["run_at"].timestamp(), task),
        )
    assert heard.empty()
    await listener.close()


async def test_a_released_task_that_is_put_off_gives_its_slot_to_the_next(conn: Connection) -> None:
    first, second = await limited(conn, 2, max_running=1)
    assert [(await row(conn, task))["job_slot"] for task in (first, second)] == [0, None]
    gate = (await row(conn, second))["pool"]
    await change(conn, first, priority=9)
    assert (await row(conn, first))["job_slot"] == 0, "it is due, and keeps its slot"
    await change(conn, first, run_at=FAR)
    assert ((await row(conn, first))["job_slot"], (await row(conn, first))["pool"]) == (None, gate)
    await open_gates(conn)
    assert [(await row(conn, task))["job_slot"] for task in (first, second)] == [None, 0]


async def test_a_parked_task_that_is_put_off_does_not_stand_in_the_way_of_the_next(conn: Connection) -> None:
    first, second, third = await limited(conn, 3, concurrency_key="one")
    assert [(await row(conn, task))["pool"] == PARKED for task in (first, second, third)] == [False, True, True]
    await change(conn, second, run_at=FAR)
    assert (await row(conn, second))["pool"] == (await row(conn, first))["gate"], "it waits at its gate"
    await tasks.cancel(conn, first)  # frees the key for the next of those that are parked
    await open_gates(conn)
    assert (await row(conn, third))["key_slot"] == 0
    assert (await row(conn, second))["key_slot"] is None
    await change(conn, second, now=True)
    await open_gates(conn)
    assert (await row(conn, second))["pool"] == PARKED
    await tasks.cancel(conn, third)
    await open_gates(conn)
    assert (await row(conn, second))["key_slot"] == 0


async def test_a_task_that_waits_at_its_gate_passes_it_by_its_new_priority(conn: Connection) -> None:
    first, second, third = await limited(conn, 3, max_running=1)
    await change(conn, third, priority=9)
    await tasks.cancel(conn, first)
    await open_gates(conn)
    assert [(await row(conn, task))["job_slot"] for task in (second, third)] == [None, 0]


async def test_a_change_waits_for_a_claim_of_the_same_task_and_then_leaves_it(
    conn: Connection, make_task: MakeTask, dsn: str, eventually: Eventually
) -> None:
    task = await make_task()
    claimer = await Database(dsn).connect()
    async with claimer.transaction():
        await claimer.execute(
            "update mainspring.task set state = 2, token = 1, session = 1, attempt = 1 where id = $1", task
        )
        changing = asyncio.create_task(change(conn, task, run_at=FAR))
        waits = "select exists (select from pg_locks where pid = $1 and not granted)"
        await eventually(lambda: claimer.fetchval(waits, conn.get_server_pid()))
    with pytest.raises(InvalidTransition):
        await changing
    await claimer.close()
    assert (await row(conn, task))["run_at"] < FAR
