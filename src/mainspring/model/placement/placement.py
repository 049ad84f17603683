"""Placement: the agents that can run a task, and the order in which they take tasks.

Jobs with equal requirements share a pool. Its row holds the labels by name, and the placement under names that begin
with "@".
Next: server/dispatch/placement.py
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from mainspring.model.tasks.jobs import Definition, Placement, Python

DEFAULT_STRATEGY = "round_robin"
RESERVED = "@"  # no label begins with it
_ROUNDING = 1e-9  # error of a sum of fractions
_MOST = 10**9  # tasks


class Requirements(Struct, frozen=True):
    """What the tasks of a pool ask of an agent."""

    labels: dict[str, str] = {}
    placement: Placement = Placement()
    chunk: int = 1  # tasks that share a slot of an agent

    def slots_for(self, tasks: int) -> int:
        """How many slots of an agent so many tasks take."""
        return -(-tasks // self.chunk)

    @property
    def is_plain(self) -> bool:
        """Whether any agent with the labels and a free slot fits."""
        placement = self.placement
        return not (placement.needs or placement.prefer or placement.sticky or placement.broadcast)


def requirements_of(definition: Definition) -> Requirements:
    run = definition.run
    chunk = run.chunk if isinstance(run, Python) else None
    return Requirements(definition.requires, definition.placement, chunk or 1)


def encode(requirements: Requirements) -> str:
    """The requirements as JSON, for the row of a pool."""
    placement = msgspec.to_builtins(requirements.placement)
    if requirements.chunk > 1:
        placement["chunk"] = requirements.chunk
    return msgspec.json.encode(
        requirements.labels | {RESERVED + name: value for name, value in placement.items()}
    ).decode()


def decode(text: str) -> Requirements:
    """The requirements in the row of a pool. Fields that a later version added are ignored."""
    given: dict[str, Any] = msgspec.json.decode(text)
    placement = {name[1:]: value for name, value in given.items() if name.startswith(RESERVED)}
    labels = {name: value for name, value in given.items() if not name.startswith(RESERVED)}
    return Requirements(labels, msgspec.convert(placement, Placement), int(placement.get("chunk", 1)))


def fits(requirements: Requirements, labels: Mapping[str, str], offers: Mapping[str, float]) -> bool:
    """Whether an agent with these labels and offers can run tasks with these requirements."""
    for name, value in requirements.labels.items():  # a plain loop: every claim asks this of every session
        if labels.get(name) != value:
            return False
    needs = requirements.placement.needs
    return not needs or all(offers.get(name, 0.0) >= amount for name, amount in needs.items())


def copies(needs: Mapping[str, float], free: Mapping[str, float]) -> int:
    """How many tasks with these needs the free amounts allow; `needs` names at least one."""
    count = min((free.get(name, 0.0) + _ROUNDING) / amount for name, amount in needs.items())
    return int(min(max(count, 0.0), _MOST))  # bounded first: for a tiny amount the count may be infinite


def matches(prefer: Mapping[str, str], labels: Mapping[str, str]) -> int:
    """How many of the preferred labels an agent has."""
    return sum(labels.get(name) == value for name, value in prefer.items())


# ── strategies: which of the agents that fit and have room takes the next task ──────────────────


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


# The order in which tasks take sessions, for at most so many tasks, and no session more often than it has room.
Strategy = Callable[[Sequence[Candidate], Requirements, int], list[int]]


def round_robin(candidates: Sequence[Candidate], _requirements: Requirements, limit: int) -> list[int]:
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


def least_tasks(candidates: Sequence[Candidate], _requirements: Requirements, limit: int) -> list[int]:
    """Each task to the agent that holds the fewest."""
    return _lowest_first(candidates, limit, lambda candidate: (float(candidate.busy), 1.0))


def resources(candidates: Sequence[Candidate], _requirements: Requirements, limit: int) -> list[int]:
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


def capability(candidates: Sequence[Candidate], requirements: Requirements, limit: int) -> list[int]:
    """Fill the agent that fits most tightly first: special agents stay free for special jobs."""
    requires, needs = requirements.labels, requirements.placement.needs

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


def arrange(requirements: Requirements, strategy: str, candidates: Sequence[Candidate], limit: int) -> list[int]:
    """The order in which tasks take sessions: those with the most preferred labels first, then by the strategy.

    Callers may cycle through the list, as long as they place no more than `limit` tasks.
    """
    if len(candidates) == 1:
        return [candidates[0].session]
    place = STRATEGIES.get(requirements.placement.strategy or strategy, STRATEGIES[DEFAULT_STRATEGY])
    prefer = requirements.placement.prefer
    if not prefer:
        return place(candidates, requirements, limit)
    places: list[int] = []
    for count in range(len(prefer), -1, -1):
        group = [candidate for candidate in candidates if matches(prefer, candidate.labels) == count]
        places += place(group, requirements, limit - len(places))
    return places
