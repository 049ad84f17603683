"""The second flush: successes are written beside others, and no report overtakes one on the same attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.server.recording.conftest import TOKEN, Agent, counted, ending, state

from mainspring.errors import StoreUnavailable
from mainspring.model.messages import Finished, Note, Progress
from mainspring.model.tasks.states import TaskState
from mainspring.server.recording import flush as flush_module
from mainspring.server.recording import recorder as recorder_module
from mainspring.server.recording.recorder import MOST_UNSETTLED, Recorder
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import tasks

Running = Callable[[], Awaitable[int]]


class Lock:
    """On the row of a task, by a connection of its own: what writes to it waits."""

    def __init__(self, conn: Connection, other: Connection, task: int) -> None:
        self.task = task
        self._conn, self._other = conn, other

    async def take(self) -> None:
        await self._other.execute(f"begin; select from mainspring.task where id = {self.task} for update")

    async def is_waited_for(self) -> None:
        async with asyncio.timeout(20):
            while not await self._conn.fetchval("select exists (select from pg_locks where not granted)"):
                await asyncio.sleep(0)

    async def release(self) -> None:
        await self._other.execute("rollback")


@pytest.fixture(autouse=True)
def two_fill_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "SECOND_FLUSH_FROM", 2)


@pytest.fixture
def agent(recorder: Recorder) -> Agent:
    return Agent(recorder)


@pytest.fixture
async def locked(database: Database, conn: Connection, running: Running) -> AsyncIterator[Lock]:
    other = await database.connect()
    lock = Lock(conn, other, await running())
    await lock.take()
    yield lock
    await other.close()


async def report(conn: Connection, agent: Agent, *made: int, ended: TaskState = TaskState.SUCCEEDED) -> None:
    await agent.report(Finished([await ending(conn, task, ended) for task in made]))


async def flushing(conn: Connection, recorder: Recorder, agent: Agent, lock: Lock) -> asyncio.Task[int]:
    """The first flush, which waits for the lock."""
    await report(conn, agent, lock.task)
    first = asyncio.create_task(recorder.flush())
    await lock.is_waited_for()
    return first


async def test_successes_are_written_beside_others_and_acknowledged_in_their_order(
    conn: Connection, recorder: Recorder, agent: Agent, running: Running, locked: Lock
) -> None:
    first = await flushing(conn, recorder, agent, locked)
    assert not recorder.second_wake.is_set()
    made = [await running() for _ in range(2)]
    await report(conn, agent, *made)
    assert recorder.second_wake.is_set()
    assert await recorder.flush_beside() == 2
    assert [await state(conn, task) for task in made] == ["succeeded", "succeeded"]
    assert await agent.acknowledged() == 0, "the frame before is not written"
    assert recorder.backlog == 1
    assert await recorder.flush_beside() == 0
    assert not recorder.idle.is_set()
    await locked.release()
    await first
    assert await agent.acknowledged() == 2
    assert await recorder.flush() == 0
    assert recorder.idle.is_set()
    assert counted(recorder) == {("ended", "succeeded"): 3}


async def test_only_so_many_flushes_are_written_before_the_oldest_is_acknowledged(
    conn: Connection,
    recorder: Recorder,
    agent: Agent,
    running: Running,
    locked: Lock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flush_module, "FLUSH_ITEMS", 0.5)  # two successes
    first = await flushing(conn, recorder, agent, locked)
    for _ in range(MOST_UNSETTLED):
        await report(conn, agent, await running(), await running())
    written = 0
    while count := await recorder.flush_beside():
        written += count
    assert written == 2 * (MOST_UNSETTLED - 1), "the first flush is one of them"
    assert recorder.backlog == 1 + 2
    await locked.release()
    await first
    assert await recorder.flush_beside() == 2
    assert await agent.acknowledged() == MOST_UNSETTLED + 1


async def test_only_so_many_flushes_are_written_while_the_second_one_hangs(
    conn: Connection,
    recorder: Recorder,
    agent: Agent,
    running: Running,
    locked: Lock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flush_module, "FLUSH_ITEMS", 0.25)  # one success
    await report(conn, agent, locked.task)
    await report(conn, agent, await running())
    second = asyncio.create_task(recorder.flush_beside())
    await locked.is_waited_for()
    for _ in range(MOST_UNSETTLED + 1):
        await report(conn, agent, await running())
    for _ in range(MOST_UNSETTLED - 1):
        assert await recorder.flush() == 1
    waiting = asyncio.create_task(recorder.flush())
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done()
    await locked.release()
    assert await second == await waiting == 1


async def test_few_successes_wait_for_the_first_flush(
    conn: Connection, recorder: Recorder, agent: Agent, running: Running, locked: Lock
) -> None:
    first = await flushing(conn, recorder, agent, locked)
    await report(conn, agent, await running())
    assert not recorder.second_wake.is_set()
    assert await recorder.flush_beside() == 0
    assert recorder.backlog == 2
    await locked.release()
    await first


async def test_what_a_session_reports_after_something_else_waits_for_it(
    conn: Connection, recorder: Recorder, agent: Agent, running: Running, locked: Lock
) -> None:
    first = await flushing(conn, recorder, agent, locked)
    made = [await running() for _ in range(3)]
    await agent.report(Progress([Note(made[0], TOKEN, "0.5", None)]))
    await report(conn, agent, *made)
    assert await recorder.flush_beside() == 0
    assert [await state(conn, task) for task in made] == ["assigned"] * 3
    await locked.release()
    await first
    while await recorder.flush():
        pass
    assert (await tasks.get(conn, made[0])).progress == 0.5
    assert await agent.acknowledged() == 3


async def test_what_the_first_flush_has_taken_and_not_written_comes_before_what_follows_it(
    conn: Connection,
    recorder: Recorder,
    agent: Agent,
    running: Running,
    locked: Lock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second flush waits for the lock; the first takes another flush meanwhile, and stands behind it."""
    monkeypatch.setattr(flush_module, "FLUSH_ITEMS", 1)
    made = [await running() for _ in range(3)]
    await report(conn, agent, locked.task, ended=TaskState.FAILED)
    await agent.report(Progress([Note(made[0], TOKEN, "0.5", None)]))
    await report(conn, agent, *made)

    async def flush_all() -> None:
        while await recorder.flush():
            pass

    first = asyncio.create_task(flush_all())
    await locked.is_waited_for()
    second = asyncio.create_task(recorder.flush_beside())
    await asyncio.sleep(0)
    await locked.release()
    await asyncio.gather(first, second)
    assert (await tasks.get(conn, made[0])).progress == 0.5
    assert await agent.acknowledged() == 3


