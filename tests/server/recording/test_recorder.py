"""Recorder, on a real database: nothing is acknowledged before it is committed, nothing is written twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.server.recording.conftest import TOKEN, Agent, counted, ending, state

from mainspring.errors import StoreUnavailable
from mainspring.model.messages import (
    AttemptId,
    Chunk,
    Ending,
    Finished,
    Note,
    Output,
    Progress,
    Refused,
    Start,
    Started,
)
from mainspring.model.tasks.states import TaskState
from mainspring.server.recording.recorder import SLICE, Recorder
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import tasks, transitions


async def test_a_report_is_acknowledged_after_it_is_committed_and_not_before(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]]
) -> None:
    agent, task = Agent(recorder), await running()
    await agent.report(Finished([await ending(conn, task, result="1")]))
    assert await agent.acknowledged() == 0
    assert not recorder.idle.is_set()
    assert await recorder.flush() == 1
    assert await agent.acknowledged() == 1
    assert (await tasks.get(conn, task)).result == 1
    assert await recorder.flush() == 0
    assert recorder.idle.is_set()


async def test_all_that_came_since_the_last_flush_is_one_flush(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]]
) -> None:
    agents = [Agent(recorder), Agent(recorder)]
    made = [await running() for _ in range(4)]
    runs = TOKEN + 1
    await conn.execute("update mainspring.task set token = $2 where id = $1", made[0], runs)
    await agents[0].report(Started([Start(made[0], runs, 1.0)]), Progress([Note(made[0], runs, "0.5", '{"at": 1}')]))
    await agents[0].report(Finished([await ending(conn, made[1])]))
    await agents[1].report(
        Refused([AttemptId(made[2], TOKEN)], "full"), Output([Chunk(made[3], TOKEN, 1, 1, 1.0, b"x")])
    )
    assert recorder.backlog == 1
    await recorder.flush()
    assert [await state(conn, task) for task in made] == ["running", "succeeded", "pending", "assigned"]
    assert (await tasks.get(conn, made[0])).checkpoint == {"at": 1}
    assert [piece.data for piece in await tasks.output(conn, made[3])] == [b"x"]
    assert [await agent.acknowledged() for agent in agents] == [2, 1]


async def test_a_start_whose_end_is_in_the_same_flush_is_not_written_apart(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, task = Agent(recorder), await running()

    async def start(*_: object) -> None:
        raise AssertionError("written apart")

    monkeypatch.setattr(transitions, "start", start)
    await agent.report(Started([Start(task, TOKEN, 1.0)]))
    await agent.report(Finished([await ending(conn, task)]))
    await recorder.flush()
    assert (await tasks.get(conn, task)).started_at == datetime.fromtimestamp(1_790_000_000, UTC)


async def test_a_failure_that_may_be_repeated_goes_back_and_the_next_one_ends_it(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]]
) -> None:
    agent, task = Agent(recorder), await running()
    requeued: list[int] = []
    ended: list[Ending] = []
    recorder.on_requeued.connect(lambda: requeued.append(1))
    recorder.on_ended.connect(ended.extend)
    await agent.report(Finished([await ending(conn, task, TaskState.FAILED, code="handler_error")]))
    await recorder.flush()
    view = await tasks.get(conn, task)
    assert (view.state, view.attempt, requeued, ended) == ("pending", 1, [1], [])
    await conn.execute("update mainspring.task set state = 3, token = $1, attempt = 2", TOKEN + 1)
    job = await conn.fetchval("select id from mainspring.job")
    last = Ending(task, TOKEN + 1, job, 2, TaskState.FAILED, 1.0, 2.0)
    await agent.report(Finished([last]))
    await recorder.flush()
    assert (await state(conn, task), requeued, ended) == ("failed", [1], [last])


async def test_who_waits_is_told_what_is_over_also_for_attempts_that_run_again(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]]
) -> None:
    agent, made = Agent(recorder), [await running() for _ in range(3)]
    told: list[tuple[list[Ending], list[AttemptId]]] = []
    recorder.on_recorded.connect(lambda endings, refused: told.append((endings, refused)))
    endings = [await ending(conn, made[0]), await ending(conn, made[1], TaskState.FAILED)]
    await agent.report(Finished(endings), Refused([AttemptId(made[2], TOKEN)], "draining"))
    await recorder.flush()
    assert told == [(endings, [AttemptId(made[2], TOKEN)])]


@pytest.mark.parametrize("stops", [False, True])
async def test_a_large_flush_is_announced_in_slices_and_all_of_it_when_the_server_stops(
    conn: Connection, recorder: Recorder, stops: bool
) -> None:
    job = await conn.fetchval("select id from mainspring.job")
    many = 2 * SLICE + 1
    rows = await conn.fetch(
        "insert into mainspring.task (run_at, created_at, job_id, pool, state, priority, attempt, token, args)"
        " select now(), now(), id, pool, 2, 5, 1, $1, '{}' from mainspring.job, generate_series(1, $2) returning id",
        TOKEN,
        many,
    )
    told: list[int] = []
    steps: list[int] = []
    recorder.on_recorded.connect(lambda endings, _: told.append(len(endings)))
    recorder.on_ended.connect(lambda endings: steps.append(len(endings)))
    agent = Agent(recorder)
    endings = [Ending(row["id"], TOKEN, job, 1, TaskState.SUCCEEDED, 1.0, 2.0, result=None) for row in rows]
    endings[-1].result = "17"  # alone: its array has the place of a null for each of the others
    for start in range(0, many, SLICE):
        await agent.report(Finished(endings[start : start + SLICE]))
    flushing = asyncio.ensure_future(recorder.flush())
    while not told:
        await asyncio.sleep(0)
    assert told == [SLICE]
    if stops:
        flushing.cancel()
        await asyncio.wait([flushing])
    else:
        assert await flushing == many
    assert told == steps == [SLICE, SLICE, 1]
    assert sum(cell.count for cell in recorder.tallies.ended.values()) == many
    found = await conn.fetch("select id, result from mainspring.task_history where result is not null")
    assert [(row["id"], row["result"]) for row in found] == [(rows[-1]["id"], "17")]


async def test_a_stale_report_is_acknowledged_kept_and_changes_nothing(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]]
) -> None:
    agent, task = Agent(recorder), await running()
    await conn.execute("update mainspring.task set token = $1, attempt = 2", TOKEN + 1)
    for _ in range(2):  # the second time it is known
        await agent.report(Finished([await ending(conn, task)]))
        await recorder.flush()
    assert await agent.acknowledged() == 2
    assert await state(conn, task) == "assigned"
    found = await tasks.attempts(conn, task)
    assert [(a.token, a.error_code) for a in found] == [(TOKEN, "stale_attempt"), (TOKEN + 1, None)]


async def test_a_repeated_report_leaves_no_evidence(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]]
) -> None:
    agent, made = Agent(recorder), [await running() for _ in range(2)]
    for _ in range(2):
        await agent.report(
            Finished([await ending(conn, made[0]), await ending(conn, made[1], TaskState.FAILED, code="x")])
        )
        await recorder.flush()
    assert await conn.fetchval("select count(*) from mainspring.attempt where error_code = 'stale_attempt'") == 0
    assert [(a.number, a.state) for a in await tasks.attempts(conn, made[1])] == [(1, "failed")]


async def test_the_partition_of_the_day_is_made_when_it_is_missing(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]]
) -> None:
    agent, made = Agent(recorder), [await running() for _ in range(2)]
    await conn.execute("""
        create or replace function mainspring.now() returns timestamptz language sql volatile
            as 'select timestamptz ''2040-06-01 12:00Z'''
    """)
    await agent.report(
        Output([Chunk(made[0], TOKEN, 1, 1, 1.0, b"x")]),
        Finished([await ending(conn, made[0]), await ending(conn, made[1], TaskState.FAILED)]),
    )
    await recorder.flush()
    assert [await state(conn, task) for task in made] == ["succeeded", "pending"]
    assert await agent.acknowledged() == 1


# ── the database goes away ──────────────────────────────────────────────────────────────────────


async def _kill_the_recorder(conn: Connection) -> None:
    killed = await conn.fetch("""
        select pg_terminate_backend(pid, 5000) from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid() and query like '%mainspring.%'
    """)
    assert killed


async def test_a_flush_whose_connection_broke_before_it_is_written_again(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, task = Agent(recorder), await running()
    await agent.report(Finished([await ending(conn, task, result="1")]))
    finish = transitions.finish

    async def killed_first(line: Connection, endings: Any) -> list[Ending]:
        await line.execute("select from mainspring.task")
        await _kill_the_recorder(conn)
        return await finish(line, endings)

    monkeypatch.setattr(transitions, "finish_many", killed_first)
    with pytest.raises(StoreUnavailable):
        await recorder.flush()
    assert await agent.acknowledged() == 0
    assert recorder.backlog == 1
    monkeypatch.undo()
    other = await running()
    await agent.report(Finished([await ending(conn, other)]))
    assert recorder.backlog == 2
    await recorder.flush()
    assert [await state(conn, t) for t in (task, other)] == ["succeeded", "assigned"], "the old flush first"
    assert await agent.acknowledged() == 1
    await recorder.flush()
    assert await state(conn, other) == "succeeded"


async def test_a_flush_that_was_committed_without_an_answer_is_repeated_without_harm(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, made = Agent(recorder), [await running() for _ in range(3)]
    await agent.report(
        Output([Chunk(made[0], TOKEN, 1, 1, 1.0, b"x")]),
        Refused([AttemptId(made[2], TOKEN)], "full"),
        Finished([await ending(conn, made[0], result="1"), await ending(conn, made[1], TaskState.FAILED)]),
    )
    retry = transitions.retry

    async def killed_after(line: Connection, attempts: Any) -> list[Ending]:
        moved = await retry(line, attempts)
        await _kill_the_recorder(conn)
        await line.execute("select 1")
        return moved

    monkeypatch.setattr(transitions, "retry", killed_after)
    with pytest.raises(StoreUnavailable):
        await recorder.flush()
    assert await agent.acknowledged() == 0
    monkeypatch.undo()
    await recorder.flush()
    assert await agent.acknowledged() == 1
    assert [await state(conn, t) for t in made] == ["succeeded", "pending", "pending"]
    assert [await conn.fetchval("select attempt from mainspring.task where id = $1", t) for t in made[1:]] == [1, 0]
    assert len(await tasks.output(conn, made[0])) == 1
    assert await conn.fetchval("select count(*) from mainspring.attempt") == 1
    assert counted(recorder) == {("ended", "succeeded"): 1, ("again", "failed"): 1}, "when the answer came"


async def test_what_another_server_recorded_while_this_one_could_not_reach_postgresql_counts_there(
    conn: Connection,
    database: Database,
    recorder: Recorder,
    running: Callable[[], Awaitable[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its agent has reconnected there. Nothing was sent from here, so that nothing can have been written by it."""
    task = await running()
    await Agent(recorder).report(Finished([await ending(conn, task)]))

    async def unreachable(*_: Any, **__: Any) -> Connection:
        raise StoreUnavailable("PostgreSQL cannot be reached")

    monkeypatch.setattr(Database, "connect", unreachable)
    with pytest.raises(StoreUnavailable):
        await recorder.flush()
    assert recorder.may_lack_reports
    monkeypatch.undo()
    elsewhere = Recorder(database, recorder._catalogue)
    await Agent(elsewhere).report(Finished([await ending(conn, task)]))
    await elsewhere.flush()
    await recorder.flush()
    assert counted(elsewhere) == {("ended", "succeeded"): 1}
    assert counted(recorder) == {}


