"""Lease: until when an agent may act, on its boot-time clock, which cannot be set.

Next: agent/agent.py
"""

from __future__ import annotations

from math import inf

MARGIN = 1 / 6  # of a lease, before its end: an agent that cannot renew begins to stop its attempts
KILL_MARGIN = 1 / 30  # of a lease, before its end: every attempt has ended


class Lease:
    """Pure: the caller passes the time in."""

    def __init__(self) -> None:
        self.length = 0.0  # seconds of a whole lease; zero while there is none
        self._until = 0.0
        self.kill_at = inf  # when the last process must have ended

    def renew(self, at: float, seconds: float) -> None:
        """It holds for `seconds` from `at`, when the request was sent. Responses may arrive out of order."""
        self.length = self.length or seconds
        self._until = max(self._until, at + seconds)
        self.kill_at = self._until - self.length * KILL_MARGIN

    def forget(self) -> None:
        self.length = self._until = 0.0
        self.kill_at = inf

    @property
    def renewed_at(self) -> float:
        """When the last renewal was asked for, or earlier."""
        return self._until - self.length

    def is_ending(self, now: float) -> bool:
        """Whether it is time to stop the attempts."""
        return bool(self.length) and now > self._until - self.length * MARGIN

    def has_expired(self, now: float) -> bool:
        """Whether no attempt may run any more."""
        return now > self.kill_at

    def grace(self, now: float) -> float:
        """Seconds that attempts may take to stop."""
        return max(0.0, (self.kill_at - now) / 2)
