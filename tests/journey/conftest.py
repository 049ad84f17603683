"""What the journeys share: worker processes, their ledger, and what the database says."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import mainspring
from mainspring import App
from mainspring.store.postgres.database import Connection
from tests.conftest import eventually
from tests.journey.forks import Forked
from tests.journey.worker import make_app
from tests.ledger import Line, read_ledger

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` listens: where it meets no other process of this machine."""
    monkeypatch.setenv("MAINSPRING_LISTEN", "127.0.0.1:0")


@pytest.fixture
def default_ports() -> Iterator[None]:
    """The ports from 7070 on are this test's alone: another process of the run may want the same."""
    with Path(tempfile.gettempdir(), f"mainspring-tests-{os.getuid()}.ports").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Worker:
    """One worker process."""

    def __init__(self, dsn: str, ledger: Path, **settings: Any) -> None:
        source = str(Path(mainspring.__file__).parents[1])
        path = os.pathsep.join([source, str(ROOT), os.environ.get("PYTHONPATH", "")])
        given = [f"{name}={value}" for name, value in settings.items()]
        self.process = Forked(
            *(dsn, str(ledger), *given),
            module="tests.journey.worker",
            env={**os.environ, "PYTHONPATH": path},
            cwd=ROOT,
            stderr=2,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    async def ready(self) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(self.process.stdout.readline) == "ready\n"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait until it has gone; returns its exit code."""
        return await asyncio.to_thread(self.process.wait, 60)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> None:
        self.signal(signal.SIGTERM)
        assert await self.ended() == 0


class Story:
    """A database, a ledger, and the workers of one test."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self.dsn = dsn
        self.directory = directory
        self._ledger = directory / "ledger"
        self.workers: list[Worker] = []
        self.app: App = make_app(dsn)  # submits, and never runs anything

    async def worker(self, **settings: Any) -> Worker:
        worker = Worker(self.dsn, self._ledger, **{"poll": 0.2, **settings})
        self.workers.append(worker)
        await worker.ready()
        return worker

    def ledger(self) -> list[Line]:
        return read_ledger(self._ledger)

    def written(self) -> int:
        return self._ledger.read_bytes().count(b"\n") if self._ledger.exists() else 0

    async def until_written(self, lines: int) -> None:
        async def there() -> bool:
            return self.written() >= lines

        await eventually(there, timeout=60)

    async def until_all_ended(self, conn: Connection, timeout: float = 60) -> None:
        async def none_left() -> bool:
            return not await conn.fetchval("select exists (select from mainspring.task)")

        await eventually(none_left, timeout=timeout)

    def clean_up(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                with suppress(ProcessLookupError):
                    worker.signal(signal.SIGCONT)
                worker.process.kill()
            worker.process.wait(30)
            if worker.process.stdout is not None:
                worker.process.stdout.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Story]]:
    """Stories whose processes are ended with the test."""
    stories: list[Story] = []
    yield stories
    for story in stories:
        story.clean_up()


@pytest.fixture
async def story(dsn: str, tmp_path: Path, processes: list[Story]) -> AsyncIterator[Story]:
    story = Story(dsn, tmp_path)
    processes.append(story)
    async with story.app:
        yield story


async def assert_each_ended_once(conn: Connection, story: Story, tasks: int) -> Counter[int]:
    """By the database each task ended once and succeeded; by the ledger each has an effect, and no token two.

    Returns the number of effects of each task.
    """
    assert await conn.fetchval("select count(*) from mainspring.task") == 0
    rows = await conn.fetch("select id, state, token from mainspring.task_history")
    assert len(rows) == tasks
    assert len({row["id"] for row in rows}) == tasks
    assert {row["state"] for row in rows} == {10}
    effects = [line for line in story.ledger() if line.event == "effect"]
    by_token = Counter((line.task, line.token) for line in effects)
    assert max(by_token.values()) == 1
    assert {row["id"] for row in rows} == {line.task for line in effects}
    assert {(row["id"], row["token"]) for row in rows} <= by_token.keys(), "what ended a task had its effect"
    return Counter(line.task for line in effects)
