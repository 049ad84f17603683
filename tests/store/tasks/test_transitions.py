"""Transitions: every move is guarded by state and token, and can be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from mainspring.model.messages import Chunk, Ending, Note, Start
from mainspring.model.tasks.states import FAIL, LIVE, RECALL, RETRY, START, TERMINAL, Move, TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import claims, session_tasks, transitions

MakeTask = Callable[..., Awaitable[int]]

TOKEN = 50
OLDER, NEWER = 40, 60


def ending(task: int, token: int = TOKEN, state: TaskState = TaskState.SUCCEEDED, **fields: Any) -> Ending:
    return Ending(task, token, 1, 1, state, 1_790_000_000.0, 1_790_000_001.5, **fields)


def again(task: int, token: int = TOKEN, *, delay: float = 0.0, costs: bool = True, crash: bool = False) -> Again:
    return Again(ending(task, token, TaskState.FAILED, code="handler_error", error="boom"), delay, costs, crash)


async def live(conn: Connection, task: int) -> dict[str, Any] | None:
    row = await conn.fetchrow("select * from mainspring.task where id = $1", task)
    return None if row is None else dict(row)


async def history(conn: Connection, task: int) -> list[dict[str, Any]]:
    return [dict(row) for row in await conn.fetch("select * from mainspring.task_history where id = $1", task)]


async def evidence(conn: Connection, task: int) -> list[dict[str, Any]]:
    rows = await conn.fetch("select * from mainspring.attempt where task_id = $1 order by token", task)
    return [dict(row) for row in rows]


# ── each move from every state, with the right and with wrong tokens ────────────────────────────


async def _start(conn: Connection, task: int, token: int) -> None:
    await transitions.start(conn, [Start(task, token, 1_790_000_000.0)])


async def _finish(conn: Connection, task: int, token: int) -> None:
    await transitions.finish(conn, [ending(task, token)])


async def _retry(conn: Connection, task: int, token: int) -> None:
    await transitions.retry(conn, [again(task, token)])


async def _note(conn: Connection, task: int, token: int) -> None:
    await session_tasks.note(conn, [Note(task, token, "0.5", None)])


async def _give_back(conn: Connection, task: int, token: int) -> None:
    await claims.give_back(conn, [task], [token])


GUARDED: dict[str, tuple[Move, Callable[[Connection, int, int], Awaitable[None]]]] = {
    "start": (START, _start),
    "finish": (FAIL, _finish),
    "retry": (RETRY, _retry),
    "note": (FAIL, _note),
    "give_back": (RECALL, _give_back),
}


@pytest.mark.parametrize("name", GUARDED)
async def test_a_move_leaves_only_its_own_states_and_only_under_its_token(
    conn: Connection, make_task: MakeTask, name: str
) -> None:
    move, act = GUARDED[name]
    changed = set()
    for state in sorted(LIVE):
        for token in (OLDER, TOKEN, NEWER):
            task = await make_task(state, token=TOKEN, session=3, attempt=2)
            before = await live(conn, task)
            await act(conn, task, token)
            if await live(conn, task) != before or await history(conn, task):
                changed.add((state, token))
    assert changed == {(state, TOKEN) for state in move.sources}


@pytest.mark.parametrize("name", GUARDED)
async def test_no_move_touches_a_task_that_has_ended(conn: Connection, make_task: MakeTask, name: str) -> None:
    for state in sorted(TERMINAL):
        task = await make_task(TaskState.RUNNING, token=TOKEN)
        await transitions.finish(conn, [ending(task, state=state, code="first")])
        before = await history(conn, task)
        assert before[0]["state"] == state
        await GUARDED[name][1](conn, task, TOKEN)
        assert await history(conn, task) == before
        assert await live(conn, task) is None
        assert not await evidence(conn, task)


# ── what the moves write ────────────────────────────────────────────────────────────────────────


async def test_a_start_tells_when(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.ASSIGNED, token=TOKEN)
    await _start(conn, task, TOKEN)
    row = await live(conn, task)
    assert row is not None
    assert (row["state"], row["started_at"].timestamp(), row["session"]) == (3, 1_790_000_000.0, 1)


async def test_an_end_takes_all_of_the_task_into_the_history(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(
        TaskState.RUNNING, token=TOKEN, session=9, attempt=3, crashes=1, checkpoint='{"at": 1}', progress="0.5", key="k"
    )
    was = await live(conn, task)
    assert was is not None
    given = ending(task, state=TaskState.FAILED, result='{"a": 1}', code="handler_error", error="boom")
    assert len(await transitions.finish(conn, [given])) == 1
    [row] = await history(conn, task)
    kept = {"run_at", "created_at", "token", "session", "job_id", "pool", "priority", "attempt", "crashes", "args"}
    kept |= {"checkpoint", "progress", "key"}
    assert {name: row[name] for name in kept} == {name: was[name] for name in kept}
    assert (row["state"], row["result"], row["error_code"], row["error"]) == (11, '{"a": 1}', "handler_error", "boom")
    assert (row["started_at"].timestamp(), row["finished_at"].timestamp()) == (1_790_000_000.0, 1_790_000_001.5)


async def test_an_attempt_that_never_started_has_no_start(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.ASSIGNED, token=TOKEN)
    await transitions.finish(conn, [Ending(task, TOKEN, 1, 1, TaskState.CANCELLED, 0.0, 1_790_000_000.0)])
    [row] = await history(conn, task)
    assert row["started_at"] is None


async def test_a_batch_of_mixed_ends_gives_each_its_own(conn: Connection, make_task: MakeTask) -> None:
    tasks = [await make_task(TaskState.RUNNING, token=TOKEN) for _ in range(4)]
    given = [
        ending(tasks[0], result="1"),
        ending(tasks[1], state=TaskState.TIMED_OUT, code="timeout"),
        ending(tasks[2], OLDER),
        ending(tasks[3]),
    ]
    assert len(await transitions.finish(conn, given)) == 3
    told = [[(r["state"], r["result"], r["error_code"]) for r in await history(conn, task)] for task in tasks]
    assert told == [[(10, "1", None)], [(12, None, "timeout")], [], [(10, None, None)]]


async def test_a_repeated_end_is_harmless_even_within_one_batch(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.RUNNING, token=TOKEN)
    assert len(await transitions.finish(conn, [ending(task, result="1"), ending(task, result="1")])) == 1
    assert len(await transitions.finish(conn, [ending(task, result="2")])) == 0
    [row] = await history(conn, task)
    assert row["result"] == "1"


@pytest.mark.parametrize(
    ("costs", "crash", "attempt", "crashes"),
    [(True, False, 2, 1), (False, False, 1, 1), (True, True, 2, 2), (False, True, 1, 2)],
)
async def test_a_retry_counts_what_it_costs(
    conn: Connection, make_task: MakeTask, costs: bool, crash: bool, attempt: int, crashes: int
) -> None:
    task = await make_task(TaskState.RUNNING, token=TOKEN, session=9, attempt=2, crashes=1, checkpoint='{"at": 1}')
    was = await live(conn, task)
    assert was is not None
    before = await conn.fetchval("select mainspring.now()")
    assert len(await transitions.retry(conn, [again(task, delay=60.0, costs=costs, crash=crash)])) == 1
    row = await live(conn, task)
    assert row is not None
    assert (row["state"], row["attempt"], row["crashes"]) == (1, attempt, crashes)
    assert (row["session"], row["started_at"], row["checkpoint"]) == (None, None, '{"at": 1}')
    assert 60 <= (row["run_at"] - before).total_seconds() < 90
    [kept] = await evidence(conn, task)
    assert (kept["token"], kept["number"], kept["session"], kept["state"]) == (TOKEN, 2, 9, 11)
    assert (kept["error_code"], kept["error"], kept["run_at"]) == ("handler_error", "boom", was["run_at"])


async def test_what_was_armed_ahead_and_lost_keeps_its_time(conn: Connection, make_task: MakeTask) -> None:
    """Its agent died before the instant: whoever takes it next must not run it early."""
    task = await make_task(TaskState.ASSIGNED, token=TOKEN)
    due = await conn.fetchval(
        "update mainspring.task set run_at = mainspring.now() + interval '4 s' where id = $1 returning run_at", task
    )
    await transitions.retry(conn, [again(task, costs=False, crash=True)])
    row = await live(conn, task)
    assert row is not None
    assert row["run_at"] == due


async def test_a_repeated_retry_is_harmless(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.RUNNING, token=TOKEN, attempt=2)
    assert [len(await transitions.retry(conn, [again(task)])) for _ in range(2)] == [1, 0]
    row = await live(conn, task)
    assert row is not None
    assert row["attempt"] == 2
    assert len(await evidence(conn, task)) == 1


# ── evidence ────────────────────────────────────────────────────────────────────────────────────


async def test_only_what_is_really_stale_is_kept_as_evidence(conn: Connection, make_task: MakeTask) -> None:
    ended, retried, taken_over = [await make_task(TaskState.RUNNING, token=TOKEN) for _ in range(3)]
    await transitions.finish(conn, [ending(ended)])
    await transitions.retry(conn, [again(retried)])
    never = 10**9
    given = [ending(ended), ending(retried), ending(taken_over, OLDER), ending(never), ending(ended, OLDER)]
    stale = await transitions.keep_stale(conn, given)
    assert [(e.task, e.token) for e in stale] == [(taken_over, OLDER), (never, TOKEN), (ended, OLDER)]
    [kept] = await evidence(conn, taken_over)
    assert (kept["token"], kept["number"], kept["error_code"], kept["state"]) == (OLDER, 0, "stale_attempt", 10)
    assert "reported succeeded" in kept["error"]
    assert [row["error_code"] for row in await evidence(conn, retried)] == ["handler_error"]


async def test_the_same_stale_report_is_kept_once(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.RUNNING, token=TOKEN)
    for expected in (1, 0):
        assert len(await transitions.keep_stale(conn, [ending(task, OLDER)])) == expected
    assert len(await evidence(conn, task)) == 1


async def test_a_result_is_added_only_where_it_is_due(conn: Connection, make_task: MakeTask) -> None:
    bare, told, failed, other = [await make_task(TaskState.RUNNING, token=TOKEN) for _ in range(4)]
    for task in (bare, other):
        async with conn.transaction():
            assert await transitions.complete(conn, [ending(task)])
    await transitions.finish(conn, [ending(told, result="1"), ending(failed, state=TaskState.FAILED)])
    await transitions.add_results(
        conn,
        [
            ending(bare, result="2"),
            ending(told, result="2"),
            ending(failed, result="2"),
            ending(other, OLDER, result="2"),
        ],
    )
    assert [(await history(conn, task))[0]["result"] for task in (bare, told, failed, other)] == ["2", "1", None, None]


# ── notes and output ────────────────────────────────────────────────────────────────────────────


async def test_a_note_leaves_what_it_does_not_tell(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.RUNNING, token=TOKEN, progress="0.1", checkpoint='{"at": 1}')
    await session_tasks.note(conn, [Note(task, TOKEN, "0.9", None)])
    row = await live(conn, task)
    assert row is not None
    assert (row["progress"], row["checkpoint"]) == ("0.9", '{"at": 1}')
    await session_tasks.note(conn, [Note(task, TOKEN, None, '{"at": 2}')])
    row = await live(conn, task)
    assert row is not None
    assert (row["progress"], row["checkpoint"]) == ("0.9", '{"at": 2}')


async def test_output_is_kept_byte_for_byte_and_once(conn: Connection) -> None:
    data = bytes(range(256))
    first = [Chunk(1, TOKEN, number, 1, 1_790_000_000.0, data) for number in (1, 2)]
    assert await session_tasks.output(conn, first) == 2
    assert await session_tasks.output(conn, [first[1], Chunk(1, TOKEN, 3, 2, 1_790_000_000.0, b"")]) == 1
    assert await session_tasks.output(conn, [Chunk(1, NEWER, 1, 1, 1_790_000_000.0, b"x")]) == 1
    rows = await conn.fetch("select token, number, stream, data from mainspring.output order by token, number")
    assert [tuple(row) for row in rows] == [
        (TOKEN, 1, 1, data),
        (TOKEN, 2, 1, data),
        (TOKEN, 3, 2, b""),
        (NEWER, 1, 1, b"x"),
    ]


# ── in the handler's own transaction ────────────────────────────────────────────────────────────


async def test_a_handler_that_hangs_before_its_commit_loses_the_transaction(
    dsn: str, conn: Connection, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the row stays locked for as long as the process is stopped, and the task cannot be rescued."""
    monkeypatch.setattr(transitions, "COMMIT_WITHIN", 0.05)
    task = await make_task(TaskState.RUNNING, token=TOKEN)
    stopped = await Database(dsn).connect()
    await stopped.execute("begin")
    assert not await transitions.complete(stopped, [ending(task, OLDER)])
    assert await transitions.complete(stopped, [ending(task)])
    async with asyncio.timeout(20):
        await conn.execute("select from mainspring.task where id = $1 for update", task)  # as a rescuer wants it
    assert await history(conn, task) == []
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        await stopped.execute("commit")
    stopped.terminate()
