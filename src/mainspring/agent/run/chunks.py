"""Chunks: gathers attempts whose handler takes a list, and runs each chunk of them as one call, in one slot.

A chunk begins when it is full, or when its first member has waited for the `chunk_wait` of its job; while it then waits
for a slot, more may join. Each member keeps its token and its report, and ends by itself: as the handler says for its
position, or as stopped, if it was stopped meanwhile. The call itself is stopped when all of its members are: one cannot
be stopped alone. So a member that belongs to another attempt by now takes the others along, which run again at no cost.

Sends   Started, Finished, through the outbox
Next:   agent/executors/python.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context

from mainspring.agent.attempt import Attempt, AttemptFailed, ChunkCall, Exhausted, Outcome, StopReason
from mainspring.agent.connection.outbox import Outbox
from mainspring.agent.context import Control, TaskCancelled, running
from mainspring.agent.run import endings
from mainspring.agent.run.durations import Durations
from mainspring.agent.run.failures import Failures
from mainspring.agent.run.workers import Workers
from mainspring.agent.timing.timers import Timers
from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Python
from mainspring.model.tasks.states import TaskState
from mainspring.wire.clock import Clock, boottime

Key = tuple[int, int, float | None, float | None]  # job and version, and how long its tasks may run, and be silent


class Chunks:
    """`over` lets go of an attempt that has ended."""

    def __init__(
        self,
        workers: Workers,
        clock: Clock,
        boot_timers: Timers,
        outbox: Outbox,
        confirm: Callable[[], Awaitable[None]],
        failures: Failures,
        over: Callable[[Attempt], None],
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._boot_timers = boot_timers
        self._durations = Durations(boot_timers, self._stop_all)
        self._outbox = outbox
        self._confirm = confirm
        self._failures = failures
        self._over = over
        self._open: dict[Key, ChunkCall] = {}  # the call that the next attempt of a job joins

    # ── before the call ─────────────────────────────────────────────────────────────────────────

    def add(self, attempt: Attempt) -> None:
        """Take an attempt that is due into a call."""
        if _goes_alone(attempt):
            self._workers.start(ChunkCall(attempt), boottime())
            return
        key = _key(attempt)
        call = self._open.get(key)
        if call is not None and call.timer is None and attempt.armed.priority > call.armed.priority:
            call = None  # it waits for a slot in the order of its priority: the more important one has its own
        if call is None:
            call = self._open[key] = ChunkCall(attempt)
            run = attempt.job.definition.run
            assert type(run) is Python
            call.timer = self._boot_timers.after(run.chunk_wait, self._ready, call)
        else:
            call.add(attempt)
        if len(call.members) >= attempt.chunk:
            del self._open[key]
            if call.timer is not None:
                self._boot_timers.disarm(call.timer)
                self._ready(call)

    def _ready(self, call: ChunkCall) -> None:
        """It is full, or its first member has waited long enough."""
        call.timer = None
        call.armed = max(call.members, key=lambda attempt: attempt.armed.priority).armed
        self._workers.start(call, boottime())

    def leave(self, attempt: Attempt) -> None:
        """Take out a member of a call that has not begun."""
        call = attempt.call
        assert call is not None
        attempt.call = None
        call.members.remove(attempt)
        if call.members:
            return
        self._close(call, _key(attempt))
        if call.timer is not None:
            self._boot_timers.disarm(call.timer)
        elif call in self._workers.waiting:
            self._workers.waiting.remove(call)

    def _close(self, call: ChunkCall, key: Key) -> None:
        if self._open.get(key) is call:
            del self._open[key]

    # ── the call ────────────────────────────────────────────────────────────────────────────────

    async def run(self, call: ChunkCall, began: float) -> None:
        """Run a call that begins at this boot time; report the ending of each member."""
        members = call.members
        if not members:
            return  # all have left since it got its slot
        self._close(call, _key(members[0]))
        call.handle = call.handle  # of those, too, that have joined since it got its slot
        for attempt in members:
            attempt.started_at = self._clock.at(began)
            self._outbox.started(attempt)
        try:
            if await self._may_begin(call):
                self._end(call, await call.members[0].executor.run_chunk(call))
        except (AttemptFailed, Exhausted, Control, TaskCancelled, asyncio.CancelledError) as error:
            if isinstance(error, (TaskCancelled, asyncio.CancelledError)) and call.stopping is None:
                raise  # the agent is cancelled, not the call
            self._end(call, [error] * len(call.members))
        except BaseException as error:
            self._end(call, [endings.executor_failure(error)] * len(call.members))
        finally:
            for attempt in call.members:  # none, unless the agent is cancelled
                self._let_go(attempt)
            self._durations.end(call)

    async def _may_begin(self, call: ChunkCall) -> bool:
        """Make the starts durable where they must be; leave out those that were stopped meanwhile or are too late."""
        try:
            if call.stopping is None and any(attempt.starts_durably for attempt in call.members):
                self._outbox.hurry()
                await self._confirm()
        except asyncio.CancelledError:
            if call.stopping is None:
                raise
        now = self._clock.now()
        for attempt in [each for each in call.members if each.stopping is not None or each.has_expired(now)]:
            call.members.remove(attempt)
            if attempt.stopping is None:
                ending = endings.expired(attempt, now)
            else:
                ending = endings.stopped(attempt, attempt.stopping, now)
                endings.give_back(ending)
            self._let_go(attempt)
            self._outbox.ended(ending)
        if not call.members:
            return False
        self._durations.begin(call, 0.0)
        return True

    def _end(self, call: ChunkCall, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            attempt = call.members.pop(0)
            ending = self._ending(attempt, outcome)
            self._let_go(attempt)
            can_wait = ending.state is TaskState.SUCCEEDED and attempt.ending_can_wait
            self._outbox.ended(ending, can_wait=can_wait)

    def _let_go(self, attempt: Attempt) -> None:
        attempt.call = None
        self._over(attempt)

    def _ending(self, attempt: Attempt, outcome: Outcome) -> Ending:
        now = self._clock.now()
        if attempt.stopping is not None and not attempt.committed and not isinstance(outcome, Control):
            outcome = asyncio.CancelledError()  # whatever the call returned for it
        if not isinstance(outcome, BaseException):
            return endings.ended(attempt, TaskState.SUCCEEDED, now, outcome)
        context = copy_context()  # of this member: its failure is logged, and passed to hooks, with its number
        context.run(running.set, attempt)
        return context.run(self._failures.report, attempt, endings.raised(attempt, outcome, now), outcome)

    # ── stopping ────────────────────────────────────────────────────────────────────────────────

    def stop(self, attempt: Attempt, reason: StopReason) -> None:
        """Stop a member that has its slot. The call continues for the others, unless this one may run elsewhere now."""
        call = attempt.call
        assert call is not None
        attempt.stopping = attempt.stopping or reason
        if reason == "lost":
            attempt.stopping = reason if attempt.stopping == "neighbour" else attempt.stopping
            # An at_most_once task that is lost does not run elsewhere, and its neighbours must not run again.
            if attempt.job.definition.delivery != "at_most_once":
                call.stopping = "neighbour"
        if call.stopping is not None:
            self._cancel(call)

    def _stop_all(self, call: ChunkCall, reason: StopReason) -> None:
        call.stopping = reason
        self._cancel(call)

    def _cancel(self, call: ChunkCall) -> None:
        """Cancel the handler, and again whenever its grace is over."""
        if call.handle is None or not call.members[0].started_at:
            return  # `run` looks before it begins
        call.handle.cancel()
        self._durations.stopped(call)


def _key(attempt: Attempt) -> Key:
    return attempt.job.id, attempt.job.version, attempt.timeout, attempt.stalls_after


def _goes_alone(attempt: Attempt) -> bool:
    """Whether its failures must not be those of others: an earlier attempt has crashed its agent, or all but the last
    have failed, perhaps because of another member."""
    armed = attempt.armed
    given = None if armed.options is None else attempt.options.retries
    retries = attempt.job.definition.retry.retries if given is None else given
    return armed.careful or armed.attempt > max(1, retries)
