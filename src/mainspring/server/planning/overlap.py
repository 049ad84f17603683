"""OverlapLoop: release, skip or replace the tasks of schedules that must not overlap, by their policy.

Reads   store.schedules.overlap   schedules and scopes where a task waits that is due soon
Asks    model.schedules.overlap   what becomes of it
Writes  store.schedules.overlap   (blocked → pending, blocked → skipped, cancels of running tasks)
Next:   store/schedules/overlap.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.loops import Alarm, Signal
from mainspring.model.messages import Ending
from mainspring.model.schedules.overlap import decide
from mainspring.model.tasks.claim_floors import Released
from mainspring.server.cluster.lease import ServerLease
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import overlap


class OverlapLoop:
    def __init__(self, database: Database, server_lease: ServerLease, longest_lead: Callable[[], float]) -> None:
        self._dedicated = database.dedicated("planning")
        self._server_lease = server_lease
        self._longest_lead = longest_lead
        self.skipped = 0
        self._any = False  # a task was waiting at the last step
        self.wake = asyncio.Event()
        self._alarm = Alarm(self.wake)  # for the next task that comes due: its policy is applied at its instant
        self.on_released: Signal[[list[Released]]] = Signal()
        self.on_stopping: Signal[[]] = Signal()

    def ended(self, _endings: list[Ending]) -> None:
        """The recorder has committed endings: a waiting task may run now."""
        if self._any:
            self.wake.set()

    async def step(self) -> int:
        """Apply the policies in the segments of this server; returns how many tasks were moved."""
        if not self._server_lease.may_act:
            return 0
        async with self._dedicated as conn:
            waiting = await overlap.groups(conn, self._server_lease.id, within=self._longest_lead())
            self._any = bool(waiting)
            moved = await self._move(conn, waiting) if waiting else 0
        self._alarm.set(min((group.due_in for group in waiting if group.due_in is not None), default=None))
        return moved

    async def _move(self, conn: Connection, waiting: list[overlap.Group]) -> int:
        skip: list[int] = []
        stop: dict[bool, list[int]] = {False: [], True: []}  # True: killed, without grace
        release: dict[bool, list[int]] = {False: [], True: []}  # True: while others of the schedule run
        for group in waiting:
            verdicts = decide(group.turns, group.overlap)
            skip += verdicts.skip
            stop[False] += verdicts.cancel
            stop[True] += verdicts.kill
            release[group.overlap == "allow"] += verdicts.release
        moved = await overlap.skip(conn, skip) if skip else 0
        self.skipped += moved
        stopping = 0
        released: list[Released] = []
        for kill, tasks in stop.items():
            stopping += await overlap.stop(conn, tasks, kill=kill) if tasks else 0
        for beside_others, tasks in release.items():
            released += await overlap.release(conn, tasks, beside_others=beside_others) if tasks else []
        if stopping:
            self.on_stopping.send()
        if released:
            self.on_released.send(released)
        return moved + stopping + len(released)
