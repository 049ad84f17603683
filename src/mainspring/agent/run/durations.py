"""Durations: stop an attempt that runs, or is silent, for too long; cancel it again if it does not stop.

All of it is on the boot-time clock, which cannot be set. Paused time does not count.
Next: agent/timing/timers.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mainspring.agent.attempt import Attempt, StopReason
from mainspring.agent.timing.timers import Timers
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")


class Durations:
    """`stop` is called with an attempt whose time is up, and the reason."""

    def __init__(self, timers: Timers, stop: Callable[[Attempt, StopReason], None]) -> None:
        self._timers = timers
        self._stop = stop

    def begin(self, attempt: Attempt, elapsed: float) -> None:
        """Watch an attempt that has run for so many seconds."""
        if (timeout := attempt.timeout) is not None:
            attempt.timer = self._timers.after(timeout - elapsed, self._time_out, attempt)
        if (stalls_after := attempt.stalls_after) is not None:
            attempt.active_at = boottime()
            attempt.stall_timer = self._timers.after(stalls_after, self._look_at, attempt)

    def end(self, attempt: Attempt) -> None:
        if attempt.timer is not None:
            self._timers.disarm(attempt.timer)
        if attempt.stall_timer is not None:
            self._timers.disarm(attempt.stall_timer)
            attempt.stall_timer = None

    def pause(self, attempt: Attempt, *, resume: bool) -> None:
        """The timeout of an attempt that is paused now, or resumed."""
        attempt.paused = not resume
        if resume and attempt.timeout_left is not None:
            attempt.timer = self._timers.after(max(attempt.timeout_left, 0.0), self._time_out, attempt)
            attempt.timeout_left = None
        elif not resume and attempt.timer is not None:
            attempt.timeout_left = self._timers.left(attempt.timer)
            self._timers.disarm(attempt.timer)
            attempt.timer = None

    def stopped(self, attempt: Attempt) -> None:
        """It was asked to stop: its grace takes the place of its timeout."""
        attempt.timeout_left = None
        if attempt.timer is not None:
            self._timers.disarm(attempt.timer)
        attempt.timer = self._timers.after(attempt.grace + 1.0, self._stop_again, attempt)

    def _time_out(self, attempt: Attempt) -> None:
        attempt.timer = None
        self._stop(attempt, "timeout")

    def _look_at(self, attempt: Attempt) -> None:
        """Stop an attempt that has been silent for too long; else look again when it would have been."""
        attempt.stall_timer = None
        limit = attempt.stalls_after or 0.0
        silent = boottime() - attempt.active_at
        if attempt.paused or silent < limit:
            wait = limit if attempt.paused else limit - silent
            attempt.stall_timer = self._timers.after(wait, self._look_at, attempt)
        elif attempt.stopping is None:
            self._stop(attempt, "stalled")

    def _stop_again(self, attempt: Attempt) -> None:
        attempt.timer = None
        if attempt.handle is not None:
            log.warning("task %d does not stop; cancelled again", attempt.armed.task)
            attempt.handle.cancel()
            attempt.timer = self._timers.after(attempt.grace + 1.0, self._stop_again, attempt)
