"""Placement: the agents that can run a task, and the order in which they take tasks.

Jobs with equal requirements share a pool. Its row holds the labels by name, and the placement under names that begin
with "@".
Next: model/placement/strategies.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.model.placement.strategies import DEFAULT_STRATEGY, STRATEGIES, Candidate
from mainspring.model.tasks.jobs import Definition, Placement

RESERVED = "@"  # no label begins with it
_ROUNDING = 1e-9  # error of a sum of fractions
_MOST = 10**9  # tasks


class Requirements(Struct, frozen=True):
    """What the tasks of a pool ask of an agent."""

    labels: dict[str, str] = {}
    placement: Placement = Placement()

    @property
    def is_plain(self) -> bool:
        """Whether any agent with the labels and a free slot fits."""
        placement = self.placement
        return not (placement.needs or placement.prefer or placement.sticky or placement.broadcast)


def requirements_of(definition: Definition) -> Requirements:
    return Requirements(definition.requires, definition.placement)


def encode(requirements: Requirements) -> str:
    """The requirements as JSON, for the row of a pool."""
    placement = msgspec.to_builtins(requirements.placement)
    return msgspec.json.encode(
        requirements.labels | {RESERVED + name: value for name, value in placement.items()}
    ).decode()


def decode(text: str) -> Requirements:
    """The requirements in the row of a pool. Fields that a later version added are ignored."""
    given: dict[str, Any] = msgspec.json.decode(text)
    placement = {name[1:]: value for name, value in given.items() if name.startswith(RESERVED)}
    labels = {name: value for name, value in given.items() if not name.startswith(RESERVED)}
    return Requirements(labels, msgspec.convert(placement, Placement))


def fits(requirements: Requirements, labels: Mapping[str, str], offers: Mapping[str, float]) -> bool:
    """Whether an agent with these labels and offers can run tasks with these requirements."""
    return all(labels.get(name) == value for name, value in requirements.labels.items()) and all(
        offers.get(name, 0.0) >= amount for name, amount in requirements.placement.needs.items()
    )


def copies(needs: Mapping[str, float], free: Mapping[str, float]) -> int:
    """How many tasks with these needs the free amounts allow; `needs` names at least one."""
    count = min((free.get(name, 0.0) + _ROUNDING) / amount for name, amount in needs.items())
    return int(min(max(count, 0.0), _MOST))  # bounded first: for a tiny amount the count may be infinite


def matches(prefer: Mapping[str, str], labels: Mapping[str, str]) -> int:
    """How many of the preferred labels an agent has."""
    return sum(labels.get(name) == value for name, value in prefer.items())


def arrange(requirements: Requirements, strategy: str, candidates: Sequence[Candidate], limit: int) -> list[int]:
    """The order in which tasks take sessions, for at most `limit` tasks; no session more often than it has room.

    Callers may cycle through the list, as long as they place no more than `limit` tasks.
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
