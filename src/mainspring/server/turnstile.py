"""Turnstile: tasks of schedules that must not overlap pass one by one, or not at all, by their policy.

Reads   store.turns.lanes    where a task waits that is due soon
Asks    model.overlap        what becomes of it
Writes  store.turns          (blocked → pending, blocked → skipped, and those that must stop)
Next:   store/turns.py, then server/dispatcher.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.model.messages import Ending
from mainspring.model.overlap import decide
from mainspring.store import turns
from mainspring.store.database import Connection, Database


class Turnstile:
    def __init__(self, database: Database, lead: float) -> None:
        self._line = database.line()
        self._lead = lead
        self._any = False  # whether anything waited at the last look
        self.wake = asyncio.Event()
        self.on_released: list[Callable[[], None]] = []
        self.on_stopping: list[Callable[[], None]] = []

    def ended(self, _endings: list[Ending]) -> None:
        """The recorder has committed some endings: somebody's turn may have come."""
        if self._any:
            self.wake.set()

    async def step(self) -> int:
        """Look at all lanes where somebody waits; returns how many tasks were moved."""
        async with self._line as conn:
            waiting = await turns.lanes(conn, within=self._lead)
            self._any = bool(waiting)
            moved = 0
            for lane in waiting:
                moved += await self._pass(conn, lane)
        return moved

    async def _pass(self, conn: Connection, lane: turns.Lane) -> int:
        verdicts = decide(lane.turns, lane.overlap)
        moved = 0
        if verdicts.skip:
            moved += await turns.skip(conn, verdicts.skip)
        for kill, tasks in ((False, verdicts.cancel), (True, verdicts.kill)):
            if tasks and await turns.stop(conn, tasks, kill=kill):
                moved += 1
                for on_stopping in self.on_stopping:
                    on_stopping()
        if verdicts.release:
            released = await turns.release(conn, verdicts.release, beside_others=lane.overlap == "allow")
            moved += released
            if released:
                for on_released in self.on_released:
                    on_released()
        return moved

    async def close(self) -> None:
        await self._line.close()
