"""Durations: stop what runs, or is silent, for too long; cancel it again if it does not stop.

What is watched is an attempt, or the call that runs several. All of it is on the boot-time clock, which cannot be set.
Paused time does not count.
Next: agent/timing/timers.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from mainspring.agent.attempt import Attempt, ChunkCall, StopReason
from mainspring.agent.timing.timers import Timers
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

Work = TypeVar("Work", Attempt, ChunkCall)


class Durations(Generic[Work]):
    """`stop` is called with what has run or been silent for too long, and the reason."""

    def __init__(self, timers: Timers, stop: Callable[[Work, StopReason], None]) -> None:
        self._timers = timers
        self._stop: Callable[[Work, StopReason], None] = stop

    def begin(self, work: Work, elapsed: float) -> None:
        """Watch what has run for so many seconds."""
        if (timeout := work.timeout) is not None:
            work.timer = self._timers.after(timeout - elapsed, self._time_out, work)
        if (stalls_after := work.stalls_after) is not None:
            work.active_at = boottime()
            work.stall_timer = self._timers.after(stalls_after, self._look_at, work)

    def end(self, work: Work) -> None:
        if work.timer is not None:
            self._timers.disarm(work.timer)
        if work.stall_timer is not None:
            self._timers.disarm(work.stall_timer)
            work.stall_timer = None

    def pause(self, work: Work, *, resume: bool) -> None:
        """It is paused now, or resumed."""
        work.paused = not resume
        if resume:
            work.active_at = boottime()
        if resume and work.timeout_left is not None:
            work.timer = self._timers.after(max(work.timeout_left, 0.0), self._time_out, work)
            work.timeout_left = None
        elif not resume and work.timer is not None:
            work.timeout_left = self._timers.left(work.timer)
            self._timers.disarm(work.timer)
            work.timer = None

    def stopped(self, work: Work) -> None:
        """It was asked to stop: its grace takes the place of its timeout."""
        work.timeout_left = None
        if work.timer is not None:
            self._timers.disarm(work.timer)
        work.timer = self._timers.after(work.grace + 1.0, self._stop_again, work)

    def _time_out(self, work: Work) -> None:
        work.timer = None
        self._stop(work, "timeout")

    def _look_at(self, work: Work) -> None:
        """Stop what has been silent for too long; else look again when it would have been."""
        work.stall_timer = None
        limit = work.stalls_after or 0.0
        silent = boottime() - work.active_at
        if work.paused or silent < limit:
            wait = limit if work.paused else limit - silent
            work.stall_timer = self._timers.after(wait, self._look_at, work)
        elif work.stopping is None:
            self._stop(work, "stalled")

    def _stop_again(self, work: Work) -> None:
        work.timer = None
        if work.handle is not None:
            log.warning("%s does not stop; cancelled again", work.name)
            work.handle.cancel()
            work.timer = self._timers.after(work.grace + 1.0, self._stop_again, work)
