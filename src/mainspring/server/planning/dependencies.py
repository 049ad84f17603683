"""DependenciesLoop: unblock tasks whose parents have ended; skip or fail those that need a success, and had none.

Reads   endings, from the recorder's signal
Writes  store.tasks.dependencies   (blocked → pending, skipped, failed)
Next:   store/tasks/dependencies.py
"""

from __future__ import annotations

import asyncio

from mainspring.loops import Signal
from mainspring.model.messages import Ending
from mainspring.model.tasks.claim_floors import Released
from mainspring.store.postgres.database import Database
from mainspring.store.tasks import dependencies
from mainspring.wire.clock import boottime

BATCH = 5000
SEARCH_EVERY = 0.9  # seconds between searches for parents that ended on other servers


class DependenciesLoop:
    def __init__(self, database: Database) -> None:
        self._dedicated = database.dedicated("planning")
        self._ended: list[int] = []
        self._searched_at = 0.0
        self._any = False  # a task was blocked at the last step
        self.wake = asyncio.Event()
        self.on_released: Signal[[list[Released]]] = Signal()

    def ended(self, endings: list[Ending]) -> None:
        """The recorder has committed these."""
        if self._any:
            self._ended += [ending.task for ending in endings]
            self.wake.set()

    async def step(self) -> int:
        """Settle the children of a batch of parents that have ended; returns how many parents are left."""
        parents, self._ended = self._ended[:BATCH], self._ended[BATCH:]
        async with self._dedicated as conn:
            self._any = await dependencies.any_there(conn)
            if not self._any:
                return 0
            if boottime() - self._searched_at >= SEARCH_EVERY:
                self._searched_at = boottime()
                parents += await dependencies.left_over(conn, BATCH)
            if not parents:
                return 0
            released = await dependencies.settle(conn, parents)
        if released:
            self.on_released.send(released)
        return len(self._ended)
