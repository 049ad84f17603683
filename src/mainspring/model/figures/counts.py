"""Counts: what was counted of a group of attempts, up to one moment or between two. They add up.

Next: server/recording/figures.py
"""

from __future__ import annotations

from operator import add, sub
from typing import NamedTuple

Histogram = tuple[int, ...] | None  # None: no value; see model/figures/buckets.py


class Counts(NamedTuple):
    """Sums and maxima are seconds. `planned` and `due` are lateness: of what a schedule planned, and of the rest."""

    attempts: int = 0
    duration_sum: float = 0.0
    planned_sum: float = 0.0
    due_sum: float = 0.0
    duration_max: float = 0.0
    planned_max: float = 0.0
    due_max: float = 0.0
    durations: Histogram = None
    planned: Histogram = None
    due: Histogram = None

    def plus(self, other: Counts) -> Counts:
        return Counts(
            self.attempts + other.attempts,
            self.duration_sum + other.duration_sum,
            self.planned_sum + other.planned_sum,
            self.due_sum + other.due_sum,
            max(self.duration_max, other.duration_max),
            max(self.planned_max, other.planned_max),
            max(self.due_max, other.due_max),
            _plus(self.durations, other.durations),
            _plus(self.planned, other.planned),
            _plus(self.due, other.due),
        )

    def since(self, before: Counts) -> Counts:
        """What was added after `before`; with the maxima of now."""
        return Counts(
            self.attempts - before.attempts,
            self.duration_sum - before.duration_sum,
            self.planned_sum - before.planned_sum,
            self.due_sum - before.due_sum,
            self.duration_max,
            self.planned_max,
            self.due_max,
            _minus(self.durations, before.durations),
            _minus(self.planned, before.planned),
            _minus(self.due, before.due),
        )


NOTHING = Counts()


def _plus(one: Histogram, other: Histogram) -> Histogram:
    return tuple(map(add, one, other)) if one and other else one or other


def _minus(now: Histogram, before: Histogram) -> Histogram:
    return tuple(map(sub, now, before)) if now and before else now
