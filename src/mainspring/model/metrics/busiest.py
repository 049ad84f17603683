"""Busiest: a label of its own for each of the busiest jobs, one for all others; no counter ever decreases.

A job may come among the busiest, and leave them. Its own counter then continues from where it was, and that of the
others takes what the job adds while it is one of them: each addition is counted under one label, once.
Next: server/metrics.py
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from mainspring.model.metrics.metrics import JOBS, OTHER

Numbers = list[float]  # that only grow


class Busiest:
    """The numbers of each job and of a second label, as they were told last. The first of them says how busy it is."""

    def __init__(self, most: int = JOBS) -> None:
        self.most = most  # may change
        self._seen: dict[tuple[str, str], Numbers] = {}
        self._told: dict[tuple[str, str], Numbers] = {}
        self._named: set[str] = set()

    def tell(self, counted: Mapping[tuple[str, str], Numbers]) -> dict[tuple[str, str], Numbers]:
        """What a scrape tells of all that was counted since the start, by job and second label."""
        self._choose(counted)
        for (job, second), numbers in counted.items():
            before = self._seen.get((job, second))
            if numbers == before:
                continue
            label = job if job in self._named else OTHER, second
            told = self._told.get(label)
            if before is not None:
                numbers_since = [now - then for now, then in zip(numbers, before, strict=True)]
            else:
                numbers_since = numbers
            if told is not None:
                self._told[label] = [number + more for number, more in zip(told, numbers_since, strict=True)]
            else:
                self._told[label] = numbers_since
            self._seen[job, second] = numbers
        return {label: told for label, told in self._told.items() if label[0] in self._named or label[0] == OTHER}

    def _choose(self, counted: Mapping[tuple[str, str], Numbers]) -> None:
        totals: dict[str, float] = {}
        for (job, _), numbers in counted.items():
            totals[job] = totals.get(job, 0.0) + numbers[0]
        if len(totals) <= self.most:
            self._named = set(totals)
        else:
            self._named = set(heapq.nlargest(self.most, totals, key=lambda job: (totals[job], job)))
