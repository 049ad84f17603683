"""Gatekeeper: tasks of jobs with limits go on when there is a slot for them and their rate allows it.

Any number of servers may do this at once: each step is one statement, and a slot is under a unique index.
Reads   store.gates.look
Writes  store.gates.release   (from the gate to the pool that claims serve, or aside into a lane)
        store.lanes           (from lanes back to the gate)
Next:   store/limits/release.py, then server/dispatch/dispatcher.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.model.tasks.claim_floors import Released
from mainspring.store.limits import parked, release
from mainspring.store.limits.release import Passed
from mainspring.store.postgres.database import Connection, Database

LOOK_EVERY = 1.0  # seconds between looks where nothing wakes it
SWEEP_EVERY = 10.0  # seconds between looks into the lanes for whom nobody woke
AHEAD = 2.0  # seconds before its time that a task may take a slot, if nothing that is due needs it
AGAIN = 0.02  # seconds until another look where somebody else was at a gate
REST = 0.003  # seconds after a look that found nothing, so that hints gather
UNCLAIMED = 0.05  # seconds until another look where the burst of a rate has not been claimed yet
JUST_AFTER = 0.002
BATCH = 1000
LANES = 1000  # looked at in one sweep


class Gatekeeper:
    def __init__(self, database: Database, lead: float) -> None:
        self._line = database.line()
        self._slow_line = database.line("slow")
        self._ahead = min(lead, AHEAD)
        self._beyond: dict[int, int] = {}  # by gate, how many to look at beyond those that there is room for
        self._swept = ""  # the key up to which lanes were looked at
        self._alarm: asyncio.TimerHandle | None = None
        self.wake = asyncio.Event()
        self.sweep_wake = asyncio.Event()  # limits may have changed
        self.on_released: list[Callable[[list[Released]], None]] = []

    async def step(self) -> int:
        """Let pass who may, at every gate where somebody waits; returns how many tasks moved."""
        moved = 0
        async with self._line as conn:
            woken, next_in = await parked.wake_ripe(conn, BATCH)
            waiting = await release.look(conn)
            soonest = [] if next_in is None else [next_in]
            for gate, due_in in waiting.items():
                if due_in > self._ahead:
                    soonest.append(due_in - self._ahead)
                    continue
                passed = await self._pass(conn, gate, due_in)
                moved += len(passed.released) + passed.parked
                soonest += self._look_again(passed, due_in)
        self._beyond = {gate: beyond for gate, beyond in self._beyond.items() if gate in waiting}
        self._be_there_in(min(soonest, default=None))
        if not moved + woken:
            await asyncio.sleep(REST)
        return moved + woken

    async def _pass(self, conn: Connection, gate: int, due_in: float) -> Passed:
        """What is due first; when nothing due moves and there is room left, what soon will be."""
        beyond = self._beyond.get(gate, 0)
        passed = await release.release(conn, gate, BATCH, ahead=0.0, beyond=beyond)
        if passed.has_room and not passed.released and not passed.parked:
            passed = await release.release(conn, gate, BATCH, ahead=self._ahead)
        # A busy key at the head is passed over in a few steps, however many tasks it has.
        is_in_the_way = passed.parked > len(passed.released)
        self._beyond[gate] = min(BATCH, max(8, 4 * beyond)) if is_in_the_way else 0
        for on_released in self.on_released if passed.released else ():
            on_released(passed.released)
        return passed

    def _look_again(self, passed: Passed, due_in: float) -> list[float]:
        """In how many seconds a look at this gate may find more, though nobody says so."""
        if passed.is_busy:
            return [AGAIN]
        if passed.next_in is not None and due_in <= 0:
            return [passed.next_in if passed.next_in > 0 else UNCLAIMED]
        return [due_in] if due_in > 0 else []  # a rate counts from the instant itself

    async def sweep(self) -> int:
        """Look into the lanes for whom nobody woke, a part of them at a time."""
        async with self._slow_line as conn:
            swept = await parked.sweep(conn, self._swept, LANES)
        self._swept = swept.last or ""
        if swept.moved:
            self.wake.set()
        return swept.moved

    def _be_there_in(self, seconds: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm = None if seconds is None else loop.call_later(max(0.0, seconds) + JUST_AFTER, self.wake.set)

    async def close(self) -> None:
        self._be_there_in(None)
        await self._line.close()
        await self._slow_line.close()
