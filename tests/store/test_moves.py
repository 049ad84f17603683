"""Moves: the statements of the store move tasks as the model says, and no other SQL moves them.

Each case is a statement with the move that it makes. The walk runs it on a task in every state: from the sources the
task arrives at the target, from any other state it stays. The scan finds every statement in the source that could move
a task, so that none is missing here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.cluster import OWNER
from tests.schedules import create

import mainspring
from mainspring.errors import InvalidTransition
from mainspring.model.messages import Ending, Start
from mainspring.model.tasks import states
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.define_job import Options, define
from mainspring.model.tasks.jobs import PRIORITY_LEVELS, Definition, Placement, Python
from mainspring.model.tasks.pools import blocked, unblocked
from mainspring.model.tasks.states import (
    ASSIGNED,
    BLOCKED,
    LIVE,
    MOVES,
    PENDING,
    RUNNING,
    TERMINAL,
    CancelMode,
    Move,
    TaskState,
)
from mainspring.model.tasks.verdict import Again
from mainspring.store.cluster import agents
from mainspring.store.cluster.agents import AgentInfo
from mainspring.store.daemons import daemons, replicas
from mainspring.store.flows import expiry
from mainspring.store.followed import after
from mainspring.store.limits import handover
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import overlap, revoke
from mainspring.store.tasks import (
    broadcasts,
    claims,
    control,
    dependencies,
    jobs,
    sticky,
    tasks,
    transitions,
)
from mainspring.store.tasks.sticky import Contest
from mainspring.store.tasks.transitions import into_history

TOKEN = 50
FLOORS = [BOTTOM] * len(PRIORITY_LEVELS)

Prepare = Callable[[Connection], Awaitable[int]]
Act = Callable[[Connection, int], Awaitable[Any]]


# ── tasks that a statement could move, whatever their state ─────────────────────────────────────


async def _update(conn: Connection, task: int, **columns: Any) -> int:
    assignments = ", ".join(f"{name} = ${number}" for number, name in enumerate(columns, 2))
    await conn.execute(f"update mainspring.task set {assignments} where id = $1", task, *columns.values())
    return task


async def a_task(conn: Connection) -> int:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    task = int(await conn.fetchval("select mainspring.enqueue('job')"))
    return await _update(conn, task, token=TOKEN, session=1)


async def a_planned_task(conn: Connection) -> int:
    schedule = await create(conn, every="1h", overlap="queue")
    now = await conn.fetchval("select mainspring.now()")
    return await _update(conn, await a_task(conn), schedule_id=schedule, plan_time=now, scope="", origin="plan")


async def a_recalled_task(conn: Connection) -> int:
    now = await conn.fetchval("select mainspring.now()")
    return await _update(conn, await a_planned_task(conn), cancel_at=now, cancel_mode=int(CancelMode.RECALL))


async def a_task_to_be_skipped(conn: Connection) -> int:
    now = await conn.fetchval("select mainspring.now()")
    recall = {"cancel_at": now, "cancel_mode": int(CancelMode.RECALL), "options": '{"skip": "skipped by test"}'}
    return await _update(conn, await a_task(conn), **recall)


async def a_task_after_another_schedule(conn: Connection) -> int:
    return await _update(conn, await a_planned_task(conn), waiting_for=1)


async def too_late(conn: Connection) -> int:
    now = await conn.fetchval("select mainspring.now()")
    return await _update(conn, await a_task(conn), expires_at=now)


async def _after(conn: Connection, state: TaskState) -> int:
    """A task that depends on one that ended in this state."""
    parent = await a_task(conn)
    await conn.execute("insert into mainspring.dependency select $1, $2", parent, child := await a_task(conn))
    await _place(conn, parent, state)
    return await _update(conn, child, waiting_for=1)


async def after_a_success(conn: Connection) -> int:
    return await _after(conn, TaskState.SUCCEEDED)


async def after_a_failure(conn: Connection) -> int:
    return await _after(conn, TaskState.FAILED)


async def failing_with_its_parent(conn: Connection) -> int:
    return await _update(conn, await after_a_failure(conn), options='{"on_parent_failure": "fail"}')


async def retried_with_its_parent(conn: Connection) -> int:
    child = await after_a_failure(conn)
    return await _update(conn, child, options=f'{{"parents": [{child - 1}]}}')


async def a_broadcast(conn: Connection) -> int:
    await agents.begin(conn, AgentInfo("one", 4, {}), 60.0)
    await jobs.register(conn, {"all": Definition(Python("all"), placement=Placement(broadcast=True))})
    task = int(await conn.fetchval("select mainspring.enqueue('all')"))
    return await _update(conn, task, token=TOKEN)


async def a_run_of_a_broadcast(conn: Connection) -> int:
    parent = await a_broadcast(conn)
    pool = await conn.fetchval("select pool from mainspring.task where id = $1", parent)
    await _update(conn, parent, state=int(RUNNING))
    return await _update(conn, await a_task(conn), parent_id=parent, target="one", pool=-pool)


async def a_run_of_a_cancelled_broadcast(conn: Connection) -> int:
    task = await a_run_of_a_broadcast(conn)
    await conn.execute("update mainspring.task set cancel_at = mainspring.now() where parent_id is null")
    return task


async def a_run_without_its_agent(conn: Connection) -> int:
    return await _update(conn, await a_run_of_a_broadcast(conn), target="gone")


async def a_retried_run_without_its_agent(conn: Connection) -> int:
    task = await a_run_without_its_agent(conn)
    await conn.execute(
        """insert into mainspring.attempt (task_id, token, number, state, finished_at, recorded_at, run_at)
           select $1, 1, 1, 11, now(), now(), now()""",
        task,
    )
    return task


async def a_replica(conn: Connection) -> int:
    await create(conn, daemon=1)
    assert await daemons.make(conn) == 1
    return await _update(conn, await conn.fetchval("select id from mainspring.task"), token=TOKEN, session=1)


async def a_surplus_replica(conn: Connection) -> int:
    task = await a_replica(conn)
    await conn.execute("update mainspring.schedule set enabled = false")
    return task


async def a_gated_task(conn: Connection) -> int:
    """The next task of a job whose only slot is held by the task before it."""
    options: Options = {"max_running": 1}
    await jobs.register(conn, {"job": define(Python("job"), options)})
    for _ in range(2):
        task = int(await conn.fetchval("select mainspring.enqueue('job')"))
    target = await conn.fetchval("select target from mainspring.pool where target is not null")
    gate = await conn.fetchval("select pool from mainspring.job")
    running = {"token": TOKEN, "session": 1, "state": int(RUNNING)}
    await _update(conn, task - 1, pool=target, gate=gate, job_slot=0, **running)
    return task


NEVER_BLOCKED = (  # the schema refuses it
    *(a_run_of_a_broadcast, a_run_of_a_cancelled_broadcast, a_run_without_its_agent, a_retried_run_without_its_agent),
    *(a_replica, a_surplus_replica),
)


# ── the statements ──────────────────────────────────────────────────────────────────────────────


def _ending(task: int, state: TaskState = TaskState.FAILED) -> Ending:
    return Ending(task, TOKEN, 1, 1, state, 1_790_000_000.0, 1_790_000_001.5)


async def _claim(conn: Connection, task: int) -> None:
    pool = await conn.fetchval("select pool from mainspring.job where name = 'job'")
    await claims.claim(conn, OWNER, pool, [1], 10, FLOORS, ahead=60.0)


async def _sticky(conn: Connection, task: int) -> None:
    pool = await conn.fetchval("select pool from mainspring.job where name = 'job'")
    await sticky.claim(conn, OWNER, pool, Contest("shop", [("one", 1, 10)], 1.0), 10, FLOORS, ahead=60.0)


async def _recall(conn: Connection, task: int) -> None:
    schedule = await conn.fetchval("select id from mainspring.schedule")
    await revoke.recall(conn, schedule, at=await conn.fetchval("select mainspring.now()"))


async def _skip(conn: Connection, task: int) -> None:
    with suppress(InvalidTransition):
        await control.skip(conn, task, "skipped by test")


async def _cancel(conn: Connection, task: int) -> None:
    try:
        await tasks.cancel(conn, task)
    except InvalidTransition:
        assert await _state(conn, task) in TERMINAL


class Case(NamedTuple):
    place: str  # of the statement: below src/mainspring/store, and its name there
    move: Move
    prepare: Prepare
    act: Act
    leaves: frozenset[TaskState] = frozenset()  # if it leaves only some of the move's sources

    @property
    def sources(self) -> frozenset[TaskState]:
        return self.leaves or self.move.sources


async def _hand_over(conn: Connection, task: int) -> None:
    target = await conn.fetchval("select target from mainspring.pool where target is not null")
    await handover.finish(conn, OWNER, [_ending(task - 1)], {target: [1]})


def _finish(move: Move) -> Case:
    async def finish(conn: Connection, task: int) -> None:
        await transitions.finish(conn, [_ending(task, move.target)])

    return Case("tasks/transitions.py:_ENDED_BUT_FOR", move, a_task, finish, states.ACTIVE)


CASES = (
    Case("tasks/claims.py:_claim", states.ARM, a_task, _claim),
    Case("tasks/sticky.py:_CLAIM", states.ARM, a_task, _sticky),
    Case(
        "tasks/claims.py:_GIVE_BACK",
        states.RECALL,
        a_task,
        lambda conn, task: claims.give_back(conn, [task], [TOKEN]),
    ),
    Case(
        "tasks/transitions.py:_START",
        states.START,
        a_task,
        lambda conn, task: transitions.start(conn, [Start(task, TOKEN, 1_790_000_000.0)]),
    ),
    Case("limits/handover.py:_MOVED", states.ARM, a_gated_task, _hand_over),
    *map(_finish, (states.SUCCEED, states.FAIL, states.TIME_OUT, states.LOSE, states.CANCEL)),
    Case(
        "tasks/transitions.py:_ENDED_BUT_FOR",
        states.SUCCEED,
        a_task,
        lambda conn, task: transitions.complete(conn, [_ending(task, TaskState.SUCCEEDED)]),
    ),
    Case(
        "tasks/transitions.py:_RETRY",
        states.RETRY,
        a_task,
        lambda conn, task: transitions.retry(conn, [Again(_ending(task), 0.0, costs=True)]),
    ),
    Case("tasks/tasks.py:_cancel_waiting", states.CANCEL, a_task, _cancel, LIVE - states.ACTIVE),
    Case(
        "tasks/tasks.py:_cancel_waiting",
        states.CANCEL,
        a_task,
        lambda conn, task: tasks.cancel_each(conn, [task]),
        LIVE - states.ACTIVE,
    ),
    Case("tasks/control.py:_skip_waiting", states.SKIP, a_task, _skip),
    Case("tasks/control.py:_skip_waiting", states.SKIP, a_task, lambda conn, task: control.skip_each(conn, [task], "")),
    Case(
        "tasks/control.py:_CONFIRM_SKIPS",
        states.SKIP_ARMED,
        a_task_to_be_skipped,
        lambda conn, task: control.confirm_skips(conn, [task], [TOKEN]),
    ),
    Case(
        "tasks/dependencies.py:_UNBLOCK",
        states.UNBLOCK,
        after_a_success,
        lambda conn, task: dependencies.settle(conn, [task - 1]),
    ),
    Case(
        "tasks/dependencies.py:_FAIL",
        states.SKIP,
        after_a_failure,
        lambda conn, task: dependencies.settle(conn, [task - 1]),
        frozenset({BLOCKED}),
    ),
    Case(
        "tasks/dependencies.py:_FAIL",
        states.FAIL_BLOCKED,
        failing_with_its_parent,
        lambda conn, task: dependencies.settle(conn, [task - 1]),
    ),
    Case(
        "tasks/dependencies.py:_BLOCK",
        states.BLOCK_AGAIN,
        retried_with_its_parent,
        lambda conn, task: dependencies.block_again(conn, [task]),
    ),
    Case("flows/expiry.py:_EXPIRE", states.SKIP, too_late, lambda conn, _: expiry.expire(conn, 10)),
    Case(
        "tasks/broadcasts.py:_EXPAND",
        states.EXPAND,
        a_broadcast,
        lambda conn, task: broadcasts.expand(conn, task, notice=0.1),
    ),
    Case(
        "tasks/broadcasts.py:_ASSIGN",
        states.ARM,
        a_run_of_a_broadcast,
        lambda conn, task: broadcasts.assign(conn, ahead=1.0),
    ),
    Case(
        "tasks/broadcasts.py:_END",
        states.SUCCEED,
        a_broadcast,
        lambda conn, task: broadcasts.end(conn, [task]),
        frozenset({RUNNING}),
    ),
    Case(
        "tasks/broadcasts.py:_WITHOUT_AGENTS",
        states.FAIL_UNSENT,
        a_broadcast,
        lambda conn, task: broadcasts.end_without_agents(conn, [task]),
    ),
    Case(
        "tasks/broadcasts.py:_CANCEL_WAITING",
        states.CANCEL,
        a_run_of_a_cancelled_broadcast,
        lambda conn, task: broadcasts.cancel_waiting(conn),
        frozenset({PENDING}),
    ),
    Case(
        "tasks/broadcasts.py:_gone",
        states.SKIP,
        a_run_without_its_agent,
        lambda conn, task: broadcasts.end_with_their_agents(conn, lease=1.0),
        frozenset({PENDING}),
    ),
    Case(
        "tasks/broadcasts.py:_gone",
        states.LOSE_UNSENT,
        a_retried_run_without_its_agent,
        lambda conn, task: broadcasts.end_with_their_agents(conn, lease=1.0),
    ),
    Case(
        "followed/after.py:_RELEASE",
        states.UNBLOCK,
        a_task_after_another_schedule,
        lambda conn, task: after.release(conn, [task]),
    ),
    Case(
        "followed/after.py:_SKIP",
        states.SKIP,
        a_task_after_another_schedule,
        lambda conn, task: after.skip(conn, {task: "the other did not succeed"}),
        frozenset({BLOCKED}),
    ),
    Case(
        "schedules/overlap.py:_RELEASE",
        states.UNBLOCK,
        a_planned_task,
        lambda conn, task: overlap.release(conn, [task]),
    ),
    Case(
        "schedules/overlap.py:_SKIP",
        states.SKIP,
        a_planned_task,
        lambda conn, task: overlap.skip(conn, [task]),
        frozenset({BLOCKED}),
    ),
    Case(
        "schedules/overlap.py:_END",
        states.CANCEL,
        a_planned_task,
        lambda conn, task: overlap.stop(conn, [task], kill=True),
        frozenset({PENDING}),
    ),
    Case("schedules/revoke.py:_TAKE_BACK", states.CANCEL, a_planned_task, _recall, LIVE - states.ACTIVE),
    Case(
        "schedules/revoke.py:_CONFIRM",
        states.CANCEL,
        a_recalled_task,
        lambda conn, task: revoke.confirm(conn, [task], [TOKEN]),
        frozenset({ASSIGNED}),
    ),
    Case("daemons/replicas.py:_CLAIM", states.ARM, a_replica, lambda conn, task: replicas.claim(conn, {task: 1})),
    Case(
        "daemons/replicas.py:_AGAIN",
        states.RETRY,
        a_replica,
        lambda conn, task: replicas.restart(conn, [_ending(task)]),
    ),
    Case(
        "daemons/daemons.py:_END_SURPLUS",
        states.CANCEL,
        a_surplus_replica,
        lambda conn, task: daemons.stop_surplus(conn),
        frozenset({PENDING}),
    ),
)


# ── the walk ────────────────────────────────────────────────────────────────────────────────────


async def _place(conn: Connection, task: int, state: TaskState) -> None:
    """Put a task into a state, and into a pool of the kind that goes with it."""
    if state in TERMINAL:
        gone = "with gone as (delete from mainspring.task t where id = $1 returning t.*)"
        await conn.execute(f"{gone} {into_history('gone', Move(frozenset(), state), 'placed', 'null')}", task)
    else:
        pool = blocked("pool") if state is BLOCKED else unblocked("pool")
        pool = f"case when parent_id is null then {pool} else pool end"
        await conn.execute(f"update mainspring.task set state = $2::smallint, pool = {pool} where id = $1", task, state)


async def _state(conn: Connection, task: int) -> TaskState:
    [row] = await conn.fetch(
        """select state from mainspring.task where id = $1
            union all select state from mainspring.task_history where id = $1""",
        task,
    )
    return TaskState(row["state"])


class _Undone(Exception):
    """Rolls a transaction back."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.place} from {case.prepare.__name__}")
