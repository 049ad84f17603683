"""What the tests of the recorder share: it, an agent that reports to it, and tasks that this agent runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mainspring.model.messages import AgentMessage, Ending, ServerMessage
from mainspring.model.reports import Report, checked
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TaskState
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.recorder import Recorder
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs, tasks
from mainspring.wire.channel import memory_pair
from mainspring.wire.link import Link

TOKEN = 50


class Agent:
    """The agent's end of a channel whose server's end the recorder settles."""

    def __init__(self, recorder: Recorder) -> None:
        near, far = memory_pair()
        self.near: Link[AgentMessage, ServerMessage] = Link(near)
        self.far: Link[ServerMessage, AgentMessage] = Link(far)
        self._recorder = recorder

    async def report(self, *reports: Report) -> None:
        await self.near.send(list(reports))
        sequence, messages = await self.far.receive()
        self._recorder.submit(self.far, sequence, [checked(message) for message in messages])  # type: ignore[arg-type]

    async def acknowledged(self) -> int:
        """How many frames are acknowledged by now."""
        receiving = asyncio.ensure_future(self.near.receive())
        for _ in range(5):
            await asyncio.sleep(0)
        receiving.cancel()
        return self.near.sent - self.near.unacknowledged


@pytest.fixture
async def recorder(database: Database, conn: Connection) -> Recorder:
    await jobs.register(conn, {"job": Definition(Python("job"), Retry(retries=1, backoff="fixed", delay=60.0))})
    catalogue = Catalogue(database)
    await catalogue.refresh()
    return Recorder(database, catalogue)


@pytest.fixture
async def running(conn: Connection, recorder: Recorder) -> Callable[[], Awaitable[int]]:
    async def make() -> int:
        id = int(await conn.fetchval("select mainspring.enqueue('job')"))
        await conn.execute(
            "update mainspring.task set state = 2, token = $2, session = 1, attempt = 1 where id = $1", id, TOKEN
        )
        return id

    return make


async def ending(conn: Connection, task: int, state: TaskState = TaskState.SUCCEEDED, **fields: Any) -> Ending:
    job = await conn.fetchval("select id from mainspring.job")
    return Ending(task, TOKEN, job, 1, state, 1_790_000_000.0, 1_790_000_001.0, **fields)


def counted(recorder: Recorder) -> dict[tuple[str, str], int]:
    """What was tallied, whichever job it was: the end of a task or not, and the outcome."""
    tallies = recorder.tallies
    return {
        (kind, state.label): cell.count
        for kind, cells in (("ended", tallies.ended), ("again", tallies.again))
        for (_, state), cell in cells.items()
    }


async def state(conn: Connection, task: int) -> str:
    return (await tasks.get(conn, task)).state
