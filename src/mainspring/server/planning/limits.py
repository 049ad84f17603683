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
from collections.abc import Callable, Sequence

from mainspring.errors import StoreUnavailable
from mainspring.loops import Alarm, Signal
from mainspring.model.tasks.claim_floors import Released
from mainspring.store.limits import gating, parked, release
from mainspring.store.limits.release import UNCLAIMED, Passed
from mainspring.store.postgres.database import Connection, Database
from mainspring.wire.clock import boottime

LOOK_EVERY = 1.0  # seconds between looks at all gates
SWEEP_EVERY = 10.0  # seconds between searches for parked tasks that may run and were not woken
AHEAD = 2.0  # seconds before its time that a task may take a slot, if no due task needs it
BUSY = 0.02  # seconds until the next try where another server is releasing tasks of the job
GATHER = 0.003  # seconds after a step that found nothing, in which hints gather
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
        self._named: set[int] = set()  # gates to look at
        self._all = True  # look at all of them
        self._looked_at_all = -LOOK_EVERY  # boot time
        self._opens_at: dict[int, float] = {}  # by gate: when to look at it again without a hint, in boot time
        self._unparks_at: float | None = None  # when a rate allows parked tasks to return
        self._unsettled: set[int] = set()  # gates with tasks that wait for the end of another job's task
        self._swept = ""  # the last key of parked tasks that was searched
        self.wake = asyncio.Event()
        self._alarm = Alarm(self.wake)
        self.sweep_wake = asyncio.Event()  # limits may have changed
        self.gating_wake = asyncio.Event()  # a job may have got limits
        self._gated_until = 0  # a walk has gated what transactions before this one left behind
        self.on_released: Signal[[list[Released]]] = Signal()

    def look_at(self, gate: int) -> None:
        """A task reached this gate, or one of its slots is free."""
        self._named |= {gate, *self._unsettled}
        self.wake.set()

    def look_at_all(self) -> None:
        """Any gate may have changed."""
        self._all = True
        self.wake.set()

    async def step(self) -> int:
        """Release what the limits allow, at the gates that hints have named, else at all; returns how many moved."""
        now = boottime()
        named: set[int] | None = self._named | {gate for gate, at in self._opens_at.items() if at <= now}
        is_unpark_due = self._unparks_at is not None and self._unparks_at <= now
        looks_at_all = self._all or now - self._looked_at_all >= LOOK_EVERY or not (named or is_unpark_due)
        self._named, self._all = set(), False
        try:
            async with self._dedicated as conn:
                woken = await self._unpark_due(conn) if looks_at_all or is_unpark_due else 0
                if looks_at_all or woken:
                    self._looked_at_all = now
                    named = None
                moved = await self._pass(conn, None if named is None else sorted(named))
        except StoreUnavailable:
            self._all = True
            raise
        soonest = min([*self._opens_at.values(), *filter(None, [self._unparks_at])], default=None)
        self._alarm.set(None if soonest is None else soonest - boottime())
        if not moved + woken:
            await asyncio.sleep(GATHER)
        return moved + woken

    def _ahead(self, gate: int) -> float:
        """Seconds before its time that a task may take a slot: more by what a slow agent needs to be armed in time."""
        return min(self._default_lead, AHEAD) + max(0.0, self._lead(gate) - self._default_lead)

    async def _unpark_due(self, conn: Connection) -> int:
        woken, next_in = await parked.unpark_due(conn, BATCH)
        self._unparks_at = None if next_in is None else boottime() + next_in
        return woken

    async def _pass(self, conn: Connection, gates: Sequence[int] | None) -> int:
        """Look at these gates or all in one statement, then release at those that have room."""
        waiting = await release.look(conn, gates)
        now = boottime()
        for gate in {*self._opens_at, *self._beyond, *self._unsettled} - waiting.keys():
            if gates is None or gate in gates:
                self._forget(gate)
        moved = 0
        for gate, (due_in, opens_in) in waiting.items():
            if due_in > (ahead := self._ahead(gate)):
                self._opens_at[gate] = now + due_in - ahead
            elif opens_in is None:
                self._opens_at.pop(gate, None)
            elif opens_in > 0:
                self._opens_at[gate] = now + opens_in
            else:
                moved += await self._release_at(conn, gate, due_in, ahead)
        return moved

    def _forget(self, gate: int) -> None:
        """No task waits there."""
        self._opens_at.pop(gate, None)
        self._beyond.pop(gate, None)
        self._unsettled.discard(gate)

    async def _release_at(self, conn: Connection, gate: int, due_in: float, ahead: float) -> int:
        passed = await self._release(conn, gate, ahead)
        (self._unsettled.add if passed.stay else self._unsettled.discard)(gate)
        retry_in = self._retry_in(passed, due_in)
        if retry_in is None:
            self._opens_at.pop(gate, None)
        else:
            self._opens_at[gate] = boottime() + retry_in
        moved = len(passed.released) + passed.parked
        if moved:
            self._named.add(gate)  # there may be more
        if passed.parked:
            self._unparks_at = boottime()  # find out when their rate allows them to return
        return moved

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

    def _retry_in(self, passed: Passed, due_in: float) -> float | None:
        """Seconds until a step may release more at this gate without a hint."""
        if passed.is_busy:
            return BUSY
        if passed.next_in is not None and due_in <= 0:
            return passed.next_in if passed.next_in > 0 else UNCLAIMED
        return due_in if due_in > 0 else None  # a rate counts from the instant itself

    async def sweep(self) -> int:
        """Search some of the parked tasks for those that may run and were not woken."""
        async with self._slow_dedicated as conn:
            swept = await parked.sweep(conn, self._swept, KEYS)
        self._swept = swept.last or ""
        if swept.moved:
            self.look_at_all()
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
            async with self._slow_dedicated as conn:  # others use it between two parts of the walk
                walked = await gating.walk(conn, last, WALK)
            found, moved, last = found + walked.found, moved + walked.moved, walked.last
            if walked.moved:
                self.look_at_all()
        if not found:
            self._gated_until = marks.newest + 1
            async with self._slow_dedicated as conn:
                await gating.settle(conn, marks.settled)
        return moved