async def test_a_statement_makes_its_move_and_no_other(conn: Connection, case: Case) -> None:
    assert case.sources <= case.move.sources
    arrived = {}
    for state in TaskState:
        with suppress(_Undone):
            async with conn.transaction():
                task = await case.prepare(conn)
                arrived[state] = state
                if state is BLOCKED and case.prepare in NEVER_BLOCKED:
                    raise _Undone
                await _place(conn, task, state)
                await case.act(conn, task)
                arrived[state] = await _state(conn, task)
                raise _Undone
    assert arrived == {state: case.move.target if state in case.sources else state for state in TaskState}


async def test_only_a_person_leads_out_of_a_terminal_state(conn: Connection) -> None:
    for state in TaskState:
        task = await a_task(conn)
        await _place(conn, task, state)
        if state in TERMINAL - {TaskState.SUCCEEDED}:
            await tasks.run_again(conn, task)
            assert await _state(conn, task) is PENDING
        else:
            with pytest.raises(InvalidTransition):
                await tasks.run_again(conn, task)
            assert await _state(conn, task) is state


# ── the scan ────────────────────────────────────────────────────────────────────────────────────

_SOURCE = Path(mainspring.__file__).parent
_SET = re.compile(r"update\s+mainspring\.task\b(?:\s+\w+)?\s+set\b(.*?)(?:\bwhere\b|$)", re.DOTALL)
_STATE = re.compile(r"\bstate\s*=[^=]|\.enters\b")
_DELETE = re.compile(r"delete\s+from\s+mainspring\.task\b")


