"""DependenciesLoop: tasks that waited for others go on, or are skipped.

Reads   what the recorder has ended
Writes  store.dependencies   (blocked → pending, skipped)
Next:   store/tasks/dependencies.py
"""

from __future__ import annotations

import asyncio

from mainspring.loops import Signal
from mainspring.model.messages import Ending
from mainspring.store.postgres.database import Database
from mainspring.store.tasks import dependencies
from mainspring.wire.clock import boottime

BATCH = 5000
LOOK_EVERY = 0.9  # seconds between looks for what nobody told us of


class DependenciesLoop:
    def __init__(self, database: Database) -> None:
        self._line = database.line("turns")
        self._ended: list[int] = []
        self._looked_at = 0.0
        self._any = False  # whether anybody waits for anything, at the last look
        self.wake = asyncio.Event()
        self.on_requeued: Signal[[]] = Signal()

    def ended(self, endings: list[Ending]) -> None:
        """The recorder has committed these."""
        if self._any:
            self._ended += [ending.task for ending in endings]
            self.wake.set()

    async def step(self) -> int:
        """Settle what ended since the last step, and what nobody settled."""
        parents, self._ended = self._ended[:BATCH], self._ended[BATCH:]
        async with self._line as conn:
            self._any = await conn.fetchval("select exists (select from mainspring.dependency)")
            if not self._any:
                return 0
            if boottime() - self._looked_at >= LOOK_EVERY:
                self._looked_at = boottime()
                parents += await dependencies.left_over(conn, BATCH)
            if not parents:
                return 0
            pending = await dependencies.settle(conn, parents)
        if pending:
            self.on_requeued.send()
        return len(self._ended)

    async def close(self) -> None:
        await self._line.close()
