"""Rescuer: tasks of agents that are gone, and attempts that an agent should have ended and did not.

Both are decided in batches, each one transaction; what others have locked is passed over. Two rescuers at once do no
harm.
Reads   store.rescue         what sessions hold whose lease is over, and what runs past its deadline
Writes  store.outcomes       through the recorder's own moves, under the old token
        store.rescue         orders to stop what an agent still runs
Next:   model/tasks/verdict.py, server/recovery/salvage.py
"""

from __future__ import annotations

import logging
import random
from functools import partial

from mainspring.model.messages import Ending
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import Again, after_attempt, after_crash, at_least_after
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.cluster.clock import measure
from mainspring.server.recording.batch import UNFIT
from mainspring.server.recording.recorder import Recorder
from mainspring.server.recovery.salvage import Salvage, Verdicts
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import revoke
from mainspring.store.tasks import rescue
from mainspring.store.tasks.rescue import Deadline, Held, Holder, Order
from mainspring.wire.clock import Clock, boottime

log = logging.getLogger("mainspring")
job_log = logging.getLogger("mainspring.job")

BATCH = 500
LOGGED = 10  # of the tasks of a batch that end with their agent
LOOK_EVERY = 5.0  # seconds between two looks for attempts past their deadline
SESSIONS = 200  # whose attempts one such look goes through; the next goes on behind them

# An attempt may be running for its timeout and its grace, and then this much longer before it is taken from a living
# agent: twice the lease, for a report that cannot be told within one is of a session that is over; and half a minute
# for output that comes before the report, for pauses that come to the agent late, and for clocks.
MARGIN = 30.0
# Seconds after a change of a job within which an attempt may start that was armed before it: the longest lead that can
# be set, and a minute until all have heard of the change.
SETTLED = 3660.0
STOPS_WITHIN = 5.0  # seconds that an attempt has to stop before its task runs again


