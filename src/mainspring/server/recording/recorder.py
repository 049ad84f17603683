"""Recorder: write starts, endings, progress and output of all agents, many in one flush; while one is under way, a
second flush may write successes.

Reads   reports from server/agents/connection.py
Asks    model.tasks.verdict       whether a task that did not succeed runs again
Writes  store.tasks.session_tasks (progress, output)
        store.tasks.transitions   (→ running, → terminal, → pending)
        store.limits.handover     (→ terminal, and the slots of limits to the next tasks)
        store.daemons.replicas    (→ pending, → terminal, for replicas)
        store.tasks.claims        (assigned → pending, for what was refused)
Sends   acknowledgements, after the commit, in the order in which the frames were taken
Next:   model/tasks/verdict.py
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from msgspec.structs import replace

from mainspring.errors import StoreUnavailable
from mainspring.loops import Signal, let_fire
from mainspring.model.messages import AttemptId, Ending
from mainspring.model.reports import Report
from mainspring.model.tasks.states import SUCCEEDED, TaskState
from mainspring.model.tasks.verdict import Again, after_attempt
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.flush import FLUSH_ITEMS, SUCCESSES, Flush, Reports, ServerLink, Written, in_parts
from mainspring.server.recording.tallies import Tallies
from mainspring.store.daemons import replicas
from mainspring.store.daemons.replicas import Restarted
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import revoke
from mainspring.store.tasks import claims, control, partitions, session_tasks, transitions

log = logging.getLogger("mainspring")

MANY = 250  # endings in a flush, from which on tasks of this process may fire between its slices
SLICE = 1000  # endings that are announced in one step of the event loop
SECOND_FLUSH_FROM = FLUSH_ITEMS * SUCCESSES  # endings that wait while others are written
# Flushes that are written or under way: acknowledgements wait for the oldest, and agents keep what is not acknowledged.
MOST_UNSETTLED = 16


class Offer(Protocol):
    """What this server has for the tasks that get the slots of those that end: server/dispatch/handover.py."""

    async def finish(self, conn: Connection, endings: list[Ending]) -> list[Ending]:
        """End tasks, pass their slots on, and arm those of the next tasks that were claimed; returns what ended."""


Finish = Callable[[Connection, list[Ending]], Awaitable[list[Ending]]]  # ends tasks; returns those that moved
Offering = Callable[[list[Ending]], AbstractContextManager[Offer | None]]  # None: no task among them had a slot


class _Connections:
    """Those of one flush: `hashing` for `finish_many`, `probing` for all else."""

    def __init__(self, database: Database) -> None:
        self.probing = database.dedicated()
        self.hashing = database.dedicated(hash_joins=True)


class Recorder:
    """Two flushes. `flush` writes anything, in the order in which frames were taken. `flush_beside` writes only
    successes, while `flush` writes successes too. `_alone` keeps everything else from running beside another flush.
    """

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._first_connections, self._second_connections = _Connections(database), _Connections(database)
        self._catalogue = catalogue
        self._reports = Reports()
        self.tallies = Tallies(lambda job: job in catalogue.jobs)
        self._unsettled: deque[Flush] = deque()  # in the order in which they were taken
        self._alone = asyncio.Lock()  # held by the second flush, and while anything but successes is written
        self.wake = asyncio.Event()
        self.second_wake = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.on_recorded: Signal[[list[Ending], list[AttemptId]]] = Signal()  # attempts that are over
        self.on_ended: Signal[[list[Ending]]] = Signal()  # tasks that are over
        self.on_requeued: Signal[[]] = Signal()  # tasks are pending again
        self.on_restarted: Signal[[]] = Signal()  # replicas of daemons are to run again, or have ended
        self.offering: Offering = lambda _: nullcontext()

    @property
    def backlog(self) -> int:
        """Endings that are not known to be recorded."""
        return self._reports.endings + sum(len(flush.endings) for flush in self._unsettled if not flush.is_written)

    @property
    def may_lack_reports(self) -> bool:
        """Whether a flush has failed, so that the database may lack what was reported."""
        return any(flush.has_failed for flush in self._unsettled)

    def submit(self, link: ServerLink, sequence: int, reports: list[Report]) -> None:
        """Queue the reports of the frame that `link` has just received; it is acknowledged once they are committed."""
        self._reports.add(link, sequence, reports)
        self.idle.clear()
        self.wake.set()
        if self._unsettled and self._reports.endings >= SECOND_FLUSH_FROM:
            self.second_wake.set()

    async def room(self, link: ServerLink) -> None:
        """Wait before the next frame is read from an agent whose reports come faster than they are written."""
        await self._reports.room(link)

    async def flush(self) -> int:
        """Write one flush: one that was taken and is not written, else the next. Returns how many endings it has, at
        least 1; 0 if there is nothing to write.

        While the second flush is under way, a small one waits for it, and so does one with anything but successes.
        """
        is_small = self._reports.endings < SECOND_FLUSH_FROM  # a larger one costs less
        if self._alone.locked() and (is_small or len(self._unsettled) >= MOST_UNSETTLED):
            async with self._alone:
                pass
        flush = next((flush for flush in self._unsettled if not flush.is_written and not flush.is_under_way), None)
        if flush is None:
            if not self._reports:
                self._note_idle()
                return 0
            flush = self._reports.take()
            flush.drop_ended_starts()
            self._unsettled.append(flush)
        async with nullcontext() if flush.has_only_successes else self._alone:
            return await self._write(flush, self._first_connections)

    async def flush_beside(self) -> int:
        """The second flush: once so many endings wait, write the successes at the heads of the sessions' queues.

        PostgreSQL then has work while this process reads its answer to the other and prepares the next. An agent
        reports nothing about an attempt after its success, and what the session reported before is written, or is
        itself a success: so no report on an attempt overtakes an earlier one.
        """
        async with self._alone:
            if self._reports.endings < SECOND_FLUSH_FROM or self._must_wait or len(self._unsettled) >= MOST_UNSETTLED:
                self._note_idle()
                return 0
            flush = self._reports.take(only_successes=True)
            if not flush.settles:
                return 0  # something else comes first
            self._unsettled.append(flush)
            return await self._write(flush, self._second_connections)

    @property
    def _must_wait(self) -> bool:
        """Whether a flush that was taken must be written first, because frames queued behind it may be about the same
        attempts: it has failed, or it holds other reports than successes and is not written yet."""
        return any(flush.has_failed or not (flush.is_written or flush.has_only_successes) for flush in self._unsettled)

    async def _write(self, flush: Flush, connections: _Connections) -> int:
        flush.is_under_way = True
        with self.offering(flush.endings) as offer:
            try:
                async with connections.probing as conn, connections.hashing as hashing:
                    finish = offer.finish if offer else lambda _, ended: transitions.finish_many(hashing, ended)
                    is_repeated, flush.may_be_written = flush.may_be_written, True
                    written = await in_parts(flush, lambda part: self._write_part(conn, part, finish, is_repeated))
            except (StoreUnavailable, asyncio.CancelledError):
                flush.has_failed = True
                self.wake.set()  # `flush` repeats it, whichever of the two it was
                raise
            finally:
                flush.is_under_way = False
        self._settle(flush)
        await self._announce(flush, written)
        return max(1, len(flush.endings))

    def _settle(self, flush: Flush) -> None:
        """Acknowledge the frames of a flush that is written, after those of the flushes before it."""
        flush.is_written, flush.has_failed = True, False
        while self._unsettled and self._unsettled[0].is_written:
            for link, sequence in self._unsettled.popleft().settles.items():
                link.settle_now(sequence)  # on a closed link it has no effect: the agent repeats the frame on the next

    def _note_idle(self) -> None:
        if not self._reports and not self._unsettled:
            self.idle.set()

    async def _announce(self, flush: Flush, written: Written) -> None:
        """Count what is committed and send the signals: of a large flush in slices, between which tasks fire."""
        self.tallies.count(written.again, runs_again=True)
        slices = deque(range(0, max(1, len(flush.endings), len(written.moved)), SLICE))
        try:
            while slices:
                self._announce_slice(flush, written, slices.popleft())
                if len(flush.endings) > MANY:
                    await let_fire()
        finally:
            for start in slices:  # the server stops
                self._announce_slice(flush, written, start)
        if written.requeued:
            self.on_requeued.send()

    def _announce_slice(self, flush: Flush, written: Written, start: int) -> None:
        this = slice(start, start + SLICE)
        self.tallies.count(written.moved[this])
        self.on_recorded.send(flush.endings[this], [] if start else flush.refused)
        self.on_ended.send(list(written.ended[this]))

    def count(self, written: Written) -> None:
        """Count what is committed."""
        self.tallies.count(written.moved)
        self.tallies.count(written.again, runs_again=True)

    async def _write_part(self, conn: Connection, part: Flush, finish: Finish, is_repeated: bool) -> Written:
        if part.notes:
            await session_tasks.note(conn, part.notes)
        if part.chunks:
            await partitions.write(conn, lambda: session_tasks.output(conn, part.chunks))
        if part.starts:
            await transitions.start(conn, part.starts)
        if part.refused:
            written = Written(requeued=len(part.refused), moved=await self._give_back(conn, part.refused))
        else:
            written = Written()
        if part.endings:
            written = written.plus(await self.record(conn, part.endings, finish, is_repeated=is_repeated))
        return written

    async def record(
        self,
        conn: Connection,
        endings: list[Ending],
        finish: Finish = transitions.finish,
        *,
        is_repeated: bool = False,
    ) -> Written:
        """Decide on each ending and write it."""
        failed = [ending for ending in endings if ending.state is not SUCCEEDED]
        ended, again = endings, list[Again]()  # as most batches
        if failed:
            ended = [ending for ending in endings if ending.state is SUCCEEDED]
        belongs = await transitions.belongs(conn, failed) if failed else {}
        for ending in failed:
            # An agent does not choose the policy by which its attempt is retried, nor how many it has had.
            known = ending.job, ending.attempt, None
            ending.job, ending.attempt, retries = belongs.get((ending.task, ending.token), known)
            verdict = after_attempt(self._catalogue.definition(ending.job), ending, random.random(), retries)
            if isinstance(verdict, Again):
                again.append(verdict)
            else:
                ended.append(verdict)
        written = await self.apply(conn, ended, again, finish, is_repeated=is_repeated)
        return written._replace(ended=ended, requeued=len(again))

    async def apply(
        self,
        conn: Connection,
        ended: list[Ending],
        again: list[Again],
        finish: Finish = transitions.finish,
        *,
        is_repeated: bool = False,
    ) -> Written:
        """Write verdicts; returns what moved. Stale reports move nothing and are kept as evidence.

        The caller counts what moved, once it is committed. With `is_repeated` the answer to these very verdicts was
        lost before: what they moved then counts now.
        """
        moved, requeued = list[Ending](), list[Ending]()
        if ended:
            moved = await partitions.write(conn, lambda: finish(conn, ended))
            if len(moved) < len(ended):
                restarted = await self._restart(conn, _without(ended, moved))
                completed, before = await self._unmoved(conn, restarted.others, is_repeated)
                moved = moved + restarted.ended + completed + before
                requeued += restarted.again
        if again:
            retried = await partitions.write(conn, lambda: transitions.retry(conn, again))
            requeued += retried
            if len(retried) < len(again):
                restarted = await self._restart(conn, _without([verdict.ending for verdict in again], retried))
                cancelled = await self._cancel(conn, restarted.others)
                rest = _without(restarted.others, cancelled)
                completed, before = await self._unmoved(conn, rest, is_repeated)
                moved = moved + restarted.ended + cancelled + completed
                requeued += restarted.again + before
        return Written(moved=moved, again=requeued)

    async def _restart(self, conn: Connection, endings: list[Ending]) -> Restarted:
        """Requeue or end the replicas of daemons: their rows decide, not the reports."""
        restarted = await replicas.restart(conn, endings)
        if len(restarted.others) < len(endings):
            self.on_restarted.send()
        return restarted

    async def _give_back(self, conn: Connection, refused: list[AttemptId]) -> list[Ending]:
        """Requeue what agents did not start; returns the endings of tasks that were cancelled meanwhile."""
        moved = await claims.give_back(conn, [a.task for a in refused], [a.token for a in refused])
        if moved == len(refused):
            return []
        await control.confirm_skips(conn, [a.task for a in refused], [a.token for a in refused])
        await revoke.confirm(conn, [a.task for a in refused], [a.token for a in refused])
        endings = [Ending(a.task, a.token, 0, 0, TaskState.CANCELLED, 0.0, 0.0) for a in refused]
        belongs = await transitions.belongs(conn, endings)
        for ending in endings:
            ending.job, ending.attempt, _ = belongs.get((ending.task, ending.token), (0, 0, None))
        return await self._cancel(conn, endings)

    async def _cancel(self, conn: Connection, endings: list[Ending]) -> list[Ending]:
        """A task that was to run again, and has been cancelled meanwhile, ends. The guard in SQL skips all others."""
        error = "cancelled before it ran again"
        cancelled = [replace(e, state=TaskState.CANCELLED, code="cancelled", error=error) for e in endings]
        return await partitions.write(conn, lambda: transitions.finish(conn, cancelled))

    async def _unmoved(
        self, conn: Connection, endings: list[Ending], is_repeated: bool
    ) -> tuple[list[Ending], list[Ending]]:
        """Record results that were due, and keep stale reports. Returns the endings of the former, and, if these very
        endings were written before, those that were applied then."""
        completed = await transitions.add_results(conn, endings)
        rest = _without(endings, completed)
        stale = await transitions.keep_stale(conn, rest)
        for ending in stale:
            log.warning("task %d: a stale report of attempt %d changed nothing", ending.task, ending.attempt)
        self.tallies.stale += len(stale)
        return completed, _without(rest, stale) if is_repeated else []


def _without(endings: list[Ending], others: list[Ending]) -> list[Ending]:
    """Each attempt once."""
    attempts = {(e.task, e.token): e for e in endings}
    for ending in others:
        attempts.pop((ending.task, ending.token), None)
    return list(attempts.values())
