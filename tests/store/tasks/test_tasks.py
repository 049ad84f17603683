"""Tasks as people see them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from tests.cluster import OWNER

from mainspring.errors import InvalidTransition, TaskNotFound
from mainspring.model.messages import Chunk, Ending
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.states import LIVE, TERMINAL, TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.search import search
from mainspring.store.search.filters import Filters
from mainspring.store.search.whole import whole
from mainspring.store.tasks import claims, session_tasks, tasks, transitions

MakeTask = Callable[..., Awaitable[int]]

RETRIED = sorted(TERMINAL - {TaskState.SUCCEEDED})


async def ended(conn: Connection, make_task: MakeTask, state: TaskState, **fields: Any) -> int:
    task = await make_task(TaskState.RUNNING, token=5, session=1, attempt=2, crashes=1)
    await transitions.finish(conn, [Ending(task, 5, 1, 2, state, 1_790_000_000.0, 1_790_000_001.0, **fields)])
    return task


async def test_a_task_names_the_agent_that_has_it_or_ended_it(conn: Connection, make_task: MakeTask) -> None:
    session = await agents.begin(conn, agents.AgentInfo("alpha", 10, {}), 15.0)
    running = await make_task(TaskState.RUNNING, token=5, session=session)
    finished = await make_task(TaskState.RUNNING, token=6, session=session)
    await transitions.finish(conn, [Ending(finished, 6, 1, 1, TaskState.SUCCEEDED, 1.0, 2.0)])
    waiting = await make_task()
    child = await make_task(target="beta")
    wanted = {running: "alpha", finished: "alpha", waiting: None, child: "beta"}
    listed = (await search.search(conn, Filters(), limit=10)).tasks
    assert {view.id: view.agent for view in listed} == wanted
    assert {task: (await tasks.get(conn, task)).agent for task in wanted} == wanted
    assert [view.only_on for view in listed] == ["beta", None, None, None]
    await conn.execute("delete from mainspring.agent")  # retention, which keeps sessions longer than what they did
    assert (await tasks.get(conn, finished)).agent is None


async def test_a_task_is_found_live_and_finished(conn: Connection, make_task: MakeTask) -> None:
    for state in sorted(LIVE):
        view = await tasks.get(conn, await make_task(state))
        assert (view.state, view.job, view.args, view.result, view.finished_at) == (state.label, "job", {}, None, None)
    for state in sorted(TERMINAL):
        view = await tasks.get(conn, await ended(conn, make_task, state, result="[1]", code="c", error="e"))
        assert (view.state, view.result, view.error_code, view.error) == (state.label, [1], "c", "e")


async def test_lateness_is_the_start_minus_the_plan(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.RUNNING)
    await conn.execute(
        "update mainspring.task set run_at = '2026-11-15Z', started_at = '2026-11-15 00:00:00.0125Z' where id = $1",
        task,
    )
    assert (await tasks.get(conn, task)).lateness_ms == 12.5


@pytest.mark.parametrize("task", [0, -1, 10**15])
async def test_a_task_that_is_not_there_is_named(conn: Connection, task: int) -> None:
    for call in (tasks.get, tasks.cancel, tasks.run_again):
        with pytest.raises(TaskNotFound, match=str(task)):
            await call(conn, task)


async def test_a_task_of_a_deleted_job_is_still_shown(conn: Connection, make_task: MakeTask) -> None:
    task = await ended(conn, make_task, TaskState.FAILED)
    await conn.execute("delete from mainspring.job")
    assert (await tasks.get(conn, task)).job == "(deleted)"


# ── cancel ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", [TaskState.BLOCKED, TaskState.PENDING])
async def test_a_task_that_waits_is_cancelled_at_once(conn: Connection, make_task: MakeTask, state: TaskState) -> None:
    task = await make_task(state, checkpoint='{"at": 1}', key="k")
    assert await tasks.cancel(conn, task) is TaskState.CANCELLED
    view = await tasks.get(conn, task)
    assert (view.state, view.error_code, view.checkpoint, view.key) == ("cancelled", "cancelled", {"at": 1}, "k")
    assert view.started_at is None
    assert await tasks.still_open(conn, [task]) == set()


@pytest.mark.parametrize("state", [TaskState.ASSIGNED, TaskState.RUNNING])
async def test_a_task_that_an_agent_has_is_asked_for(
    dsn: str, conn: Connection, make_task: MakeTask, state: TaskState
) -> None:
    task = await make_task(state)
    heard: asyncio.Queue[object] = asyncio.Queue()
    listener = await Database(dsn).connect()
    await listener.add_listener("mainspring", lambda *hint: heard.put_nowait(hint[-1]))
    assert await tasks.cancel(conn, task) is state
    assert await asyncio.wait_for(heard.get(), 20) == "cancel"
    await listener.close()
    first = await conn.fetchval("select cancel_at from mainspring.task where id = $1", task)
    assert first is not None
    await tasks.cancel(conn, task)
    assert await conn.fetchval("select cancel_at from mainspring.task where id = $1", task) == first
    assert (await tasks.get(conn, task)).state == state.label


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_a_task_that_has_ended_cannot_be_cancelled(
    conn: Connection, make_task: MakeTask, state: TaskState
) -> None:
    task = await ended(conn, make_task, state)
    with pytest.raises(InvalidTransition, match=rf"task {task} has already"):
        await tasks.cancel(conn, task)
    assert (await tasks.get(conn, task)).state == state.label


# ── run again ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", RETRIED)
async def test_what_ended_without_success_can_be_run_again(
    conn: Connection, make_task: MakeTask, state: TaskState
) -> None:
    task = await ended(conn, make_task, state, code="c", error="e")
    await tasks.run_again(conn, task)
    row: Any = await conn.fetchrow("select * from mainspring.task where id = $1", task)
    assert (row["state"], row["attempt"], row["crashes"], row["token"], row["session"]) == (1, 0, 0, None, None)
    assert await conn.fetchval("select count(*) from mainspring.task_history") == 0
    [attempt] = await tasks.attempts(conn, task)
    assert (attempt.number, attempt.state, attempt.error_code) == (2, state.label, "c")


async def test_a_new_attempt_after_running_again_has_a_higher_token(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task()
    pool = await conn.fetchval("select pool from mainspring.job")
    tokens = []
    for _ in range(3):
        claim = await claims.claim(conn, OWNER, pool, [1], 1, [BOTTOM] * 10, ahead=60.0)
        [armed] = claim.tasks[1]
        assert armed.attempt == 1
        tokens.append(armed.token)
        await transitions.finish(conn, [Ending(task, armed.token, 1, 1, TaskState.FAILED, 1.0, 2.0)])
        await tasks.run_again(conn, task)
    assert tokens == sorted(set(tokens))
    assert [attempt.token for attempt in await tasks.attempts(conn, task)] == tokens


@pytest.mark.parametrize("state", [*sorted(LIVE), TaskState.SUCCEEDED])
async def test_what_lives_or_succeeded_cannot_be_run_again(
    conn: Connection, make_task: MakeTask, state: TaskState
) -> None:
    task = await (make_task(state) if state in LIVE else ended(conn, make_task, state))
    with pytest.raises(InvalidTransition, match=f"is {state.label}"):
        await tasks.run_again(conn, task)
    assert (await tasks.get(conn, task)).state == state.label


async def test_two_concurrent_retries_by_hand_run_a_task_once(dsn: str, conn: Connection, make_task: MakeTask) -> None:
    task = await ended(conn, make_task, TaskState.FAILED)
    connections = [await Database(dsn).connect() for _ in range(4)]
    outcome = await asyncio.gather(*(tasks.run_again(c, task) for c in connections), return_exceptions=True)
    for connection in connections:
        await connection.close()
    assert sorted(type(o).__name__ for o in outcome) == ["InvalidTransition"] * 3 + ["NoneType"]
    assert len(await tasks.attempts(conn, task)) == 1


# ── attempts, output, counts ────────────────────────────────────────────────────────────────────


async def test_attempts_come_in_order_with_the_one_that_runs_last(conn: Connection, make_task: MakeTask) -> None:
    session = await agents.begin(conn, agents.AgentInfo("worker-1", 1, {}, None), 60.0)
    task = await make_task(TaskState.RUNNING, token=5, session=session)
    failed = Ending(task, 5, 1, 1, TaskState.TIMED_OUT, 1.0, 2.0, code="timeout")
    await transitions.retry(conn, [Again(failed, 0.0, costs=True)])
    await conn.execute(
        "update mainspring.task set state = 2, token = 9, attempt = 2, session = $2 where id = $1", task, session
    )
    found = await tasks.attempts(conn, task)
    assert [(a.number, a.token, a.state, a.agent) for a in found] == [
        (1, 5, "timed_out", "worker-1"),
        (2, 9, "assigned", "worker-1"),
    ]
    await transitions.finish(conn, [Ending(task, 9, 1, 2, TaskState.SUCCEEDED, 1.0, 2.0)])
    assert [(a.number, a.state) for a in await tasks.attempts(conn, task)] == [(1, "timed_out"), (2, "succeeded")]


async def test_an_attempt_says_where_it_ran_and_its_exit_code_through_a_retry_and_a_retry_by_hand(
    conn: Connection, make_task: MakeTask
) -> None:
    server = uuid4()
    await conn.execute(
        "insert into mainspring.server (id, name, version, status) values ($1, 'east', '1', 'active')", server
    )
    first, second = [
        await agents.begin(conn, agents.AgentInfo(name, 1, {}, server=server), 60.0) for name in ("alpha", "beta")
    ]
    task = await make_task(TaskState.RUNNING, token=5, session=first)
    failed = Ending(task, 5, 1, 1, TaskState.FAILED, 1.0, 2.0, code="exit_code", exit_code=3)
    await transitions.retry(conn, [Again(failed, 0.0, costs=True)])
    await conn.execute("update mainspring.task set state = 2, token = 9, session = $2 where id = $1", task, second)
    await transitions.finish(conn, [Ending(task, 9, 1, 2, TaskState.FAILED, 1.0, 2.0, code="signal", exit_code=-9)])
    assert (await tasks.get(conn, task)).exit_code == -9
    wanted = [("alpha", first, "east", server, 3), ("beta", second, "east", server, -9)]

    async def found() -> list[tuple[object, ...]]:
        return [(a.agent, a.session, a.server, a.server_id, a.exit_code) for a in await tasks.attempts(conn, task)]

    assert await found() == wanted
    await tasks.run_again(conn, task)
    assert await found() == wanted
    assert (await tasks.get(conn, task)).exit_code is None


@pytest.mark.parametrize("state", sorted(TaskState))
async def test_the_whole_of_a_task_is_what_its_parts_are(
    conn: Connection, make_task: MakeTask, state: TaskState
) -> None:
    session = await agents.begin(conn, agents.AgentInfo("worker-1", 1, {}, None), 60.0)
    held: dict[str, Any] = {} if state < TaskState.ASSIGNED else {"token": 5, "session": session}
    task = await (make_task(state, **held) if state in LIVE else make_task(TaskState.RUNNING, **held))
    if state not in LIVE:
        ending = Ending(task, 5, 1, 1, state, 1.0, 2.0, code="c", error="e", exit_code=3)
        await transitions.finish(conn, [ending])
    found = await whole(conn, task)
    parts = (await tasks.get(conn, task), found.age, await tasks.attempts(conn, task), False, False, None)
    assert tuple(found) == parts
    assert len(found.attempts) == (state >= TaskState.ASSIGNED)


async def test_the_whole_of_a_task_has_its_earlier_attempts_parents_and_children(
    conn: Connection, make_task: MakeTask
) -> None:
    task = await ended(conn, make_task, TaskState.FAILED)
    await tasks.run_again(conn, task)
    other = await make_task()
    await conn.execute("insert into mainspring.dependency (child, parent) values ($1, $2)", task, other)
    await conn.execute(
        """with made as (insert into mainspring.pool (requirements) values ('{"@broadcast": true}') returning id)
           update mainspring.task set pool = -made.id from made where task.id = $1""",
        task,
    )
    view, age, attempts, has_children, *_ = await whole(conn, task)
    assert (view, attempts) == (await tasks.get(conn, task), await tasks.attempts(conn, task))
    assert age >= 0
    assert (view.waiting_for, len(attempts), has_children) == ([other], 1, True)
    with pytest.raises(TaskNotFound):
        await whole(conn, other + 1000)


async def test_output_continues_after_a_chunk(conn: Connection) -> None:
    pieces = [Chunk(1, token, number, 1, 1.0, b"x") for token in (5, 9) for number in range(1, 131)]
    await session_tasks.output(conn, pieces)
    first = await tasks.output(conn, 1)
    assert len(first) == 200
    last = first[-1]
    rest = await tasks.output(conn, 1, after=(last.token, last.number))
    assert [(p.token, p.number) for p in first + rest] == [(c.token, c.number) for c in pieces]


async def test_waiters_see_tasks_that_have_ended(conn: Connection, make_task: MakeTask) -> None:
    done, lives = await ended(conn, make_task, TaskState.FAILED, code="c", error="e", result="1"), await make_task()
    assert await tasks.ended(conn, [done, lives, 10**9]) == {done: tasks.Ended(TaskState.FAILED, "1", "c", "e")}
    assert await tasks.still_open(conn, [done, lives, 10**9]) == {lives}
