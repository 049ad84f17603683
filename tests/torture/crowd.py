"""The crowd: submits more of a bounded job than may wait, all the time, and looks at how many do.

A submission that is refused is given up. One without an answer may still be under way when its submitter comes back.
Next: tests/torture/run.py
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg

from tests.torture.app import BOUND
from tests.torture.load import ANSWER_WITHIN

SUBMITTERS = 4
EVERY = 0.1  # seconds between two submissions of a submitter
LOOK_EVERY = 0.05  # seconds
WORK = 0.2  # seconds of a task, of which one runs at a time: fewer end than are submitted

# What was claimed before came back, and was not refused.
_WAITING = """
    select count(*) from mainspring.task t join mainspring.job j on j.id = t.job_id
     where j.name = 'crowded' and t.state < 2 and t.token is null
"""


class Crowd:
    def __init__(self, dsn: str, connected: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._dsn = dsn
        self._connected = connected  # past all proxies
        self.accepted: dict[str, int] = {}  # by key: the task
        self.refused = 0
        self.most_waiting = 0  # at any look

    async def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(until, self._look))
            for submitter in range(SUBMITTERS):
                group.create_task(self._submit_all(submitter, until))

    async def _submit_all(self, submitter: int, until: float) -> None:
        number = 0

        async def submit() -> None:
            nonlocal number
            conn = await asyncpg.connect(self._dsn, timeout=ANSWER_WITHIN, command_timeout=ANSWER_WITHIN)
            try:
                while time.monotonic() < until:
                    key = f"crowd {submitter}-{number}"
                    try:
                        self.accepted[key] = await self._submit(conn, key, number)
                    except asyncpg.PostgresError as error:
                        if error.sqlstate != "MSQ01":
                            raise
                        self.refused += 1
                    number += 1
                    await asyncio.sleep(EVERY)
            finally:
                conn.terminate()

        await self._again(until, submit)

    async def _submit(self, conn: Any, key: str, number: int) -> int:
        query = "select mainspring.enqueue('crowded', $1::jsonb, key => $2)"
        task: int = await conn.fetchval(query, json.dumps({"number": number, "wait": WORK}), key)
        return task

    async def _look(self) -> None:
        async with self._connected() as conn:
            while True:
                self.most_waiting = max(self.most_waiting, await conn.fetchval(_WAITING))
                await asyncio.sleep(LOOK_EVERY)

    @staticmethod
    async def _again(until: float, act: Callable[[], Awaitable[None]]) -> None:
        """Do it for so long, and again whenever the connection is lost. A submission has the same key then."""
        while (left := until - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    await act()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.2)


ALLOWED = BOUND + 2 * SUBMITTERS  # a lost answer leaves one under way while its submitter is back
