"""Lease: until when an agent may act, on its own boot-time clock, which no one can set.

Next: agent/agent.py
"""

from __future__ import annotations

MARGIN = 1 / 6  # of a lease: what cannot be renewed is stopped so long before its end
LAST = 1 / 30  # of a lease: nothing runs any more so long before its end


class Lease:
    """Pure: the caller gives the time."""

    def __init__(self) -> None:
        self._length = 0.0
        self._until = 0.0

    def renew(self, at: float, seconds: float) -> None:
        """It holds for `seconds` from `at`, which was before the server said so. Answers may come out of turn."""
        self._length = self._length or seconds
        self._until = max(self._until, at + seconds)

    def forget(self) -> None:
        self._length = self._until = 0.0

    @property
    def length(self) -> float:
        """Of a fresh one; zero without any."""
        return self._length

    @property
    def kill_at(self) -> float:
        """When the last process must be gone."""
        return self._until - self._length * LAST

    def is_ending(self, now: float) -> bool:
        """Whether it is time to stop what runs."""
        return bool(self._length) and now > self._until - self._length * MARGIN

    def is_over(self, now: float) -> bool:
        """Whether nothing may run any more."""
        return bool(self._length) and now > self.kill_at

    def grace(self, now: float) -> float:
        """Seconds that what runs may take to stop."""
        return max(0.0, (self.kill_at - now) / 2)
