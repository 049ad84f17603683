"""Strategies: which of the agents that fit and have room takes the next task.

Each returns the order in which tasks take sessions, for at most `limit` tasks, and no session more often than it has
room.
Next: server/dispatch/placement.py
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

DEFAULT_STRATEGY = "round_robin"


class Candidate(NamedTuple):
    """An agent that fits and has room."""

    session: int
    name: str
    free: int  # tasks that it can take now
    busy: int  # tasks that it holds
    slots: int
    cpu: float  # in use, 0 to 1
    memory: float
    labels: Mapping[str, str]
    offers: Mapping[str, float]


Strategy = Callable[[Sequence[Candidate], Mapping[str, str], Mapping[str, float], int], list[int]]


def round_robin(
    candidates: Sequence[Candidate], _requires: Mapping[str, str], _needs: Mapping[str, float], limit: int
) -> list[int]:
    """One task to each candidate in turn, in their order."""
    places: list[int] = []
    left = {candidate.session: candidate.free for candidate in candidates if candidate.free > 0}
    while left and len(places) < limit:
        for session in list(left):
            places.append(session)
            left[session] -= 1
            if not left[session]:
                del left[session]
    return places[:limit]


def least_tasks(
    candidates: Sequence[Candidate], _requires: Mapping[str, str], _needs: Mapping[str, float], limit: int
) -> list[int]:
    """Each task to the agent that holds the fewest."""
    return _lowest_first(candidates, limit, lambda candidate: (float(candidate.busy), 1.0))


def resources(
    candidates: Sequence[Candidate], _requires: Mapping[str, str], _needs: Mapping[str, float], limit: int
) -> list[int]:
    """Each task to the agent whose scarcest resource, of CPU, memory and slots, is freest.

    The CPU and memory of a task are unknown: each task counts as its share of the slots.
    """
    return _lowest_first(candidates, limit, lambda c: (max(c.cpu, c.memory, c.busy / c.slots), 1.0 / c.slots))


def _lowest_first(
    candidates: Sequence[Candidate], limit: int, load: Callable[[Candidate], tuple[float, float]]
) -> list[int]:
    """Each task to the lowest load; `load` gives the current load and what one more task adds."""
    heap = [(*load(candidate), number) for number, candidate in enumerate(candidates) if candidate.free > 0]
    left = [candidate.free for candidate in candidates]
    heapq.heapify(heap)
    places: list[int] = []
    while heap and len(places) < limit:
        present, more, number = heap[0]
        places.append(candidates[number].session)
        left[number] -= 1
        if left[number]:
            heapq.heapreplace(heap, (present + more, more, number))
        else:
            heapq.heappop(heap)
    return places


def capability(
    candidates: Sequence[Candidate], requires: Mapping[str, str], needs: Mapping[str, float], limit: int
) -> list[int]:
    """Fill the agent that fits most tightly first: special agents stay free for special jobs."""

    def spare(candidate: Candidate) -> tuple[int, float]:
        kinds = len(candidate.labels.keys() - requires.keys()) + len(candidate.offers.keys() - needs.keys())
        return kinds, sum(candidate.offers.get(name, 0.0) - amount for name, amount in needs.items())

    places: list[int] = []
    for candidate in sorted(candidates, key=spare):
        places += [candidate.session] * min(candidate.free, limit - len(places))
    return places


STRATEGIES: dict[str, Strategy] = {
    "round_robin": round_robin,
    "least_tasks": least_tasks,
    "resources": resources,
    "capability": capability,
}
