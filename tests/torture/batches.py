"""The client of batches: opens, fills and closes one after another, each in one transaction.

A batch has no key. An answer that does not come says nothing, so the same one is looked for by its name before it is
opened again. Its tasks have keys: a second batch of that name, which a late commit may leave, finds them taken and has
fewer or none.
Next: tests/torture/run.py
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import asyncpg

from tests.torture.load import ANSWER_WITHIN

EVERY = 0.7  # seconds between two batches, on average
MEMBERS = {"work": 45, "pay": 10, "launch": 10, "doomed": 25, "grow": 10}
WAITS = (0.0, 0.3, 1.0)


def members(seed: int, number: int) -> list[tuple[str, dict[str, Any]]]:
    """Job and arguments; none at all in some batches."""
    chance = random.Random(f"batch {seed} {number}")
    jobs = chance.choices(list(MEMBERS), list(MEMBERS.values()), k=chance.randrange(8))
    return [(job, {"number": turn, "wait": chance.choice(WAITS)}) for turn, job in enumerate(jobs)]


class BatchLoad:
    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._seed = seed
        self.opened: dict[int, int] = {}  # the batches that were accepted, and how many tasks each got

    async def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        pace = random.Random(f"batches {self._seed}")
        conn: Any = None
        number = 0
        while time.monotonic() < until:
            number += 1
            is_accepted = False
            while not is_accepted:
                try:
                    conn = conn or await asyncpg.connect(
                        self._dsn, timeout=ANSWER_WITHIN, command_timeout=ANSWER_WITHIN
                    )
                    await self._open(conn, number)
                    is_accepted = True
                except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    if conn is not None:
                        conn.terminate()
                    conn = None
                    await asyncio.sleep(0.2)
            await asyncio.sleep(pace.expovariate(1 / EVERY))
        if conn is not None:
            conn.terminate()

    async def _open(self, conn: Any, number: int) -> None:
        name = f"batch {number}"
        told = '{"job": "told"}'
        joined = 0
        async with asyncio.timeout(ANSWER_WITHIN), conn.transaction():
            if await conn.fetchval("select exists (select from mainspring.batch where name = $1)", name):
                return
            batch = await conn.fetchval(
                "select mainspring.open_batch($1, on_success => $2, on_complete => $2, on_failure => $2)", name, told
            )
            for turn, (job, args) in enumerate(members(self._seed, number)):
                task = await conn.fetchval(
                    "select mainspring.enqueue($1, $2::jsonb, key => $3, batch => $4)",
                    *(job, json.dumps(args), f"{name}-{turn}", batch),
                )
                joined += await conn.fetchval("select mainspring.is_new($1)", task)
            await conn.fetchval("select mainspring.close_batch($1)", batch)
        self.opened[batch] = joined
