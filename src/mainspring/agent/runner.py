"""Runner: fires armed attempts at their instant, as many at a time as there are slots.

Next: agent/executors/base.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from mainspring.agent.attempt import Attempt, StopReason
from mainspring.agent.control import CancelTask, Control, Fail, RetryAfter, Snooze
from mainspring.agent.executors.base import AttemptFailed, Executor
from mainspring.agent.outbox import Outbox
from mainspring.agent.timers import Timers
from mainspring.model.jobs import Job, Run
from mainspring.model.messages import Armed, Ending, Held
from mainspring.model.payload import cut
from mainspring.model.states import TaskState
from mainspring.wire.clock import Clock

log = logging.getLogger("mainspring")

PATIENCE = 1.0  # seconds that a due attempt waits for a slot here before it is given back

_STOPPED: dict[StopReason, tuple[TaskState, str, str]] = {
    "timeout": (TaskState.TIMED_OUT, "timeout", "did not end within its timeout of {timeout:g} s"),
    "cancelled": (TaskState.CANCELLED, "cancelled", "cancelled while it ran"),
    "shutdown": (TaskState.FAILED, "shutdown", "its agent was stopped"),
    "lost": (TaskState.LOST, "lost", "its agent could not renew its lease"),
}


class Runner:
    def __init__(
        self,
        slots: int,
        clock: Clock,
        timers: Timers,
        outbox: Outbox,
        executors: Mapping[type[Run], Executor],
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots = slots
        self._clock = clock
        self._timers = timers
        self._outbox = outbox
        self._executors = executors
        self._confirm = confirm  # returns once all that was reported so far is durable
        self._held: dict[int, Attempt] = {}  # by task
        self._ready: deque[Attempt] = deque()
        self._running = 0
        self._draining = False
        self.empty = asyncio.Event()
        self.empty.set()

    # ── arming ──────────────────────────────────────────────────────────────────────────────────

    def arm(self, armed: Armed, job: Job) -> None:
        """Take an attempt. One that is here already is not taken twice; a newer token replaces an older one."""
        present = self._held.get(armed.task)
        if present is not None:
            if present.armed.token >= armed.token:
                return
            self._stop(present, "lost")  # the server gave the task a new attempt: the old one is void
        attempt = Attempt(armed, job, self._outbox)
        if self._draining:
            self._outbox.refused(attempt, "draining")
            return
        self._held[armed.task] = attempt
        self.empty.clear()
        if armed.fire_at > self._clock.now():
            attempt.timer = self._timers.at(armed.fire_at, self._due, attempt)
        else:
            self._due(attempt)

    def _due(self, attempt: Attempt) -> None:
        attempt.timer = None
        if self._running < self._slots:
            self._start(attempt)
        else:
            self._ready.append(attempt)

    def _start(self, attempt: Attempt) -> None:
        self._running += 1
        attempt.handle = self._loop.create_task(self._run(attempt))

    # ── running ─────────────────────────────────────────────────────────────────────────────────

    async def _run(self, attempt: Attempt) -> None:
        attempt.started_at = self._clock.now()
        self._outbox.started(attempt)
        try:
            ending = await self._attempt(attempt)
        finally:
            self._running -= 1
            if attempt.timer is not None:
                self._timers.disarm(attempt.timer)
            if self._held.get(attempt.armed.task) is attempt:
                del self._held[attempt.armed.task]
        self._outbox.ended(ending)
        while self._ready and self._running < self._slots:
            self._start(self._ready.popleft())
        if not self._held:
            self.empty.set()

    async def _attempt(self, attempt: Attempt) -> Ending:
        definition = attempt.job.definition
        try:
            if attempt.stopping is not None:
                raise asyncio.CancelledError
            if attempt.armed.careful:
                self._outbox.hurry()
                await self._confirm()
            if definition.timeout is not None:
                attempt.timer = self._timers.at(self._clock.now() + definition.timeout, self._time_out, attempt)
            result = await self._executors[type(definition.run)].run(attempt)
        except asyncio.CancelledError:
            if attempt.stopping is None:
                raise
            return self._stopped(attempt, attempt.stopping)
        except AttemptFailed as failure:
            if attempt.stopping is not None:  # it failed because it was stopped
                log.debug("task %d failed while it was stopped: %s", attempt.armed.task, failure.message)
                return self._stopped(attempt, attempt.stopping)
            return self._ending(
                attempt,
                TaskState.FAILED,
                code=failure.code,
                error=cut(failure.message),
                labels=failure.labels,
                final=failure.final,
            )
        except Control as control:
            return self._controlled(attempt, control)
        return self._ending(attempt, TaskState.SUCCEEDED, result=result)

    def _controlled(self, attempt: Attempt, control: Control) -> Ending:
        """The handler said itself what is to become of its task."""
        message = cut(str(control))
        match control:
            case RetryAfter(delay=delay):
                labels = ("retry_after", "RetryAfter")
                return self._ending(
                    attempt,
                    TaskState.FAILED,
                    code="retry_after",
                    error=message,
                    labels=labels,
                    retry_after=delay,
                )
            case Snooze(delay=delay):
                return self._ending(attempt, TaskState.SKIPPED, code="snoozed", snooze=delay)
            case CancelTask():
                if attempt.stopping not in (None, "cancelled"):
                    return self._stopped(attempt, attempt.stopping)
                return self._ending(attempt, TaskState.CANCELLED, code="cancelled", error=message)
            case Fail() | _:
                return self._ending(attempt, TaskState.FAILED, code="failed_for_good", error=message, final=True)

    def _stopped(self, attempt: Attempt, reason: StopReason) -> Ending:
        state, code, message = _STOPPED[reason]
        message = message.format(timeout=attempt.job.definition.timeout)
        return self._ending(attempt, state, code=code, error=message, labels=(code,))

    def _ending(
        self,
        attempt: Attempt,
        state: TaskState,
        *,
        result: str | None = None,
        code: str | None = None,
        error: str | None = None,
        labels: tuple[str, ...] = (),
        retry_after: float | None = None,
        snooze: float | None = None,
        final: bool = False,
    ) -> Ending:
        armed = attempt.armed
        return Ending(
            armed.task,
            armed.token,
            armed.job,
            armed.attempt,
            state,
            attempt.started_at,
            self._clock.now(),
            result,
            code,
            error,
            labels,
            retry_after,
            snooze,
            final,
        )

    # ── stopping ────────────────────────────────────────────────────────────────────────────────

    def _time_out(self, attempt: Attempt) -> None:
        attempt.timer = None
        self._stop(attempt, "timeout")

    def _stop(self, attempt: Attempt, reason: StopReason) -> None:
        attempt.stop(reason)
        if attempt.timer is not None:
            self._timers.disarm(attempt.timer)
        # One that does not let go is told again, until it does.
        again = self._clock.now() + attempt.job.definition.grace + 1.0
        attempt.timer = self._timers.at(again, self._insist, attempt)

    def _insist(self, attempt: Attempt) -> None:
        attempt.timer = None
        if attempt.handle is not None and not attempt.handle.done():
            log.warning("task %d does not stop; it is told again", attempt.armed.task)
            attempt.handle.cancel()
            again = self._clock.now() + attempt.job.definition.grace + 1.0
            attempt.timer = self._timers.at(again, self._insist, attempt)

    def _is_waiting(self, attempt: Attempt) -> bool:
        return attempt.handle is None

    def _withdraw(self, attempt: Attempt) -> None:
        """Forget an attempt that has not started."""
        if attempt.timer is not None:
            self._timers.disarm(attempt.timer)
        elif attempt in self._ready:
            self._ready.remove(attempt)
        del self._held[attempt.armed.task]
        if not self._held:
            self.empty.set()

    def _find(self, held: Held) -> Attempt | None:
        attempt = self._held.get(held.task)
        return attempt if attempt is not None and attempt.armed.token == held.token else None

    def cancel(self, attempts: list[Held]) -> None:
        """Somebody cancelled these: stop those that run, end those that wait."""
        for held in attempts:
            attempt = self._find(held)
            if attempt is None:
                continue
            if self._is_waiting(attempt):
                self._withdraw(attempt)
                self._outbox.ended(
                    self._ending(attempt, TaskState.CANCELLED, code="cancelled", error="cancelled before it started")
                )
            else:
                self._stop(attempt, "cancelled")

    def recall(self, attempts: list[Held]) -> None:
        """Give these back if they have not started."""
        for held in attempts:
            attempt = self._find(held)
            if attempt is not None and self._is_waiting(attempt):
                self._withdraw(attempt)
                self._outbox.refused(attempt, "recalled")

    def drain(self) -> None:
        """Take nothing new; give back what has not started."""
        self._draining = True
        self._ready.clear()
        for attempt in [a for a in self._held.values() if self._is_waiting(a)]:
            self._withdraw(attempt)
            self._outbox.refused(attempt, "draining")

    def give_back_overdue(self) -> None:
        """Attempts that have waited here too long for a slot may find one elsewhere."""
        limit = self._clock.now() - PATIENCE
        while self._ready and self._ready[0].armed.fire_at < limit and self._running >= self._slots:
            attempt = self._ready.popleft()
            del self._held[attempt.armed.task]
            self._outbox.refused(attempt, "full")

    def stop_all(self, reason: StopReason) -> None:
        for attempt in list(self._held.values()):
            if not self._is_waiting(attempt):
                self._stop(attempt, reason)

    @property
    def running(self) -> int:
        return self._running
