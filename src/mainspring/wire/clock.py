"""Clock: follows another clock; the server's follows the database, the agent's follows its server.

Elapsed time comes from the boot-time clock, which cannot be set. A round trip proves bounds of the offset to the
followed clock, whatever share of it each way took: the clock was read after the request was sent and before the answer
came. All round trips narrow the bounds, whichever connection they came by; between them the bounds widen by what clocks
drift. A task must not start early, so `now` keeps to the lower bound.
Next: agent/connection/connection.py
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import isfinite
from typing import NamedTuple

SET = 1.0  # seconds: far more than a clock drifts between two measurements
FAR = 1e9  # seconds: no clock is wrong by more
DRIFT = 1e-4  # seconds per second by which two clocks may drift apart
AHEAD = 0.001  # seconds by which `now` may be ahead: where the bounds are close, their middle is the best guess

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds since a fixed instant; also counts while the machine sleeps."""
    return time.clock_gettime(_BOOT)


class Repeated(NamedTuple):
    """Instants that the followed clock may have shown twice, for it was set back."""

    start: float
    end: float


class Clock:
    """`now()` is seconds since 1970 on the followed clock, ahead of it by AHEAD at most.

    It is behind by less than the quickest round trip of late.
    """

    def __init__(self, offset: float | None = None, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall  # this machine's clock
        self.offset = wall() - boottime() if offset is None else offset  # until the first measurement
        self._low, self._high = float("-inf"), float("inf")  # of the offset, at the last measurement
        self._measured_at = float("-inf")  # boot time
        self._void_until = float("-inf")  # boot time: answers to earlier requests may be from before the clock was set
        self._set_at = float("-inf")  # when it was found set forward, in boot time
        self.steady_since = 0.0  # on the followed clock: when it was last found set forward
        self.repeated: deque[Repeated] = deque(maxlen=10)  # the last times that it was found set back
        self.on_change: Callable[[], None] = lambda: None  # the offset has changed

    def now(self) -> float:
        return time.clock_gettime(_BOOT) + self.offset

    def at(self, boot: float) -> float:
        """What `now` was or will be at this boot time, as far as is known now."""
        return boot + self.offset

    def reading(self) -> tuple[float, float]:
        """The middle of what the followed clock may show now, and how far it may be from that."""
        now = boottime()
        low, high = self._bounds(now)
        if not isfinite(high - low):
            return now + self.offset, 0.0
        return now + (low + high) / 2, (high - low) / 2

    def _bounds(self, at: float) -> tuple[float, float]:
        drifted = DRIFT * max(0.0, at - self._measured_at)
        return self._low - drifted, self._high + drifted

    @property
    def skew(self) -> float:
        """Seconds by which this machine's wall clock is ahead of the followed one."""
        return self._wall() - self.now()

    @property
    def steady_for(self) -> float:
        """Seconds since the followed clock was found set forward: leases that expired by that jump may still hold."""
        return boottime() - self._set_at

    def measured(self, sent: float, received: float, theirs: float, error: float = 0.0) -> None:
        """Between `sent` and `received` (boot time) the followed clock showed `theirs`, give or take `error`."""
        if sent < self._void_until or not (sent <= received and isfinite(theirs) and 0 <= error < FAR):
            return
        low, high = self._bounds(received)
        lowest, highest = theirs - error - received, theirs + error - sent
        if lowest > high or highest < low:  # the followed clock was set
            if lowest > high + SET:
                self._set_at, self.steady_since = boottime(), theirs
            if highest < low - SET / 2:
                self.repeated.append(Repeated(self._measured_at + lowest, received + high))
            self._low, self._high = lowest, highest
            self._void_until = received
        else:
            self._low, self._high = max(low, lowest), min(high, highest)
        self._measured_at = received
        offset = self._low + min(AHEAD, (self._high - self._low) / 2)
        if offset != self.offset:
            self.offset = offset
            self.on_change()