async def behind_the_second(
    conn: Connection, recorder: Recorder, agent: Agent, running: Running, locked: Lock
) -> tuple[asyncio.Task[int], asyncio.Task[int], list[int]]:
    """The second flush, which waits for the lock; the first, which waits for it; the failed tasks that this one has."""
    await report(conn, agent, locked.task, await running())
    second = asyncio.create_task(recorder.flush_beside())
    await locked.is_waited_for()
    made = [await running() for _ in range(2)]
    await report(conn, agent, *made, ended=TaskState.FAILED)
    first = asyncio.create_task(recorder.flush())
    await asyncio.wait([first], timeout=0.1)
    return first, second, made


async def test_anything_but_successes_waits_for_the_second_flush(
    conn: Connection, recorder: Recorder, agent: Agent, running: Running, locked: Lock
) -> None:
    first, second, made = await behind_the_second(conn, recorder, agent, running, locked)
    assert [await state(conn, task) for task in made] == ["assigned", "assigned"]
    await locked.release()
    await asyncio.gather(first, second)
    assert [await state(conn, task) for task in made] == ["pending", "pending"]
    assert await agent.acknowledged() == 2


async def test_what_was_taken_and_waited_for_the_second_flush_is_written_after_a_stop(
    conn: Connection, recorder: Recorder, agent: Agent, running: Running, locked: Lock
) -> None:
    first, second, made = await behind_the_second(conn, recorder, agent, running, locked)
    assert recorder.backlog == 4
    for each in (first, second):
        each.cancel()
    await asyncio.wait([first, second])
    assert first.cancelled()
    assert second.cancelled()
    assert recorder.may_lack_reports
    await locked.release()
    while await recorder.flush():
        pass
    assert [await state(conn, task) for task in (locked.task, *made)] == ["succeeded", "pending", "pending"]
    assert await agent.acknowledged() == 2
    assert not recorder.may_lack_reports
    assert recorder.idle.is_set()


async def test_what_the_second_flush_could_not_write_is_written_by_the_first(
    conn: Connection, recorder: Recorder, agent: Agent, running: Running, locked: Lock
) -> None:
    await report(conn, agent, locked.task, await running())
    second = asyncio.create_task(recorder.flush_beside())
    await locked.is_waited_for()
    later = [await running() for _ in range(2)]
    await report(conn, agent, *later)
    assert await conn.fetch("select pg_terminate_backend(pid, 5000) from pg_locks where not granted")
    with pytest.raises(StoreUnavailable):
        await second
    recorder.wake.clear()
    assert recorder.may_lack_reports
    assert await recorder.flush_beside() == 0, "first what may not be written"
    await locked.release()
    assert await recorder.flush() == 2
    assert [await state(conn, task) for task in (locked.task, *later)] == ["succeeded", "assigned", "assigned"]
    assert await agent.acknowledged() == 1
    assert await recorder.flush() == 2
    assert await agent.acknowledged() == 2
    assert counted(recorder) == {("ended", "succeeded"): 4}


async def test_a_report_that_comes_twice_at_once_counts_once(
    conn: Connection, recorder: Recorder, agent: Agent, running: Running, locked: Lock
) -> None:
    """An agent that reconnects sends again what is just being written."""
    first = await flushing(conn, recorder, agent, locked)
    again = Agent(recorder)
    await report(conn, again, locked.task, await running())
    second = asyncio.create_task(recorder.flush_beside())
    async with asyncio.timeout(20):
        while await conn.fetchval("select count(*) from pg_locks where not granted") < 2:
            await asyncio.sleep(0)
    await locked.release()
    await asyncio.gather(first, second)
    assert [await each.acknowledged() for each in (agent, again)] == [1, 1]
    assert counted(recorder) == {("ended", "succeeded"): 2}
    assert recorder.tallies.stale == 0