class Rescuer:
    def __init__(
        self, database: Database, catalogue: Catalogue, recorder: Recorder, clock: Clock, lease: float
    ) -> None:
        self._line = database.line("lead")
        self._catalogue = catalogue
        self._recorder = recorder
        self._clock = clock
        self._lease = lease
        self._margin = MARGIN + 2 * lease
        self._salvage = Salvage(recorder)
        self._unfit: set[int] = set()  # tokens of what was asked back and cannot be planned anew
        self._looked_at = 0.0  # for deadlines, in boot time
        self._last_session = 0  # that was looked at

    async def step(self) -> int:
        """Rescue a batch of each session that is gone, and what is past its deadline; returns how many moved."""
        if self._recorder.is_behind:
            return 0  # some of them may have ended well: what we were told comes first
        moved = 0
        async with self._line as conn:
            await measure(conn, self._clock)
            if self._clock.steady_for < self._lease:
                return 0  # the clock was set forward: sessions whose lease seems over may run what they hold
            for session in await rescue.gone(conn, self._salvage.resting()):
                moved += await self._rescue(conn, session)
            if boottime() - self._looked_at >= LOOK_EVERY:
                self._looked_at = boottime()
                moved += await self._end_overdue(conn)
        if moved:
            for listener in self._recorder.on_requeued:
                listener()
        return moved

    # ── agents that are gone ────────────────────────────────────────────────────────────────────

    async def _rescue(self, conn: Connection, session: int) -> int:
        moved = await self._take_back(conn, session)
        holder = (await rescue.holders(conn, [session])).get(session)
        found = partial(self._held, session)
        batch = await self._salvage.move(conn, found, partial(self._after_crash, holder))
        if batch.found < BATCH:
            await rescue.forget(conn, session)
        if not batch.found:
            self._salvage.rest(session)
        return moved + batch.moved

    async def _held(self, session: int, conn: Connection) -> list[Held]:
        held = await rescue.held(conn, session, BATCH, self._salvage.unfit())
        if any(self._catalogue.definition(task.job_id) is None for task in held):
            await self._catalogue.refresh()  # its job may be new
        return [task for task in held if not self._can_be_planned_anew(task)]  # asked back a moment ago: next time

    async def _take_back(self, conn: Connection, session: int) -> int:
        """What was asked back has not started, as far as we know: its plan time is undecided again.

        Apart from all else: whoever takes it back holds the schedule before the task, and we must not do it in
        another order.
        """
        asked = await rescue.recalled(conn, session, BATCH)
        back = {task: token for task, token, job in asked if self._may_run_twice(job) and token not in self._unfit}
        try:
            return len(await revoke.confirm(conn, list(back), list(back.values()))) if back else 0
        except UNFIT as error:
            log.warning("what session %d is to give back cannot be planned anew: %s; it runs again", session, error)
            self._unfit |= set(back.values())
            return 0

    def _can_be_planned_anew(self, task: Held) -> bool:
        return task.recalled and task.token not in self._unfit and self._may_run_twice(task.job_id)

    def _may_run_twice(self, job: int) -> bool:
        """One that was asked back may have started, unknown to us: not where that must not be."""
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
                scheduled=task.scheduled,
                handed_on=task.handed_on,
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
        """The agent that ran them cannot say so any more: see agent/run/failures.py for those that can."""
        for ending in endings[:LOGGED]:
            job = self._catalogue.job(ending.job)
            name = "a deleted job" if job is None else job.name
            told = (name, ending.task, ending.attempt, ending.state.label, ending.code, ending.error)
            extra = {"job": name, "task": ending.task, "attempt": ending.attempt, "error_code": ending.code}
            job_log.error("%s: task %d, attempt %d was the last, it is %s (%s: %s)", *told, extra=extra)
        if len(endings) > LOGGED:
            job_log.error(
                "%d more tasks ended with their agent; `mainspring task list` has them", len(endings) - LOGGED
            )

    # ── attempts past their deadline ────────────────────────────────────────────────────────────

    async def _end_overdue(self, conn: Connection) -> int:
        """End what its living agent should have ended; the agent is told to stop it, wherever it is connected."""
        deadlines = self._deadlines()
        if not deadlines:
            return 0
        sessions = await rescue.living(conn, self._last_session, SESSIONS)
        self._last_session = sessions[-1] if len(sessions) == SESSIONS else 0
        if not sessions:
            return 0
        holders = await rescue.holders(conn, sessions)

        async def found(conn: Connection) -> list[Held]:
            since = self._clock.steady_since
            held = await rescue.overdue(conn, sessions, deadlines, settled=SETTLED, since=since, limit=BATCH)
            unfit = set(self._salvage.unfit())
            return [task for task in held if task.task not in unfit]

        return (await self._salvage.move(conn, found, partial(self._after_deadline, holders))).moved

    def _deadlines(self) -> list[Deadline]:
        return [
            Deadline(job.id, job.version, job.definition.timeout + job.definition.grace + self._margin)
            for job in self._catalogue.jobs
            if job.definition.timeout is not None
        ]

    def _after_deadline(self, holders: dict[int, Holder], held: list[Held]) -> Verdicts:
        verdicts: list[Ending | Again] = []
        for task in held:
            definition = self._catalogue.definition(task.job_id)
            timeout = definition.timeout if definition is not None else None
            who = _who(holders.get(task.session), task)
            error = f"did not end within its timeout of {timeout or 0:g} s, and {who} did not end it either"
            log.warning("task %d %s", task.task, error)
            ending = self._ending(task, TaskState.TIMED_OUT, "timeout", error)
            verdicts.append(at_least_after(STOPS_WITHIN, after_attempt(definition, ending, random.random())))
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

    async def close(self) -> None:
        await self._line.close()


def lost(holder: Holder | None, task: Held) -> str:
    """Why an attempt was taken from a session that is over, for people."""
    started = "it had started" if task.running else "it is not known to have started"
    if task.handed_on:
        return f"{_who(holder, task)} came back in another session without it; {started}"
    since = f", silent since {holder.heard_at:%Y-%m-%d %H:%M:%S} UTC" if holder and holder.heard_at else ""
    return f"{_who(holder, task)} is gone{since}; {started}"


def _who(holder: Holder | None, task: Held) -> str:
    if holder is None:
        return f"its agent (session {task.session})"
    host = f", host {holder.host}" if holder.host else ""
    server = f", server {holder.server}" if holder.server else ""
    return f"its agent {holder.name} (session {holder.session}{host}{server})"