async def test_a_repeated_or_stale_report_is_not_counted_again(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]]
) -> None:
    agent, task, other = Agent(recorder), await running(), await running()
    for endings in ([task, task], [task, other]):
        await agent.report(Finished([await ending(conn, each) for each in endings]))
        await recorder.flush()
    stale = await ending(conn, await running())
    stale.token = TOKEN - 1
    await agent.report(Finished([stale]))
    await recorder.flush()
    assert counted(recorder) == {("ended", "succeeded"): 2}
    assert recorder.tallies.stale == 1


async def test_what_is_cancelled_while_its_agent_gives_it_back_counts_for_its_job(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]]
) -> None:
    agent, task = Agent(recorder), await running()
    await tasks.cancel(conn, task)
    await agent.report(Refused([AttemptId(task, TOKEN)], "full"))
    await recorder.flush()
    assert await state(conn, task) == "cancelled"
    job = await conn.fetchval("select id from mainspring.job")
    assert {key: cell.count for key, cell in recorder.tallies.ended.items()} == {(job, TaskState.CANCELLED): 1}


async def test_a_flush_cancelled_in_the_middle_loses_nothing(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]]
) -> None:
    agent, task = Agent(recorder), await running()
    await agent.report(Finished([await ending(conn, task)]))
    async with conn.transaction():
        await conn.execute("select from mainspring.task where id = $1 for update", task)
        flushing = asyncio.ensure_future(recorder.flush())
        while not await conn.fetchval("select exists (select from pg_locks where not granted)"):
            await asyncio.sleep(0)
        flushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flushing
    await recorder.flush()
    assert await state(conn, task) == "succeeded"
    assert await agent.acknowledged() == 1


