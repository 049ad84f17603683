"""Control: which tasks can be paused and restarted, and what the request leaves in the row."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from tests.conftest import MakeTask

from mainspring.errors import InvalidTransition, TaskNotFound
from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Command, Definition, Placement, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TERMINAL, TaskState
from mainspring.model.tasks.verdict import Again, after_attempt
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import overlap
from mainspring.store.tasks import broadcasts, control, jobs, rescue, session_tasks, tasks, transitions

Act = Callable[[Connection, int], Awaitable[None]]
COMMAND = Definition(Command(("sleep", "600")), retry=Retry(retries=0))


@pytest.fixture
async def running(conn: Connection, make_task: MakeTask) -> int:
    """A task of a command that runs, as session 1 with token 1."""
    task = await make_task(TaskState.RUNNING)
    await jobs.register(conn, {"job": COMMAND})
    return task


def restarted(task: int) -> Ending:
    return Ending(task, 1, 1, 1, TaskState.CANCELLED, 1.0, 2.0, code="restarted")


# ── pause and resume ────────────────────────────────────────────────────────────────────────────


async def test_a_paused_task_runs_and_says_since_when_it_stands_still(conn: Connection, running: int) -> None:
    await control.pause(conn, running)
    view = await tasks.get(conn, running)
    assert view.state == "running"
    assert view.paused_at is not None
    await control.pause(conn, running)
    assert (await tasks.get(conn, running)).paused_at == view.paused_at, "paused once"
    assert await session_tasks.paused(conn, [1]) == {1: {1: running}}
    await control.resume(conn, running)
    assert (await tasks.get(conn, running)).paused_at is None
    assert await session_tasks.paused(conn, [1]) == {}


async def test_the_next_attempt_of_a_paused_task_is_not_paused(conn: Connection, running: int) -> None:
    await control.pause(conn, running)
    assert len(await transitions.retry(conn, [Again(restarted(running), 0.0, costs=False)])) == 1
    assert (await tasks.get(conn, running)).paused_at is None


@pytest.mark.parametrize("kill", [False, True])
async def test_a_paused_task_can_be_cancelled(conn: Connection, running: int, kill: bool) -> None:
    await control.pause(conn, running)
    assert await tasks.cancel(conn, running, kill=kill) is TaskState.RUNNING
    assert [wanted.mode for wanted in await session_tasks.cancelled(conn, [1])] == [2 if kill else None]


async def test_a_handler_is_not_paused_and_the_error_says_why(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.RUNNING)
    with pytest.raises(InvalidTransition, match="which is Python; only commands can be paused, cancel it instead"):
        await control.pause(conn, task)
    assert (await tasks.get(conn, task)).paused_at is None


@pytest.mark.parametrize("act", [control.pause, control.restart])
@pytest.mark.parametrize("state", sorted(set(TaskState) - TERMINAL - {TaskState.RUNNING}))
async def test_what_does_not_run_is_neither_paused_nor_restarted(
    conn: Connection, make_task: MakeTask, act: Act, state: TaskState
) -> None:
    task = await make_task(state)
    await jobs.register(conn, {"job": COMMAND})
    with pytest.raises(InvalidTransition, match=f"is {state.label} and cannot be"):
        await act(conn, task)


async def test_what_has_ended_is_for_retry(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task()
    await tasks.cancel(conn, task)
    with pytest.raises(InvalidTransition, match="`mainspring task retry` runs it again"):
        await control.restart(conn, task)


async def test_what_has_succeeded_is_not_for_retry(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.RUNNING)
    now = time.time()
    await transitions.finish(conn, [Ending(task, 1, 1, 1, TaskState.SUCCEEDED, now, now)])
    with pytest.raises(InvalidTransition, match="is succeeded and cannot be restarted; `mainspring task submit` makes"):
        await control.restart(conn, task)


@pytest.mark.parametrize("act", [control.pause, control.resume, control.restart])
async def test_what_does_not_exist_is_not_found(conn: Connection, act: Act) -> None:
    with pytest.raises(TaskNotFound):
        await act(conn, 7)


async def test_only_what_is_paused_is_resumed(conn: Connection, running: int) -> None:
    with pytest.raises(InvalidTransition, match="is running and not paused"):
        await control.resume(conn, running)


@pytest.mark.parametrize("act", [control.pause, control.restart])
async def test_what_is_being_cancelled_is_neither_paused_nor_restarted(
    conn: Connection, running: int, act: Act
) -> None:
    await tasks.cancel(conn, running)
    with pytest.raises(InvalidTransition, match="is being stopped"):
        await act(conn, running)


@pytest.mark.parametrize("act", [control.pause, control.restart])
async def test_a_broadcast_is_paused_and_restarted_run_by_run(conn: Connection, make_task: MakeTask, act: Act) -> None:
    task = await make_task(TaskState.RUNNING, session=None)
    await jobs.register(conn, {"job": Definition(Command(("true",)), placement=Placement(broadcast=True))})
    with pytest.raises(InvalidTransition, match="is a broadcast"):
        await act(conn, task)


# ── restart ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_restarted_task_runs_again_at_once_and_pays_no_attempt(conn: Connection, running: int) -> None:
    await control.restart(conn, running)
    assert [wanted.mode for wanted in await session_tasks.cancelled(conn, [1])] == [3]
    verdict = after_attempt(COMMAND, restarted(running), 0.5)
    assert isinstance(verdict, Again)
    assert len(await transitions.retry(conn, [verdict])) == 1
    view = await tasks.get(conn, running)
    assert (view.state, view.attempt) == ("pending", 0)
    row = await conn.fetchrow("select cancel_at, cancel_mode from mainspring.task")
    assert tuple(row) == (None, None)


async def test_an_at_most_once_task_is_not_restarted(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.RUNNING)
    await jobs.register(conn, {"job": Definition(Python("job"), delivery="at_most_once")})
    with pytest.raises(InvalidTransition, match="never runs twice"):
        await control.restart(conn, task)


async def test_a_cancel_overrides_a_restart(conn: Connection, running: int) -> None:
    await control.restart(conn, running)
    await tasks.cancel(conn, running)
    assert [wanted.mode for wanted in await session_tasks.cancelled(conn, [1])] == [None]
    assert len(await transitions.retry(conn, [Again(restarted(running), 0.0, costs=False)])) == 0, (
        "it does not run again"
    )


async def test_a_cancel_does_not_soften_a_kill(conn: Connection, running: int) -> None:
    await tasks.cancel(conn, running, kill=True)
    await tasks.cancel(conn, running)
    assert [wanted.mode for wanted in await session_tasks.cancelled(conn, [1])] == [2]


async def test_a_task_whose_agent_dies_while_it_is_restarted_is_rescued_and_not_cancelled(
    conn: Connection, running: int
) -> None:
    await conn.execute("insert into mainspring.claim (session, batch, tasks) values (1, 1, array[$1::bigint])", running)
    await control.restart(conn, running)
    [held] = await rescue.held(conn, 1, 10)
    assert not held.cancelled
    assert not held.recalled


async def test_the_next_task_of_a_schedule_stops_one_that_is_being_restarted(conn: Connection, running: int) -> None:
    await control.restart(conn, running)
    assert await overlap.stop(conn, [running], kill=False) == 1
    assert [wanted.mode for wanted in await session_tasks.cancelled(conn, [1])] == [None]


# ── plans ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("dsn")
@pytest.mark.parametrize(
    ("query", "arguments", "index"),
    [
        (session_tasks._PAUSED, ([1],), "task_paused"),
        (broadcasts._PASS_ON, (), "task_cancel"),
        (broadcasts._PASS_ON, (), "task_parent"),
        (broadcasts._ASSIGN, (5.0,), "task_parent"),
        (broadcasts._LOOK, (5.0,), "task_claim"),
        (broadcasts._CANCEL_WAITING, (), "task_parent"),
        (broadcasts._LOST, (15.0,), "task_parent"),
        (broadcasts._SKIPPED, (15.0,), "task_parent"),
        (broadcasts._END, ([1],), "task_parent"),
    ],
)
async def test_looks_for_wishes_and_runs_cost_what_there_is_of_them(
    conn: Connection, make_task: MakeTask, query: str, arguments: tuple[object, ...], index: str
) -> None:
    await make_task()
    plan = "\n".join(row[0] for row in await conn.fetch(f"explain {query}", *arguments))
    assert index in plan
    assert "Seq Scan on task" not in plan
    assert all("Index Cond" in below for line, below in pairwise(plan.splitlines()) if "task_claim" in line)
