"""Histogram: counts in buckets. An addition costs one bisection; whatever renders it is called by a scrape alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# Seconds.
SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
COARSE = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5)  # where there are many


class Histogram:
    """`bounds` are the upper ends of all buckets but the last, inclusive; `counts` has one more."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float], counts: Sequence[int] | None = None, sum: float = 0.0) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1) if counts is None else list(counts)
        self.sum = sum

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add_since(self, instants: Sequence[float], now: float) -> None:
        """Add the time from each of these to `now`, 0 for those after it. They are sorted, the earliest first."""
        counts, bounds = self.counts, self.bounds
        past = bisect_left(instants, now)
        self.sum += past * now - sum(instants[:past])
        counts[0] += len(instants) - past
        above = past  # those that lie before all the bounds so far
        for number, bound in enumerate(bounds):
            rest = bisect_left(instants, now - bound, 0, above)
            counts[number] += above - rest
            above = rest
            if not above:
                return
        counts[-1] += above

    @property
    def count(self) -> int:
        return sum(self.counts)
