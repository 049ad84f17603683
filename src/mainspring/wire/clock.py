"""Clock: follows another clock; the server's follows the database, the agent's follows its server.

Elapsed time comes from the boot-time clock, which cannot be set. The offset to the followed clock is measured by round
trips; the fastest one is the most accurate.
Next: agent/connection/connection.py
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

SET = 1.0  # seconds: far more than a clock drifts between two measurements

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds since a fixed instant; also counts while the machine sleeps."""
    return time.clock_gettime(_BOOT)


class Clock:
    """`now()` is seconds since 1970 on the followed clock."""

    def __init__(self, offset: float | None = None, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall  # this machine's clock
        self.offset = wall() - boottime() if offset is None else offset  # until the first measurement
        self.round_trip = float("inf")
        self._samples: deque[tuple[float, float]] = deque(maxlen=8)  # (round trip, offset)
        self._void_until = float("-inf")  # boot time: measurements sent before do not count
        self._set_at = float("-inf")  # when it was found set forward, in boot time
        self.steady_since = 0.0  # on the followed clock: when it was last found set forward

    def now(self) -> float:
        return time.clock_gettime(_BOOT) + self.offset

    @property
    def skew(self) -> float:
        """Seconds by which this machine's wall clock is ahead of the followed one."""
        return self._wall() - self.now()

    @property
    def steady_for(self) -> float:
        """Seconds since the followed clock was found set forward: leases that expired by that jump may still hold."""
        return boottime() - self._set_at

    def copy(self, other: Clock) -> None:
        """Copy the offset of another clock of this process. Measurements sent before this are void."""
        self.offset = other.offset
        self._samples.clear()
        self._void_until = boottime()

    def measured(self, sent: float, received: float, theirs: float) -> bool:
        """A round trip from `sent` to `received` (boot time) read `theirs`. True if the offset changed."""
        if sent < self._void_until:
            return False
        round_trip = received - sent
        offset = theirs - (sent + received) / 2
        if abs(offset - self.offset) > round_trip + 0.05:
            if self._samples and offset - self.offset > round_trip + SET:
                self._set_at, self.steady_since = boottime(), theirs
            self._samples.clear()  # the followed clock was set, or this is the first measurement
        self._samples.append((round_trip, offset))
        self.round_trip, best = min(self._samples)
        changed = best != self.offset
        self.offset = best
        return changed
