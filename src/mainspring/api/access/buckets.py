"""Buckets: how many requests each caller may still make, refilled evenly (token buckets, in memory)."""

from __future__ import annotations

import math
from time import monotonic

from mainspring.errors import RateLimited

MOST = 20_000  # callers that are remembered


class Buckets:
    """`rate` a second, and `burst` at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left: dict[str, tuple[float, float]] = {}  # who → what was left, and when

    def take(self, who: str, rate: float | None = None, burst: float | None = None) -> float:
        """Take one; returns 0, or the seconds until there is one again."""
        rate, burst = rate or self._rate, burst or self._burst
        now = monotonic()
        left, at = self._left.get(who, (burst, now))
        left = min(burst, left + (now - at) * rate)
        if len(self._left) >= MOST and who not in self._left:
            self._left.clear()  # all start anew: better than to remember without end
        if left < 1:
            self._left[who] = (left, now)
            return (1 - left) / rate
        self._left[who] = (left - 1, now)
        return 0.0

    def check(self, who: str, what: str) -> None:
        """RateLimited if nothing is left; takes nothing."""
        left, at = self._left.get(who, (self._burst, monotonic()))
        left += (monotonic() - at) * self._rate
        if left < 1:
            raise limited(what, (1 - left) / self._rate)


def limited(what: str, wait: float) -> RateLimited:
    seconds = max(1, math.ceil(wait))
    return RateLimited(f"{what}; try again in {seconds} s", retry_after=seconds)
