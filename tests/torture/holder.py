"""The operator: holds a job or everything for a while, now and then, and knows when each hold was acknowledged.

An answer that does not come says nothing: it holds or releases again until one does.
Next: tests/torture/run.py
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import asyncpg

from mainspring.errors import StoreUnavailable
from mainspring.model.access.actors import Actor
from mainspring.operations.definitions import holds
from mainspring.store.postgres.database import Database
from tests.torture.evidence import HeldSpan

BETWEEN = (1.0, 4.0)  # seconds
LASTS = (3.0, 12.0)  # seconds
EVERYTHING = 0.15  # of the holds
ANSWER_WITHIN = 5.0  # seconds

OPERATOR = Actor("operator")


class Holder:
    def __init__(self, dsn: str, seed: int, jobs: Mapping[str, int]) -> None:
        self._database = Database(dsn)
        self._chance = random.Random(f"holds {seed}")
        self._jobs = sorted(jobs)
        self.spans: list[HeldSpan] = []

    async def run(self, seconds: float) -> None:
        """Hold and release for so long; nothing is held when it returns."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > LASTS[0]:
            await asyncio.sleep(min(left, self._chance.uniform(*BETWEEN)))
            job = None if self._chance.random() < EVERYTHING else self._chance.choice(self._jobs)
            lasts = self._chance.uniform(*LASTS)
            await self._until_answered(partial(_hold, job))
            since = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            await asyncio.sleep(max(0.0, min(lasts, until - time.monotonic())))
            self.spans.append(HeldSpan(job, since, time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
            await self._until_answered(partial(_release, job))

    async def _until_answered(self, act: Callable[[Any], Awaitable[object]]) -> None:
        while True:
            conn: Any = None
            try:
                async with asyncio.timeout(ANSWER_WITHIN):
                    conn = await self._database.connect()
                    await act(conn)
                    return
            except (OSError, TimeoutError, StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.2)
            finally:
                if conn is not None:
                    conn.terminate()


async def _hold(job: str | None, conn: Any) -> object:
    return await (holds.hold(conn, OPERATOR) if job is None else holds.hold_job(conn, OPERATOR, job))


async def _release(job: str | None, conn: Any) -> object:
    if job is None:
        return await holds.release(conn, OPERATOR, at_once=True)
    return await holds.release_job(conn, OPERATOR, job, at_once=True)
