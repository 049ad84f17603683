"""Load: a steady stream of tasks for benchmarks/fleet.py, half of them due at once, half at an instant ahead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import psutil

from benchmarks.common import connection
from mainspring.store.postgres.database import Connection

TICK = 0.01  # seconds between two statements of each half: its tasks have one instant
AHEAD = 6.0  # seconds from the submission to the instant: more than the lead

_SUBMIT = "select mainspring.enqueue_many('stamp', array_fill('{}'::jsonb, array[$1::integer]), run_at => $2)"


class Load:
    """What was submitted: the time of each task's submission, or its instant, in seconds since 1970."""

    def __init__(self, at_once: Connection, ahead: Connection) -> None:
        self._at_once, self._ahead = at_once, ahead
        self.called: dict[int, float] = {}
        self.planned: dict[int, float] = {}
        self._backends: list[psutil.Process] = []

    async def find_backends(self) -> None:
        for conn in (self._at_once, self._ahead):
            self._backends.append(psutil.Process(await conn.fetchval("select pg_backend_pid()")))

    @property
    def tasks(self) -> int:
        return len(self.called) + len(self.planned)

    def cpu(self) -> float:
        """Seconds that PostgreSQL has spent on the submissions."""
        return sum(sum(backend.cpu_times()[:2]) for backend in self._backends)

    async def submit(self, rate: int, seconds: float) -> None:
        """Whatever a statement takes, the next one has all tasks that should be there by then."""
        began = time.time()
        await asyncio.gather(
            self._stream(self._at_once, self.called, None, rate - rate // 2, began, seconds),
            self._stream(self._ahead, self.planned, AHEAD, rate // 2, began, seconds),
        )

    async def _stream(
        self, conn: Connection, found: dict[int, float], ahead: float | None, rate: int, began: float, seconds: float
    ) -> None:
        while (now := time.time()) < began + seconds:
            wanted = int((now - began) * rate) - len(found)
            at = now if ahead is None else now + ahead
            instant = None if ahead is None else datetime.fromtimestamp(at, UTC)
            if wanted > 0:
                found.update(dict.fromkeys(await conn.fetchval(_SUBMIT, wanted, instant), at))
            await asyncio.sleep(max(0.0, now + TICK - time.time()))


@asynccontextmanager
async def load(dsn: str) -> AsyncIterator[Load]:
    async with connection(dsn) as at_once, connection(dsn) as ahead:
        load = Load(at_once, ahead)
        await load.find_backends()
        yield load
