"""Rescuer: requeue or end the tasks of sessions that have expired, and attempts that run past their deadline.

Works in batches of one transaction each and skips rows that others have locked. Two rescuers at once do no harm. If
PostgreSQL refuses a batch, each of its tasks is written by itself: a refused one ends as failed, and one for which even
that is refused is logged once and retried with backoff.
Reads   store.tasks.rescue        what expired sessions hold, what runs past its deadline
Asks    model.tasks.verdict       whether a task runs again
Writes  store.tasks.transitions   through the recorder, under the old token
        store.tasks.rescue        orders to stop what an agent still runs
Next:   store/tasks/rescue.py
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Job
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import Again, after_attempt, after_crash, at_least_after
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.cluster.clock import measure
from mainspring.server.recording.flush import INVALID_DATA, Written
from mainspring.server.recording.recorder import Recorder
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import revoke
from mainspring.store.tasks import rescue
from mainspring.store.tasks.rescue import Deadline, Held, Holder, Order
from mainspring.wire.clock import Clock, boottime

log = logging.getLogger("mainspring")
job_log = logging.getLogger("mainspring.job")

BATCH = 500
LOGGED = 10  # tasks of a batch that ended with their agent
LOOK_EVERY = 5.0  # seconds between two searches for attempts past their deadline
SESSIONS = 200  # searched at a time; the next search continues after them

# Seconds beyond timeout and grace, plus two leases, that an attempt may run before it is taken from a living agent. A
# report that arrives later than a lease is of a session that has expired. The margin allows for output sent before the
# report, for pauses that reach the agent late, and for clocks.
MARGIN = 30.0
# Seconds after a change of a job within which an attempt may start that was armed before it: the longest lead that can
# be set, and a minute until every server has read the change.
SETTLED = 3660.0
STOPS_WITHIN = 5.0  # seconds that an attempt has to stop before its task runs again
FIRST_BACKOFF, LONGEST_BACKOFF = 5.0, 300.0  # seconds until a task that could not be written is tried again


class Verdicts(NamedTuple):
    """What becomes of a batch, and the attempts that agents must stop for it."""

    verdicts: Sequence[Ending | Again]
    stops: Sequence[Order] = ()


class _Unwritable(NamedTuple):
    session: int
    backoff: float  # seconds
    until: float  # boot time


Find = Callable[[Connection], Awaitable[list[Held]]]
Judge = Callable[[list[Held]], Verdicts]


class Rescuer:
    def __init__(
        self, database: Database, catalogue: Catalogue, recorder: Recorder, clock: Clock, lease: float
    ) -> None:
        self._dedicated = database.dedicated("leader")
        self._catalogue = catalogue
        self._recorder = recorder
        self._clock = clock
        self._lease = lease
        self._margin = MARGIN + 2 * lease
        self._unplannable: set[int] = set()  # tokens of recalled tasks whose plan time cannot be planned again
        self._unwritable: dict[int, _Unwritable] = {}  # by task
        self._skipped: dict[int, float] = {}  # sessions with nothing but unwritable tasks, until when (boot time)
        self._rescued: Counter[int] = Counter()  # tasks by session, until the session has none left
        self.recalled = 0  # tasks whose plan times are planned again, since the start
        self._searched_at = 0.0  # for deadlines, in boot time
        self._last_session = 0  # that was searched

    async def step(self) -> int:
        """Rescue a batch of each expired session, and what is past its deadline; returns how many tasks moved."""
        if self._recorder.may_lack_reports:
            return 0  # reports of some of these tasks may wait to be recorded
        moved = 0
        async with self._dedicated as conn:
            await measure(conn, self._clock)
            if self._clock.steady_for < self._lease:
                return 0  # after a jump forward of the clock, leases that seem expired may not be
            for session in await rescue.gone(conn, self._skipped_sessions()):
                moved += await self._rescue(conn, session)
            if boottime() - self._searched_at >= LOOK_EVERY:
                self._searched_at = boottime()
                moved += await self._end_overdue(conn)
        if moved:
            self._recorder.on_requeued.send()
        return moved

    # ── sessions that have expired ──────────────────────────────────────────────────────────────

    async def _rescue(self, conn: Connection, session: int) -> int:
        replanned = await self._replan_recalled(conn, session)
        holder = (await rescue.holders(conn, [session])).get(session)
        found, moved = await self._move(conn, partial(self._held, session), partial(self._after_crash, holder))
        self._rescued[session] += replanned + moved
        self.recalled += replanned
        if found < BATCH:
            await rescue.forget(conn, session)
            self._log_rescued(session, holder)
        if not found:
            self._skip(session)
        return replanned + moved

    def _log_rescued(self, session: int, holder: Holder | None) -> None:
        """One line for each session, however many batches its tasks were."""
        if count := self._rescued.pop(session, 0):
            agent = "an unknown agent" if holder is None else f"agent {holder.name}"
            log.warning("rescued %d %s of %s, session %d", count, "task" if count == 1 else "tasks", agent, session)

    async def _held(self, session: int, conn: Connection) -> list[Held]:
        held = await rescue.held(conn, session, BATCH, self._backing_off())
        if any(self._catalogue.definition(task.job_id) is None for task in held):
            await self._catalogue.refresh()  # the job may be new
        return [task for task in held if not self._is_replanned(task)]  # recalled a moment ago: the next step's

    async def _replan_recalled(self, conn: Connection, session: int) -> int:
        """Delete recalled tasks, which have not started as far as is known: their plan times are planned again.

        In a separate transaction: `revoke` locks the schedule before the task, the rest of a rescue only tasks.
        """
        asked = await rescue.recalled(conn, session, BATCH)
        back = {
            task: token for task, token, job in asked if self._may_run_twice(job) and token not in self._unplannable
        }
        try:
            return len(await revoke.confirm(conn, list(back), list(back.values()))) if back else 0
        except INVALID_DATA as error:
            log.warning("recalled tasks of session %d cannot be planned again: %s; they run again", session, error)
            self._unplannable |= set(back.values())
            return 0

    def _is_replanned(self, task: Held) -> bool:
        return task.recalled and task.token not in self._unplannable and self._may_run_twice(task.job_id)

    def _may_run_twice(self, job: int) -> bool:
        """A recalled task may have started unreported, so it must not be planned again if it may run once only."""
        definition = self._catalogue.definition(job)
        return definition is not None and definition.delivery != "at_most_once"

    def _after_crash(self, holder: Holder | None, held: list[Held]) -> Verdicts:
        verdicts = [
            after_crash(
                self._catalogue.definition(task.job_id),
                self._ending(task, TaskState.LOST, "lost", lost(holder, task)),
                started=task.running,
                crashes=task.crashes,
                cancelled=task.cancelled,
                random=random.random(),
                retries=task.retries,
                given_back=task.given_back,
            )
            for task in held
        ]
        self._log_ends(
            [
                verdict
                for task, verdict in zip(held, verdicts, strict=True)
                if isinstance(verdict, Ending) and verdict.state is not TaskState.CANCELLED and not task.daemon
            ]
        )
        return Verdicts(verdicts)

    def _log_ends(self, endings: list[Ending]) -> None:
        """Log the failures that their agent cannot log any more: see agent/run/failures.py."""
        for ending in endings[:LOGGED]:
            job = self._catalogue.jobs.get(ending.job)
            name = "a deleted job" if job is None else job.name
            values = (name, ending.task, ending.attempt, ending.state.label, ending.code, ending.error)
            extra = {"job": name, "task": ending.task, "attempt": ending.attempt, "error_code": ending.code}
            job_log.error("%s: task %d, attempt %d was the last, it is %s (%s: %s)", *values, extra=extra)
        if len(endings) > LOGGED:
            job_log.error(
                "%d more tasks ended with their agent; `mainspring task list` has them", len(endings) - LOGGED
            )

    # ── attempts past their deadline ────────────────────────────────────────────────────────────

    async def _end_overdue(self, conn: Connection) -> int:
        """End attempts that their living agent should have ended, and order the agent to stop them."""
        deadlines = [
            Deadline(job.id, job.version, timeout, job.definition.grace + self._margin)
            for job in self._catalogue.jobs.values()
            if (timeout := _timeout(job)) is not None
        ]
        sessions = await rescue.living(conn, self._last_session, SESSIONS) if deadlines else []
        if not sessions:
            self._last_session = 0
            return 0
        self._last_session = sessions[-1] if len(sessions) == SESSIONS else 0
        holders = await rescue.holders(conn, sessions)

        async def find(conn: Connection) -> list[Held]:
            since = self._clock.steady_since
            held = await rescue.overdue(conn, sessions, deadlines, settled=SETTLED, since=since, limit=BATCH)
            backing_off = set(self._backing_off())
            return [task for task in held if task.task not in backing_off]

        _, moved = await self._move(conn, find, partial(self._after_deadline, holders))
        return moved

    def _after_deadline(self, holders: dict[int, Holder], held: list[Held]) -> Verdicts:
        verdicts: list[Ending | Again] = []
        for task in held:
            definition = self._catalogue.definition(task.job_id)
            job = self._catalogue.jobs.get(task.job_id)
            timeout = task.timeout or (_timeout(job) if job is not None else None) or 0.0
            agent = _describe(holders.get(task.session), task)
            error = f"did not end within its timeout of {timeout:g} s, and {agent} did not end it either"
            log.warning("task %d %s", task.task, error)
            ending = self._ending(task, TaskState.TIMED_OUT, "timeout", error)
            verdicts.append(
                at_least_after(STOPS_WITHIN, after_attempt(definition, ending, random.random(), task.retries))
            )
        return Verdicts(verdicts, [Order(task.session, task.task, task.token) for task in held])

    def _ending(self, task: Held, state: TaskState, code: str, error: str) -> Ending:
        return Ending(
            task=task.task,
            token=task.token,
            job=task.job_id,
            attempt=task.attempt,
            state=state,
            started_at=task.started_at,
            finished_at=self._clock.now(),
            code=code,
            error=error,
            labels=(code,),
        )

    # ── writing verdicts ────────────────────────────────────────────────────────────────────────

    async def _move(self, conn: Connection, find: Find, judge: Judge) -> tuple[int, int]:
        """Find a batch, decide and write, in one transaction; returns how many tasks were found, and moved."""
        try:
            written = Written()
            async with conn.transaction():
                held = await find(conn)
                if held:
                    written = await self._write(conn, judge(held))
            self._count(written)
            return len(held), len(held)
        except INVALID_DATA as error:
            log.warning("PostgreSQL refuses a rescue (%s); each is written by itself", _first_line(error))
        async with conn.transaction():
            held = await find(conn)
        return len(held), sum([await self._move_one(conn, judge, task) for task in held])

    async def _move_one(self, conn: Connection, judge: Judge, task: Held) -> bool:
        """Move one task in its own transaction; False if it must wait."""
        for judged in (judge, lambda held: _as_failed(judge(held))):
            try:
                written = Written()
                async with conn.transaction():
                    is_ours = await rescue.lock(conn, task)  # else another process has moved it or is about to
                    if is_ours:
                        written = await self._write(conn, judged([task]))
                self._count(written)
                self._unwritable.pop(task.task, None)
                return is_ours
            except INVALID_DATA as error:
                reason = error
        self._back_off(task, reason)
        return False

    async def _write(self, conn: Connection, given: Verdicts) -> Written:
        ended = [verdict for verdict in given.verdicts if not isinstance(verdict, Again)]
        again = [verdict for verdict in given.verdicts if isinstance(verdict, Again)]
        await rescue.order_stops(conn, given.stops)
        return await self._recorder.apply(conn, ended, again)

    def _count(self, written: Written) -> None:
        self._recorder.count(written)
        self._recorder.tallies.rescued.update(ending.code or "" for ending in (*written.moved, *written.again))

    def _back_off(self, task: Held, error: Exception) -> None:
        before = self._unwritable.get(task.task)
        if before is None:
            log.error("task %d cannot be rescued: %s; retrying with backoff", task.task, _first_line(error))
        backoff = FIRST_BACKOFF if before is None else min(2 * before.backoff, LONGEST_BACKOFF)
        self._unwritable[task.task] = _Unwritable(task.session, backoff, boottime() + backoff)

    def _backing_off(self) -> list[int]:
        """Tasks that are skipped for now."""
        now = boottime()
        self._unwritable = {task: each for task, each in self._unwritable.items() if each.until + LONGEST_BACKOFF > now}
        return [task for task, each in self._unwritable.items() if each.until > now]

    def _skip(self, session: int) -> None:
        """Skip a session until the first of its unwritable tasks is tried again: it has no others."""
        until = [each.until for each in self._unwritable.values() if each.session == session]
        if until:
            self._skipped[session] = min(until)

    def _skipped_sessions(self) -> list[int]:
        now = boottime()
        self._skipped = {session: until for session, until in self._skipped.items() if until > now}
        return list(self._skipped)


def _timeout(job: Job) -> float | None:
    return job.default_timeout if job.definition.timeout is None else job.definition.timeout


def _as_failed(given: Verdicts) -> Verdicts:
    """Plain failures in place of verdicts that cannot be written."""
    endings = [verdict.ending if isinstance(verdict, Again) else verdict for verdict in given.verdicts]
    error = "it could not be rescued: what would have become of it cannot be stored"
    return given._replace(
        verdicts=[replace(e, state=TaskState.FAILED, code="rescue_failed", error=error, result=None) for e in endings]
    )


def lost(holder: Holder | None, task: Held) -> str:
    """Why an attempt was taken from an expired session, for people."""
    started = "it had started" if task.running else "it is not known to have started"
    if task.given_back:
        return f"{_describe(holder, task)} came back in another session without it; {started}"
    since = f", silent since {holder.heard_at:%Y-%m-%d %H:%M:%S} UTC" if holder and holder.heard_at else ""
    return f"{_describe(holder, task)} is gone{since}; {started}"


def _describe(holder: Holder | None, task: Held) -> str:
    if holder is None:
        return f"its agent (session {task.session})"
    host = f", host {holder.host}" if holder.host else ""
    server = f", server {holder.server}" if holder.server else ""
    return f"its agent {holder.name} (session {holder.session}{host}{server})"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]  # the rest is the row