def moves_tasks(sql: str) -> bool:
    return bool(_DELETE.search(sql)) or any(_STATE.search(changes) for changes in _SET.findall(sql))


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else ast.unparse(p) for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _places() -> Iterator[tuple[str, str]]:
    """All strings in the source, each with its file and the name of what it is in."""
    for path in sorted(_SOURCE.rglob("*.py")):
        for statement in ast.parse(path.read_text()).body:
            targets = getattr(statement, "targets", [getattr(statement, "target", statement)])
            name = getattr(targets[0], "id", getattr(targets[0], "name", "?"))
            for text in _texts(statement):
                yield f"{path.relative_to(_SOURCE)}:{name}", text


def test_every_statement_that_could_move_a_task_is_a_case_above() -> None:
    found = {place for place, text in _places() if moves_tasks(text)}
    assert found == {f"store/{case.place}" for case in CASES}


async def test_no_function_in_the_schema_moves_a_task(conn: Connection) -> None:
    rows = await conn.fetch("select proname, prosrc from pg_proc where pronamespace = 'mainspring'::regnamespace")
    assert rows
    assert [row["proname"] for row in rows if moves_tasks(row["prosrc"])] == []


def test_every_move_of_the_model_is_some_statement_s() -> None:
    assert {case.move for case in CASES} == set(MOVES)
