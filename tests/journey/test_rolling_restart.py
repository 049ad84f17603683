"""Streams across a rolling restart of two servers: of output nothing is missing and nothing twice, of events neither
is anything missing, and what is told twice is told first after the move."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

import pytest

from mainspring.model.access.actors import Actor, Role
from mainspring.model.tasks.define_job import command, define
from mainspring.operations.definitions import jobs
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database
from tests.api.serving import Stream, Told, streaming
from tests.conftest import eventually
from tests.journey.network import Network, Process, open_network
from tests.journey.test_api_crashes import TOLD_WITHIN, client

NEVER_OVER = 30.0  # seconds: a lease in a story in which nothing dies


@pytest.fixture
async def network(dsn: str, no_servers: None, tmp_path: Path) -> AsyncIterator[Network]:
    async with open_network(dsn, tmp_path) as network:
        yield network


def port_of(server: Process) -> int:
    return int(server.told["url"].removesuffix("/agent").rpartition(":")[2])


class Follower:
    """Follows a stream, from server to server in turn: each must say `bye` before it stops."""

    def __init__(self, secret: str, path: str) -> None:
        self._secret, self._path = secret, path
        self._cursor: str | None = None
        self.streams: list[list[Told]] = []  # what each told, but `bye`

    @property
    def told(self) -> list[Told]:
        return [told for stream in self.streams for told in stream]

    async def follow(self, *ports: int) -> None:
        """Until the stream has ended by itself."""
        for port in cycle(ports):
            headers = {} if self._cursor is None else {"Last_Event_ID": self._cursor}
            async with client(port, self._secret) as caller, streaming(caller, self._path, **headers) as stream:
                if await self._heard(stream) == "ended":
                    return
            await self.before_move()

    async def before_move(self) -> None:
        """What a client does before it connects again."""

    async def _heard(self, stream: Stream) -> str:
        self.streams.append([])
        while (told := await stream.next(TOLD_WITHIN)).name != "bye":
            self._cursor = told.id or self._cursor
            self.streams[-1].append(told)
        return str(told.data["reason"])


class Events(Follower):
    """Those of tasks. A client that comes back when `beside` has heard more has missed a sample of that server."""

    def __init__(self, secret: str, beside: Events | None = None) -> None:
        super().__init__(secret, "/events?topics=tasks")
        self._beside = beside

    async def before_move(self) -> None:
        if (beside := self._beside) is not None:
            heard = len(beside.told)
            await eventually(lambda: _longer(beside.told, heard), TOLD_WITHIN)

    def ids(self, stream: int | None = None) -> list[int]:
        found = self.told if stream is None else self.streams[stream]
        return [task["id"] for told in found if told.name == "tasks" for task in told.data["changed"]]

    def resyncs(self) -> list[int]:
        """The streams that had one."""
        return [place for place, stream in enumerate(self.streams) for told in stream if told.name == "resync"]


@asynccontextmanager
async def submitting(dsn: str) -> AsyncIterator[list[int]]:
    """All the time, tasks that do not run: each changes once, when it is created."""
    database = Database(dsn)
    conn = await database.connect()
    made: list[int] = []

    async def submit() -> None:
        while True:
            made.append(await conn.fetchval("select mainspring.enqueue('later', delay => '1 hour')"))
            await asyncio.sleep(0.05)

    submits = asyncio.create_task(submit())
    try:
        yield made
    finally:
        submits.cancel()
        await asyncio.wait([submits])
        await conn.close()
        await database.close()


async def test_output_and_events_are_followed_across_a_rolling_restart(
    network: Network, dsn: str, conn: Connection, tmp_path: Path
) -> None:
    over, count = tmp_path / "over", tmp_path / "count"
    script = f"""
        n=0
        while [ ! -e {shlex.quote(str(over))} ]; do n=$((n + 1)); echo "line $n"; sleep 0.02; done
        echo $n > {shlex.quote(str(count))}
    """
    await jobs.put(conn, Actor("test"), "talks", define(command(["sh", "-c", script]), {}))
    await jobs.put(conn, Actor("test"), "later", define(command(["true"]), {}))
    _, secret = await tokens.create(conn, "follower", role=Role.VIEWER)

    await network.token()
    first, second = await asyncio.gather(*(network.server(lease=NEVER_OVER) for _ in range(2)))
    await network.agent(first.told["url"], second.told["url"])
    ports = port_of(first), port_of(second)
    task: int = await conn.fetchval("select mainspring.enqueue('talks')")
    output, beside = Follower(secret, f"/tasks/{task}/output"), Events(secret)
    events = Events(secret, beside)
    async with submitting(dsn) as made, asyncio.TaskGroup() as followers:

        async def until_all_are_told(stream: int) -> None:
            """On the stream of this number, what was submitted last; and output goes on."""
            last, seen = made[-1], len(output.told)

            async def told() -> bool:
                return len(events.streams) > stream and last <= max(events.ids(stream), default=0)

            await eventually(told, TOLD_WITHIN)
            await eventually(lambda: _longer(output.told, seen), TOLD_WITHIN)

        followed = followers.create_task(output.follow(*ports))
        listening = [
            followers.create_task(events.follow(*ports)),
            followers.create_task(beside.follow(ports[1], ports[0])),  # the second server knows what it has missed
        ]
        await eventually(lambda: _longer(made, 0))
        await until_all_are_told(0)
        known = events.ids()[0]

        await first.stop()
        await until_all_are_told(1)
        assert events.resyncs() == [], "a server that has listeners knows what was missed"
        told = set(events.ids())
        assert [id for id in made if known <= id <= max(told) and id not in told] == []
        again = await network.server(lease=NEVER_OVER, port=ports[0])

        await second.stop()
        await until_all_are_told(2)
        assert events.resyncs() == [2], "nobody had listened to the one that has just started"
        await network.server(lease=NEVER_OVER, port=ports[1])
        assert again.alive

        over.touch()
        await followed
        for one in listening:
            one.cancel()

    lines = "".join(told.data["text"] for told in output.told if told.name == "output").splitlines()
    assert lines == [f"line {number + 1}" for number in range(int(count.read_text()))]
    assert len(output.streams) == 3
    assert [told.data for told in output.told if told.name == "attempt"] == [], "a restart costs no attempt"
    for place in range(3):
        ids = events.ids(place)
        assert len(ids) == len(set(ids)), "no stream tells twice"
    moved = next(told for told in events.streams[1] if told.name == "tasks")
    repeated = set(events.ids(0)) & set(events.ids(1))
    assert repeated <= {task["id"] for task in moved.data["changed"]}, "only the first event after the move repeats"


async def _longer(seen: list[Told] | list[int], than: int) -> bool:
    return len(seen) > than
