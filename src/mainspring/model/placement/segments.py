"""Segments: a hundred slices of all schedules and tasks, balanced over the servers with the fewest moves.

Pure: (the owner of each segment, the active servers) → the segments that move.
Next: server/cluster/coordinator.py
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

SEGMENTS = 100

Owner = TypeVar("Owner", bound=Hashable)


def assign(owners: Mapping[int, Owner | None], servers: Sequence[Owner]) -> dict[int, Owner]:
    """The new owners of the segments that must move, so that shares differ by one at most.

    Segments without an owner among `servers` go first, to the servers with the fewest; only then do servers with more
    than their share give some up. Deterministic: two leaders that see the same decide the same.
    """
    if not servers:
        return {}
    held: dict[Owner, list[int]] = {server: [] for server in servers}
    free = []
    for segment, owner in sorted(owners.items()):
        if owner in held:
            held[owner].append(segment)
        else:
            free.append(segment)
    smallest, larger = divmod(len(owners), len(servers))
    # The servers with the most keep the larger shares: so the fewest move.
    ranked = sorted(servers, key=lambda server: -len(held[server]))
    share = {server: smallest + (rank < larger) for rank, server in enumerate(ranked)}
    for server in ranked:
        free += held[server][share[server] :]
    moves: dict[int, Owner] = {}
    for server in reversed(ranked):
        for _ in range(share[server] - len(held[server])):
            moves[free.pop(0)] = server
    return moves


def ranges(numbers: Iterable[int]) -> str:
    """Segments as people read them: 0-33, 67."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
