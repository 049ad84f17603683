"""Turnstile: tasks of schedules that must not overlap pass one by one, or not at all, by their policy.

Reads   store.turns.lanes    where a task waits that is due soon
Asks    model.overlap        what becomes of it
Writes  store.turns          (blocked → pending, blocked → skipped, and those that must stop)
Next:   store/schedules/overlap.py, then server/dispatch/dispatcher.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.model.messages import Ending
from mainspring.model.schedules.overlap import decide
from mainspring.model.tasks.claim_floors import Released
from mainspring.server.cluster.lease import Standing
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import overlap

JUST_AFTER = 0.002  # seconds; before its instant one is not due yet


class Turnstile:
    def __init__(self, database: Database, standing: Standing, lead: float) -> None:
        self._line = database.line("turns")
        self._standing = standing
        self._lead = lead
        self._any = False  # whether anything waited at the last look
        self._alarm: asyncio.TimerHandle | None = None  # for the next instant of one that waits
        self.wake = asyncio.Event()
        self.on_released: list[Callable[[list[Released]], None]] = []
        self.on_stopping: list[Callable[[], None]] = []

    def ended(self, _endings: list[Ending]) -> None:
        """The recorder has committed some endings: somebody's turn may have come."""
        if self._any:
            self.wake.set()

    async def step(self) -> int:
        """Look at all lanes of our segments where somebody waits; returns how many tasks were moved."""
        if not self._standing.may_act:
            return 0
        async with self._line as conn:
            waiting = await overlap.groups(conn, self._standing.id, within=self._lead)
            self._any = bool(waiting)
            moved = await self._move(conn, waiting) if waiting else 0
        self._be_there_at(min((lane.due_in for lane in waiting if lane.due_in is not None), default=None))
        return moved

    async def _move(self, conn: Connection, waiting: list[overlap.Group]) -> int:
        skip: list[int] = []
        stop: dict[bool, list[int]] = {False: [], True: []}  # by whether they get no grace
        release: dict[bool, list[int]] = {False: [], True: []}  # by whether they may run beside others
        for lane in waiting:
            verdicts = decide(lane.turns, lane.overlap)
            skip += verdicts.skip
            stop[False] += verdicts.cancel
            stop[True] += verdicts.kill
            release[lane.overlap == "allow"] += verdicts.release
        moved = await overlap.skip(conn, skip) if skip else 0
        stopping = 0
        released: list[Released] = []
        for kill, tasks in stop.items():
            stopping += await overlap.stop(conn, tasks, kill=kill) if tasks else 0
        for beside_others, tasks in release.items():
            released += await overlap.release(conn, tasks, beside_others=beside_others) if tasks else []
        for on_stopping in self.on_stopping if stopping else ():
            on_stopping()
        for on_released in self.on_released if released else ():
            on_released(released)
        return moved + stopping + len(released)

    def _be_there_at(self, due_in: float | None) -> None:
        """The instant of one that waits decides about it: look then, not half a second later."""
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm = None if due_in is None else loop.call_later(due_in + JUST_AFTER, self.wake.set)

    async def close(self) -> None:
        self._be_there_at(None)
        await self._line.close()
