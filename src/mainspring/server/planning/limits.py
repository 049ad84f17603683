"""LimitsLoop: release tasks of jobs with limits when a slot is free and their rate allows it.

A task of such a job waits *gated*. One whose key is busy is *parked*, so that it does not block the tasks behind it.
Any number of servers may run this loop: each release is one statement, and a slot is guarded by a unique index.
Writes  store.limits.gating    (served by claims → gated, when a job gets limits)
        store.limits.release   (gated → served by claims, gated → parked)
        store.limits.parked    (parked → gated)
Next:   store/limits/release.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.loops import Alarm, Signal
from mainspring.model.tasks.claim_floors import Released
from mainspring.store.limits import gating, parked, release
from mainspring.store.limits.release import Passed
from mainspring.store.postgres.database import Connection, Database

LOOK_EVERY = 1.0  # seconds between steps where nothing wakes it
SWEEP_EVERY = 10.0  # seconds between searches for parked tasks that may run and were not woken
AHEAD = 2.0  # seconds before its time that a task may take a slot, if no due task needs it
BUSY = 0.02  # seconds until the next try where another server is releasing tasks of the job
GATHER = 0.003  # seconds after a step that found nothing, in which hints gather
UNCLAIMED = 0.05  # seconds until the next try where a rate's burst was released and is not claimed yet
BATCH = 1000
KEYS = 1000  # of parked tasks, searched in one sweep
WALK = 10_000  # live tasks, searched in one statement for those without their gate


class LimitsLoop:
    """`lead` returns the longest lead of the agents for the tasks of a gate, and `default` is that of a quick one."""

    def __init__(self, database: Database, lead: Callable[[int], float], default: float) -> None:
        self._dedicated = database.dedicated()
        self._slow_dedicated = database.dedicated("slow")
        self._lead = lead
        self._default_lead = default
        self._beyond: dict[int, int] = {}  # by gate: how many tasks to read beyond those that there is room for
        self._swept = ""  # the last key of parked tasks that was searched
        self.wake = asyncio.Event()
        self._alarm = Alarm(self.wake)
        self.sweep_wake = asyncio.Event()  # limits may have changed
        self.gating_wake = asyncio.Event()  # a job may have got limits
        self._gated_until = 0  # a walk has gated what transactions before this one left behind
        self.on_released: Signal[[list[Released]]] = Signal()

    async def step(self) -> int:
        """Release what the limits allow, for every gate where tasks wait; returns how many tasks moved."""
        moved = 0
        async with self._dedicated as conn:
            woken, next_in = await parked.unpark_due(conn, BATCH)
            waiting = await release.look(conn)
            soonest = [] if next_in is None else [next_in]
            for gate, due_in in waiting.items():
                ahead = self._ahead(gate)
                if due_in > ahead:
                    soonest.append(due_in - ahead)
                    continue
                passed = await self._release(conn, gate, ahead)
                moved += len(passed.released) + passed.parked
                soonest += self._retry_in(passed, due_in)
        self._beyond = {gate: beyond for gate, beyond in self._beyond.items() if gate in waiting}
        self._alarm.set(min(soonest, default=None))
        if not moved + woken:
            await asyncio.sleep(GATHER)
        return moved + woken

    def _ahead(self, gate: int) -> float:
        """Seconds before its time that a task may take a slot: more by what a slow agent needs to be armed in time."""
        return min(self._default_lead, AHEAD) + max(0.0, self._lead(gate) - self._default_lead)

    async def _release(self, conn: Connection, gate: int, ahead: float) -> Passed:
        """Release due tasks; if none moved and there is room left, those that are due soon."""
        beyond = self._beyond.get(gate, 0)
        passed = await release.release(conn, gate, BATCH, ahead=0.0, beyond=beyond)
        if passed.has_room and not passed.released and not passed.parked:
            passed = await release.release(conn, gate, BATCH, ahead=ahead)
        # Growing steps pass a busy key at the head of the queue quickly, however many tasks it has.
        is_blocked_by_key = passed.parked > len(passed.released)
        self._beyond[gate] = min(BATCH, max(8, 4 * beyond)) if is_blocked_by_key else 0
        if passed.released:
            self.on_released.send(passed.released)
        return passed

    def _retry_in(self, passed: Passed, due_in: float) -> list[float]:
        """Seconds until a step may release more at this gate without a hint."""
        if passed.is_busy:
            return [BUSY]
        if passed.next_in is not None and due_in <= 0:
            return [passed.next_in if passed.next_in > 0 else UNCLAIMED]
        return [due_in] if due_in > 0 else []  # a rate counts from the instant itself

    async def sweep(self) -> int:
        """Search some of the parked tasks for those that may run and were not woken."""
        async with self._slow_dedicated as conn:
            swept = await parked.sweep(conn, self._swept, KEYS)
        self._swept = swept.last or ""
        if swept.moved:
            self.wake.set()
        return swept.moved

    async def gate_waiting(self) -> int:
        """Move tasks that were there before their job got limits to its gate; returns how many moved."""
        async with self._slow_dedicated as conn:
            marks = await gating.marks(conn)
            if not marks.newest or (self._gated_until > marks.newest and marks.settled <= marks.newest):
                return 0  # none; or all done, apart from what an open transaction may add
            found = moved = 0
            last: int | None = 0
            while last is not None:
                walked = await gating.walk(conn, last, WALK)
                found, moved, last = found + walked.found, moved + walked.moved, walked.last
                if walked.moved:
                    self.wake.set()
            if not found:
                self._gated_until = marks.newest + 1
                await gating.settle(conn, marks.settled)
        return moved
