"""QueueCounter: the leader counts the live tasks by job and state, in bounded time.

Exact while they are not many; else from a sample of the table's blocks, and then it says so. A whole count that takes
too long is given up for a minute; a sample that does is smaller the next time. Tasks that ended without an attempt are
added here to the figures, and to the tallies that this server tells as metrics.
Writes  store.figures.queues     (the counts)
        store.figures.rollups    (what was noted)
Next:   store/figures/queues.py
"""

from __future__ import annotations

from collections.abc import Callable

import asyncpg

from mainspring.model.tasks.states import TaskState
from mainspring.store.figures import queues, rollups
from mainspring.store.figures.queues import Count
from mainspring.store.postgres.database import Connection, Database
from mainspring.wire.clock import boottime

COUNT_EVERY = 5.0  # seconds
EXACT = 200_000  # live tasks, up to which all are counted
SAMPLE = 1_000  # blocks of a sample, where PostgreSQL has the time; a block has 20 to 40 tasks
LEAST = 50
EXACT_WITHIN = 0.13  # seconds; both together are at most 0.2
SAMPLE_WITHIN = 0.07
SAMPLED_FOR = 60.0  # seconds after a whole count that took too long


class QueueCounter:
    def __init__(self, database: Database, note: Callable[[int, TaskState, int], None]) -> None:
        self._database = database
        self._note = note  # given a job, a state and how many of its tasks ended in it without an attempt
        self._tasks = 0  # at the last count
        self._sampled_until = 0.0  # boot time
        self._sample = SAMPLE  # blocks

    async def step(self) -> int:
        began = boottime()
        async with self._database.acquire() as conn:
            for noted in await rollups.fold_notes(conn):
                self._note(*noted)
            count = await self._count(conn)
            if count is not None:
                self._tasks = count.tasks
                await queues.write(conn, count, boottime() - began)
        return 0

    async def _count(self, conn: Connection) -> Count | None:
        """None: PostgreSQL is too busy even for a sample."""
        if self._tasks <= EXACT and boottime() >= self._sampled_until:
            count = await _within(conn, 1.0, EXACT_WITHIN)
            if count is not None:
                return count
            self._sampled_until = boottime() + SAMPLED_FOR
        sample = min(self._sample, SAMPLE)
        count = await _within(conn, sample / max(sample, await queues.blocks(conn)), SAMPLE_WITHIN)
        self._sample = max(LEAST, sample // 2) if count is None else 2 * sample
        return count


async def _within(conn: Connection, share: float, seconds: float) -> Count | None:
    try:
        return await queues.count_within(conn, share, seconds)
    except asyncpg.QueryCanceledError:
        return None
