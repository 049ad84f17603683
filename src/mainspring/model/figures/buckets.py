"""Buckets: histograms as lists of counts, the same in memory, in mainspring.figure and in the metrics.

A histogram has one count for each bound, of the values up to and including it and above the bound before, and a last
one for all that is greater. Histograms add up: over jobs, servers and minutes.
Next: server/recording/tallies.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

LATENESS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # seconds  # fmt: skip
DURATION = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0,
)  # seconds  # fmt: skip


def empty(bounds: Sequence[float]) -> list[int]:
    return [0] * (len(bounds) + 1)


def added(histograms: Iterable[Sequence[int] | None], bounds: Sequence[float]) -> list[int]:
    """The sum of histograms; None is one without values."""
    given = [histogram for histogram in histograms if histogram is not None]
    return [sum(counts) for counts in zip(*given, strict=True)] if given else empty(bounds)


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float, most: float) -> float | None:
    """The value below which this share of the values lies; None if there are none. `most` is the greatest value.

    Inside a bucket the values count as evenly spread, so the answer is off by at most the width of its bucket.
    """
    total = sum(counts)
    if total == 0:
        return None
    rank = share * total
    for number, below in enumerate(accumulate(counts)):
        if below >= rank and counts[number]:
            low = bounds[number - 1] if number else 0.0
            high = min(bounds[number], most) if number < len(bounds) else most
            inside = (rank - (below - counts[number])) / counts[number]
            return min(most, low + max(0.0, high - low) * inside)
    return most
