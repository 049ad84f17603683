"""Explore: visit every world that the protocol can reach within its bounds, breadth first.

The first world that breaks a property ends it, with the shortest way there.
Next: tests/protocol/test_protocol.py
"""

from __future__ import annotations

from typing import NamedTuple

from tests.protocol.world import Broken, Protocol, World


class Explored(NamedTuple):
    worlds: int
    broken: str = ""  # the property that does not hold
    trace: tuple[str, ...] = ()  # the steps that lead there


def explore(protocol: Protocol, most: int = 10_000_000) -> Explored:
    first = protocol.first()
    came_from: dict[World, tuple[World, str] | None] = {first: None}
    layer = [first]
    while layer:
        following: list[World] = []
        for world in layer:
            try:
                for name, after in protocol.steps(world):
                    if after not in came_from:
                        came_from[after] = (world, name)
                        following.append(after)
            except Broken as broken:
                return Explored(len(came_from), str(broken), _way(came_from, world))
        assert len(came_from) <= most, f"over {most} worlds: tighter bounds are needed"
        layer = following
    return Explored(len(came_from))


def _way(came_from: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    steps: list[str] = []
    while (before := came_from[world]) is not None:
        world, name = before
        steps.append(name)
    return tuple(reversed(steps))
