"""Placement: which agents can run a task, and which of them takes the next one.

Jobs with equal requirements share a pool. Its row holds the labels by name, and under names that begin with "@"
how its tasks are placed.
Next: model/placement/strategies.py, then server/dispatch/placement.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.model.placement.strategies import DEFAULT_STRATEGY, STRATEGIES, Candidate
from mainspring.model.tasks.jobs import Definition, Placement

RESERVED = "@"  # no label begins with it
_ALMOST = 1e-9  # what sums of fractions may be off by
_MOST = 10**9  # tasks that are counted


class Requirements(Struct, frozen=True):
    """What the tasks of a pool ask of an agent."""

    labels: dict[str, str] = {}
    placement: Placement = Placement()

    @property
    def is_plain(self) -> bool:
        """Whether any agent with the labels and a free slot will do."""
        placement = self.placement
        return not (placement.needs or placement.prefer or placement.sticky or placement.broadcast)


def requirements_of(definition: Definition) -> Requirements:
    return Requirements(definition.requires, definition.placement)


def encode(requirements: Requirements) -> str:
    """As JSON, for the row of a pool."""
    placement = msgspec.to_builtins(requirements.placement)
    return msgspec.json.encode(
        requirements.labels | {RESERVED + name: value for name, value in placement.items()}
    ).decode()


def decode(text: str) -> Requirements:
    """Of the row of a pool; what a later version may have added to it is left out."""
    given: dict[str, Any] = msgspec.json.decode(text)
    placement = {name[1:]: value for name, value in given.items() if name.startswith(RESERVED)}
    labels = {name: value for name, value in given.items() if not name.startswith(RESERVED)}
    return Requirements(labels, msgspec.convert(placement, Placement))


def fits(requirements: Requirements, labels: Mapping[str, str], offers: Mapping[str, float]) -> bool:
    """True if an agent that has `labels` and offers `offers` can run what has `requirements`."""
    return all(labels.get(name) == value for name, value in requirements.labels.items()) and all(
        offers.get(name, 0.0) >= amount for name, amount in requirements.placement.needs.items()
    )


def copies(needs: Mapping[str, float], free: Mapping[str, float]) -> int:
    """How many tasks with these needs the free amounts allow; `needs` names at least one."""
    counts = ((free.get(name, 0.0) + _ALMOST) / amount for name, amount in needs.items())
    return int(
        min(max(min(counts), 0.0), _MOST)
    )  # bounded before it is an integer: a tiny amount goes infinitely often


def matches(prefer: Mapping[str, str], labels: Mapping[str, str]) -> int:
    """How many of the preferred labels an agent has."""
    return sum(labels.get(name) == value for name, value in prefer.items())


def arrange(requirements: Requirements, strategy: str, candidates: Sequence[Candidate], limit: int) -> list[int]:
    """The order in which tasks take sessions, for at most `limit` tasks; no session more often than it has room.

    One who takes them in turn may start over at the end of the list, as long as there are no more than `limit`.
    """
    if len(candidates) == 1:
        return [candidates[0].session]
    place = STRATEGIES.get(requirements.placement.strategy or strategy, STRATEGIES[DEFAULT_STRATEGY])
    prefer = requirements.placement.prefer
    if not prefer:
        return place(candidates, requirements.labels, requirements.placement.needs, limit)
    places: list[int] = []
    for count in range(len(prefer), -1, -1):
        group = [candidate for candidate in candidates if matches(prefer, candidate.labels) == count]
        places += place(group, requirements.labels, requirements.placement.needs, limit - len(places))
    return places
