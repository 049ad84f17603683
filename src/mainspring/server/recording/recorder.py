"""Recorder: write starts, endings, progress and output of all agents, one batch per flush.

Reads   reports from server/agents/connection.py
Asks    model.tasks.verdict       whether a task that did not succeed runs again
Writes  store.tasks.transitions   (→ running, → terminal, → pending)
        store.limits.handover     (→ terminal, and the slots of limits to the next tasks)
Sends   acknowledgements, after the commit
Next:   model/tasks/verdict.py
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from msgspec.structs import replace

from mainspring.errors import StoreUnavailable
from mainspring.loops import Signal
from mainspring.model.messages import AttemptId, Ending
from mainspring.model.metrics.tallies import RecorderTally
from mainspring.model.reports import Report
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import Again, after_attempt
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.batch import Batch, Reports, ServerLink, in_parts
from mainspring.store.daemons import replicas
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import revoke
from mainspring.store.tasks import claims, partitions, transitions

log = logging.getLogger("mainspring")


class Offer(Protocol):
    """What this server has for the tasks that get the slots of those that end: server/dispatch/handover.py."""

    async def finish(self, conn: Connection, endings: list[Ending]) -> int:
        """End tasks, pass their slots on, and arm those of the next tasks that were claimed; returns how many ended."""


Finish = Callable[[Connection, list[Ending]], Awaitable[int]]  # ends tasks; returns how many
Offering = Callable[[list[Ending]], AbstractContextManager[Offer | None]]  # None: no task among them had a slot


class Recorder:
    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._dedicated = database.dedicated()
        self._hashing = database.dedicated(hash_joins=True)  # for batches of endings
        self._catalogue = catalogue
        self._reports = Reports()
        self._failed: Batch | None = None  # a batch whose outcome is unknown: written again before the next
        self.tally = RecorderTally()
        self.is_behind = False  # the last flush failed: the database may lack reports
        self.wake = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.on_recorded: Signal[[list[Ending], list[AttemptId]]] = Signal()  # attempts that are over
        self.on_ended: Signal[[list[Ending]]] = Signal()  # tasks that are over
        self.on_requeued: Signal[[]] = Signal()  # tasks are pending again
        self.on_restarted: Signal[[]] = Signal()  # replicas of daemons are to run again, or have ended
        self.offering: Offering = lambda _: nullcontext()

    @property
    def backlog(self) -> int:
        return self._reports.endings + (len(self._failed.endings) if self._failed else 0)

    def submit(self, link: ServerLink, sequence: int, reports: list[Report]) -> None:
        """Queue the reports of the frame that `link` has just received; it is acknowledged once they are committed."""
        self._reports.add(link, sequence, reports)
        self.idle.clear()
        self.wake.set()

    async def room(self, link: ServerLink) -> None:
        """Wait before the next frame is read from an agent whose reports come faster than they are written."""
        await self._reports.room(link)

    async def flush(self) -> int:
        """Write what was submitted since the last flush, or the share of each session; returns how many endings,
        at least 1."""
        batch = self._failed
        if batch is None:
            if not self._reports:
                self.idle.set()
                return 0
            batch = self._failed = self._reports.take()
            batch.drop_ended_starts()
        with self.offering(batch.endings) as offer:
            try:
                async with self._dedicated as conn, self._hashing as hashing:
                    finish = offer.finish if offer else lambda _, ended: transitions.finish_many(hashing, ended)
                    ended, requeued = await in_parts(batch, lambda part: self._write(conn, part, finish))
            except StoreUnavailable:
                self.is_behind = True
                raise
        self.is_behind = False
        self._failed = None
        for link, sequence in batch.settles.items():
            link.settle_now(sequence)  # on a closed link it has no effect: the agent repeats the frame on the next
        self.on_recorded.send(batch.endings, batch.refused)
        self.on_ended.send(ended)
        if requeued:
            self.on_requeued.send()
        return max(1, len(batch.endings))

    async def _write(self, conn: Connection, batch: Batch, finish: Finish) -> tuple[list[Ending], int]:
        if batch.notes:
            await transitions.note(conn, batch.notes)
        if batch.chunks:
            await partitions.write(conn, lambda: transitions.output(conn, batch.chunks))
        if batch.starts:
            await transitions.start(conn, batch.starts)
        if batch.refused:
            await self._give_back(conn, batch.refused)
        ended, again = await self.record(conn, batch.endings, finish) if batch.endings else ([], 0)
        return ended, again + len(batch.refused)

    async def record(
        self, conn: Connection, endings: list[Ending], finish: Finish = transitions.finish
    ) -> tuple[list[Ending], int]:
        """Decide on each ending and write it; returns what ended, and how many tasks run again."""
        ended: list[Ending] = []
        again: list[Again] = []
        failed = [ending for ending in endings if ending.state is not TaskState.SUCCEEDED]
        belongs = await transitions.belongs(conn, failed) if failed else {}
        for ending in endings:
            if ending.state is TaskState.SUCCEEDED:
                ended.append(ending)
            else:
                # An agent does not choose the policy by which its attempt is retried, nor how many it has had.
                known = ending.job, ending.attempt
                ending.job, ending.attempt = belongs.get((ending.task, ending.token), known)
                verdict = after_attempt(self._catalogue.definition(ending.job), ending, random.random())
                if isinstance(verdict, Again):
                    again.append(verdict)
                else:
                    ended.append(verdict)
        await self.apply(conn, ended, again, finish)
        self.tally.retried += len(again)
        return ended, len(again)

    async def apply(
        self, conn: Connection, ended: list[Ending], again: list[Again], finish: Finish = transitions.finish
    ) -> None:
        """Write verdicts. Stale reports move nothing and are kept as evidence."""
        if ended and await partitions.write(conn, lambda: finish(conn, ended)) < len(ended):
            await self._unmoved(conn, await self._restart(conn, ended))
        if again and await partitions.write(conn, lambda: transitions.retry(conn, again)) < len(again):
            endings = await self._restart(conn, [verdict.ending for verdict in again])
            await self._cancel(conn, endings)
            await self._unmoved(conn, endings)

    async def _restart(self, conn: Connection, endings: list[Ending]) -> list[Ending]:
        """Requeue or end the replicas of daemons: their rows decide, not the reports. Returns the others."""
        others = await replicas.restart(conn, endings)
        if len(others) < len(endings):
            self.on_restarted.send()
        return others

    async def _give_back(self, conn: Connection, refused: list[AttemptId]) -> None:
        moved = await claims.give_back(conn, [a.task for a in refused], [a.token for a in refused])
        if moved < len(refused):
            await revoke.confirm(conn, [a.task for a in refused], [a.token for a in refused])
            await self._cancel(conn, [Ending(a.task, a.token, 0, 0, TaskState.CANCELLED, 0.0, 0.0) for a in refused])

    async def _cancel(self, conn: Connection, endings: list[Ending]) -> None:
        """A task that was to run again, and has been cancelled meanwhile, ends. The guard in SQL skips all others."""
        error = "cancelled before it ran again"
        cancelled = [replace(e, state=TaskState.CANCELLED, code="cancelled", error=error) for e in endings]
        await partitions.write(conn, lambda: transitions.finish(conn, cancelled))

    async def _unmoved(self, conn: Connection, endings: list[Ending]) -> None:
        await transitions.add_results(conn, endings)
        for ending in await transitions.keep_stale(conn, endings):
            self.tally.stale += 1
            log.warning("task %d: a stale report of attempt %d changed nothing", ending.task, ending.attempt)
