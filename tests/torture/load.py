"""The client: submits tasks of every delivery class, and knows which of them were accepted.

An answer that does not come says nothing: the same submission is repeated under the same key until one does.
Next: tests/torture/run.py
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import asyncpg

SUBMITTERS = 4
RATE = 8.0  # tasks in a second, of all submitters
KEYS = 20  # exclusive ones
ANSWER_WITHIN = 5.0  # seconds

JOBS = {
    "work": 26, "exclusive": 18, "launch": 9, "pay": 10, "command": 11, "hasty": 10,
    "gather": 8, "pour": 4, "volley": 4,
}  # fmt: skip
WAITS = {0.0: 30, 0.1: 30, 0.5: 25, 2.0: 10, 5.0: 5}  # seconds at work; the last is longer than a lease
FAILS = {0: 88, 1: 8, 2: 4}  # attempts that fail by plan
PRIORITIES = {2: 25, 5: 60, 9: 15}


class Submission(NamedTuple):
    key: str
    job: str
    args: dict[str, Any]
    priority: int = 5


def submissions(seed: int, submitter: int, jobs: Mapping[str, int] = JOBS, waits: Mapping[float, int] = WAITS) -> Any:
    """Endless, and the same for the same seed."""
    chance = random.Random(f"load {seed} {submitter}")
    number = 0
    while True:
        number += 1
        job = _pick(chance, jobs)
        args = {"number": number, "wait": _pick(chance, waits), "fails": _pick(chance, FAILS)}
        if job == "exclusive":
            args |= {"key": f"k{chance.randrange(KEYS)}", "wait": min(args["wait"], 2.0)}
        yield Submission(f"{submitter}-{number}", job, args, _pick(chance, PRIORITIES))


def _pick(chance: random.Random, weights: Mapping[Any, int]) -> Any:
    return chance.choices(list(weights), list(weights.values()))[0]


class Load:
    def __init__(self, dsn: str, seed: int, jobs: Mapping[str, int], waits: Mapping[float, int]) -> None:
        self._dsn = dsn
        self._seed = seed
        self._jobs = jobs
        self._waits = waits
        self.accepted: dict[str, int] = {}
        self.accepted_at: dict[int, int] = {}  # by task: boot time in nanoseconds
        self.repeated = 0  # submissions whose first answer did not come

    async def run(self, seconds: float) -> None:
        """Submit for so long; returns when all that was submitted is accepted."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for submitter in range(SUBMITTERS):
                group.create_task(self._submit_all(submitter, until))

    async def _submit_all(self, submitter: int, until: float) -> None:
        conn: Any = None
        pace = random.Random(f"pace {self._seed} {submitter}")
        for submission in submissions(self._seed, submitter, self._jobs, self._waits):
            if time.monotonic() >= until:
                break
            while submission.key not in self.accepted:
                try:
                    conn = conn or await asyncpg.connect(self._dsn, timeout=ANSWER_WITHIN)
                    task = self.accepted[submission.key] = await self._submit(conn, submission)
                    self.accepted_at[task] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    self.repeated += 1
                    if conn is not None:
                        conn.terminate()
                    conn = None
                    await asyncio.sleep(0.2)
            await asyncio.sleep(pace.expovariate(RATE / SUBMITTERS))
        if conn is not None:
            conn.terminate()

    async def _submit(self, conn: Any, submission: Submission) -> int:
        task: int = await conn.fetchval(
            "select mainspring.enqueue($1, $2::jsonb, key => $3, concurrency_key => $4, priority => $5)",
            submission.job,
            json.dumps(submission.args),
            submission.key,
            submission.args.get("key"),
            str(submission.priority),
            timeout=ANSWER_WITHIN,
        )
        return task