async def test_an_agent_that_has_gone_does_not_stop_the_others(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]]
) -> None:
    gone, there = Agent(recorder), Agent(recorder)
    made = [await running() for _ in range(2)]
    await gone.report(Finished([await ending(conn, made[0])]))
    await there.report(Finished([await ending(conn, made[1])]))
    await gone.far.close()
    await recorder.flush()
    assert [await state(conn, task) for task in made] == ["succeeded", "succeeded"]
    assert await there.acknowledged() == 1


# ── reports that PostgreSQL refuses ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "bad",
    [
        {"error": "a\0b", "state": TaskState.FAILED},
        {"error": "\ud800", "state": TaskState.FAILED},
        {"result": "{not json"},
        {"result": '"\\u0000"'},
        {"code": "x\0", "state": TaskState.FAILED},
        {"finished_at": float("nan")},
        {"finished_at": 1e300},
    ],
    ids=["NUL", "surrogate", "no JSON", "NUL in JSON", "NUL in code", "no number", "far future"],
)
async def test_a_report_that_cannot_be_stored_fails_its_task_and_holds_up_nobody(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]], bad: dict[str, Any]
) -> None:
    agent, before, wrong, after = Agent(recorder), await running(), await running(), await running()
    spoilt = msgspec.structs.replace(await ending(conn, wrong), **bad)
    await agent.report(
        Progress([Note(after, TOKEN, "{broken", None)]),
        Output([Chunk(after, TOKEN, 1, 7, 1.0, b"no such stream"), Chunk(after, TOKEN, 2, 1, 1.0, b"fine")]),
        Finished([await ending(conn, before), spoilt, await ending(conn, after)]),
    )
    await recorder.flush()
    assert await agent.acknowledged() == 1
    assert [await state(conn, task) for task in (before, wrong, after)] == ["succeeded", "failed", "succeeded"]
    view = await tasks.get(conn, wrong)
    assert view.error_code == "bad_report"
    assert [piece.data for piece in await tasks.output(conn, after)] == [b"fine"]


@pytest.mark.parametrize("time", [1e12, float("inf"), float("nan"), -1e12])
async def test_a_time_that_no_clock_shows_leaves_tasks_that_can_be_read(
    conn: Connection, recorder: Recorder, running: Callable[[], Awaitable[int]], time: float
) -> None:
    agent, begun, over = Agent(recorder), await running(), await running()
    spoilt = msgspec.structs.replace(await ending(conn, over), finished_at=time)
    await agent.report(Started([Start(begun, TOKEN, time)]), Output([Chunk(begun, TOKEN, 1, 1, time, b"x")]))
    await recorder.flush()
    await agent.report(Finished([spoilt]))
    await recorder.flush()
    assert [await state(conn, task) for task in (begun, over)] == ["running", "failed"]
    assert len(await tasks.output(conn, begun)) == 1
