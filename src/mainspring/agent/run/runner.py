"""Runner: fires armed attempts at their instant, as many at a time as there are slots.

Next: agent/attempt.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from mainspring.agent.attempt import Attempt, AttemptFailed, Executor, StopReason
from mainspring.agent.connection.outbox import Outbox
from mainspring.agent.context import Control, TaskCancelled
from mainspring.agent.run import endings
from mainspring.agent.run.failures import Failures
from mainspring.agent.run.health import watched
from mainspring.agent.run.slots import Slots
from mainspring.agent.run.token_filter import Seen
from mainspring.agent.timing.timers import Timers
from mainspring.model.messages import Armed, Held, Holding
from mainspring.model.tasks.jobs import Job, Run
from mainspring.model.tasks.states import TaskState
from mainspring.wire.clock import Clock

log = logging.getLogger("mainspring")

STUBBORN = 5.0  # seconds beyond its grace that are waited for one that does not stop
PATIENCE = 1.0  # seconds that a due attempt waits for a slot here before it is given back


class Runner:
    def __init__(
        self,
        slots: int,
        clock: Clock,
        timers: Timers,  # for instants, on the database's time
        durations: Timers,  # for timeouts, on the boot-time clock: no one can set it
        outbox: Outbox,
        executors: Mapping[type[Run], Executor],
        confirm: Callable[[], Awaitable[None]],
        lapsed: Callable[[], bool] = lambda: False,  # whether the lease is over
        failures: Failures | None = None,  # is told of them
    ) -> None:
        self._slots = Slots(slots, self._run, lapsed)
        self._clock = clock
        self._timers = timers
        self._durations = durations
        self._outbox = outbox
        self._executors = executors
        self._failures = failures or Failures()
        self._confirm = confirm  # returns once all that was reported so far is durable
        self._held: dict[int, Attempt] = {}  # by task
        self._seen = Seen()
        self.database = ""  # the id of the servers' database, once one has welcomed us
        self.draining = False
        self.empty = asyncio.Event()
        self.empty.set()

    # ── arming ──────────────────────────────────────────────────────────────────────────────────

    def arm(self, armed: Armed, job: Job | None) -> None:
        """Take an attempt. One that was here before is not taken twice; a newer token replaces an older one."""
        present = self._held.get(armed.task)
        if not self._seen.add(armed.token):
            if self._seen.has_forgotten(armed.token) and present is None:
                # It may be new: a claim whose answer was lost is found late. If it is not, giving it back does nothing.
                self._outbox.refused(armed, "too old to know")
            return
        if present is not None:
            if present.armed.token > armed.token:
                return
            present.grace = 0.0
            self._replace(present)
        if job is None:
            self._outbox.ended(endings.of_no_job(armed, self._clock.now()))
            return
        attempt = Attempt(armed, job, self._outbox, self.database)
        attempt.submissions = self._outbox.submissions
        if self.draining:
            self._outbox.refused(attempt.armed, "draining")
            return
        if armed.task in self._held:  # two never run side by side; after a while, lest it come and go all the time
            reason = "its last attempt is not over"
            self._durations.after(PATIENCE, lambda late: self._outbox.refused(late.armed, reason), attempt)
            return
        attempt.lead = armed.fire_at - self._clock.now()
        try:
            self._executor(attempt).prepare(attempt)
        except Exception as error:
            self._outbox.ended(self._failures.tell(attempt, endings.broken(attempt, error, self._clock.now()), error))
            return
        self._held[armed.task] = attempt
        self.empty.clear()
        if armed.fire_at > self._clock.now():
            attempt.timer = self._timers.at(armed.fire_at, self._due, attempt)
        else:
            self._due(attempt)

    def _replace(self, attempt: Attempt) -> None:
        """The server gave the task a new attempt: this one is void."""
        if attempt.is_waiting:
            self._withdraw(attempt)
        else:
            self._stop(attempt, "lost")

    def _due(self, attempt: Attempt) -> None:
        attempt.timer = None
        self._slots.start(attempt)

    # ── across connections ──────────────────────────────────────────────────────────────────────

    def holdings(self) -> list[Holding]:
        """What is held, and whether it has started."""
        return [
            Holding(a.armed.task, a.armed.token, TaskState.ASSIGNED if a.is_waiting else TaskState.RUNNING)
            for a in self._held.values()
        ]

    def keep_only(self, kept: list[Held]) -> None:
        """The server knows what is ours: all else belongs to others by now."""
        ours = {attempt.token for attempt in kept}
        for attempt in [a for a in self._held.values() if a.armed.token not in ours]:
            attempt.grace = 0.0  # it may run elsewhere already
            self._replace(attempt)

    def lose(self, grace: float) -> None:
        """All that is held goes elsewhere soon: forget what waits, and stop what runs within `grace` seconds."""
        self._slots.waiting.clear()
        for attempt in list(self._held.values()):
            attempt.grace = min(attempt.grace, grace)
            self._replace(attempt)

    # ── running ─────────────────────────────────────────────────────────────────────────────────

    async def _run(self, attempt: Attempt) -> None:
        armed = attempt.armed
        attempt.started_at = self._clock.now()
        self._outbox.started(attempt)
        try:
            if attempt.stopping is not None:
                raise asyncio.CancelledError
            if armed.careful:
                self._outbox.hurry()
                await self._confirm()
            timeout = attempt.job.definition.timeout
            if timeout is not None:
                attempt.timer = self._durations.after(timeout, self._time_out, attempt)
            result = await (self._run_watched(attempt) if armed.daemon else self._executor(attempt).run(attempt))
            ending = endings.ending(attempt, TaskState.SUCCEEDED, self._clock.now(), result)
        except (AttemptFailed, Control, TaskCancelled, asyncio.CancelledError) as error:
            ending = self._failures.tell(attempt, endings.unsuccessful(attempt, error, self._clock.now()), error)
        except BaseException as error:
            ending = self._failures.tell(attempt, endings.broken(attempt, error, self._clock.now()), error)
        finally:
            self._over(attempt)
        self._outbox.ended(ending)

    async def _run_watched(self, attempt: Attempt) -> str | None:
        with watched(attempt, self._executors, partial(self._stop, reason="unhealthy")):
            return await self._executor(attempt).run(attempt)

    def _executor(self, attempt: Attempt) -> Executor:
        return self._executors[type(attempt.job.definition.run)]

    def _over(self, attempt: Attempt) -> None:
        attempt.handle = None  # the slot goes on to another
        self._executor(attempt).forget(attempt)  # it may have been stopped before it began
        if attempt.timer is not None:
            self._durations.disarm(attempt.timer)
        if self._held.get(attempt.armed.task) is attempt:
            del self._held[attempt.armed.task]
            if not self._held:
                self.empty.set()

    # ── stopping ────────────────────────────────────────────────────────────────────────────────

    def _time_out(self, attempt: Attempt) -> None:
        attempt.timer = None
        self._stop(attempt, "timeout")

    def _stop(self, attempt: Attempt, reason: StopReason) -> None:
        attempt.stop(reason)
        attempt.timeout_left = None
        if attempt.timer is not None:
            self._durations.disarm(attempt.timer)
        attempt.timer = self._durations.after(attempt.grace + 1.0, self._insist, attempt)

    def _insist(self, attempt: Attempt) -> None:
        attempt.timer = None
        if attempt.handle is not None:
            log.warning("task %d does not stop; it is told again", attempt.armed.task)
            attempt.handle.cancel()
            attempt.timer = self._durations.after(attempt.grace + 1.0, self._insist, attempt)

    def _withdraw(self, attempt: Attempt) -> None:
        """Forget an attempt that has not started."""
        self._executor(attempt).forget(attempt)
        if attempt.timer is not None:
            self._timers.disarm(attempt.timer)
        elif attempt in self._slots.waiting:
            self._slots.waiting.remove(attempt)
        del self._held[attempt.armed.task]
        if not self._held:
            self.empty.set()

    def _find(self, held: Held) -> Attempt | None:
        attempt = self._held.get(held.task)
        return attempt if attempt is not None and attempt.armed.token == held.token else None

    def cancel(self, attempts: list[Held], *, kill: bool = False, restart: bool = False) -> None:
        """Somebody cancelled these: stop those that run, with `kill` at once, and end those that wait.

        With `restart` they are to run again: those that run are stopped for that, those that wait are given back.
        """
        for held in attempts:
            attempt = self._find(held)
            if attempt is None:
                continue
            if kill:
                attempt.grace = 0.0
            if attempt.is_waiting and restart:
                self._withdraw(attempt)
                self._outbox.refused(attempt.armed, "restarted")
            elif attempt.is_waiting:
                self._withdraw(attempt)
                self._outbox.ended(endings.before_start(attempt, self._clock.now()))
            elif kill and attempt.stopping is not None and attempt.handle is not None:
                attempt.handle.cancel()  # it is being stopped, with a grace that it has no longer
            else:
                self._stop(attempt, "restart" if restart else "cancelled")

    def pause(self, attempts: list[Held], *, resume: bool) -> None:
        """Stop these where they are, or let them go on. The time in between does not count for a timeout."""
        for held in attempts:
            attempt = self._find(held)
            if attempt is None or attempt.is_waiting or attempt.stopping is not None:
                continue
            if not self._executor(attempt).pause(attempt, resume=resume):
                if not resume:  # else it never stood still: who connects again is told to let all go on
                    log.info("task %d cannot be paused: only commands can", held.task)
                continue
            attempt.paused = not resume
            if resume and attempt.timeout_left is not None:
                attempt.timer = self._durations.after(max(attempt.timeout_left, 0.0), self._time_out, attempt)
                attempt.timeout_left = None
            elif not resume and attempt.timer is not None:
                attempt.timeout_left = self._durations.left(attempt.timer)
                self._durations.disarm(attempt.timer)
                attempt.timer = None

    def recall(self, attempts: list[Held]) -> None:
        """Give these back if they have not started."""
        for held in attempts:
            attempt = self._find(held)
            if attempt is not None and attempt.is_waiting:
                self._withdraw(attempt)
                self._outbox.refused(attempt.armed, "recalled")

    def drain(self) -> None:
        """Take nothing new; give back what has not started. A daemon would never end: it goes elsewhere at once."""
        self.draining = True
        self._slots.waiting.clear()
        for attempt in list(self._held.values()):
            if attempt.is_waiting:
                self._withdraw(attempt)
                self._outbox.refused(attempt.armed, "draining")
            elif attempt.armed.daemon:
                self._stop(attempt, "shutdown")

    def give_back_overdue(self, now: float) -> None:
        """Attempts that have waited here too long for a slot, at `now` (boot time), may find one elsewhere."""
        waiting = self._slots.waiting
        while waiting and waiting[0].waiting_since < now - PATIENCE:
            attempt = waiting[0]
            self._withdraw(attempt)
            self._outbox.refused(attempt.armed, "full")

    def stop_all(self, reason: StopReason) -> None:
        for attempt in list(self._held.values()):
            if not attempt.is_waiting:
                self._stop(attempt, reason)

    @property
    def running(self) -> int:
        return self._slots.busy

    @property
    def crowded(self) -> bool:
        """Whether due attempts wait for a slot."""
        return bool(self._slots.waiting)

    async def settled(self) -> None:
        """Wait until nothing runs that was told to stop; not for ever: a handler can ignore it for good."""
        grace = max((attempt.grace for attempt in self._held.values()), default=0.0)
        try:
            async with asyncio.timeout(grace + STUBBORN):
                await self.empty.wait()
        except TimeoutError:
            log.error("tasks %s do not stop; they are left to themselves", sorted(self._held))

    def close(self) -> None:
        self._slots.close()
