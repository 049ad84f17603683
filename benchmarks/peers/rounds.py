"""Rounds: the order of the turns, the medians over rounds, and ratios. Pure.

Next: benchmarks/peers/table.py
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


def orders(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """The names in another order each round, so that none is always first, or always behind the same one.

    Each round begins further along, and every second one goes backwards.
    """
    for number in range(rounds):
        shift = number * len(names) // rounds
        turned = [*names[shift:], *names[:shift]]
        yield turned[::-1] if number % 2 else turned


@dataclass
class Results:
    """What the turns of one part found, by peer."""

    figures: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # the last of each
    probes: list[dict[str, float]] = field(default_factory=list)

    def medians(self) -> dict[str, dict[str, float]]:
        """By peer the median of each figure; a peer that failed in every round has none."""
        return {name: medians(found) for name, found in self.figures.items()}


def medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(figures[key] for figures in found if key in figures) for key in found[0]}


def ratio(figure: str, ours: float, theirs: float) -> float | None:
    """How many times better ours is: of rates ours to theirs, of times theirs to ours."""
    above, below = (ours, theirs) if figure.endswith("_per_s") else (theirs, ours)
    return round(above / below, 2) if below > 0 and above > 0 else None
