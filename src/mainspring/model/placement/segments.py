"""Segments: a hundred slices of all schedules and tasks, shared out evenly among the servers, moving as few as can be.

Pure: (who owns what, who is there) → what changes hands.
Next: server/cluster/coordinator.py
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

SEGMENTS = 100

Owner = TypeVar("Owner", bound=Hashable)


def assign(owners: Mapping[int, Owner | None], servers: Sequence[Owner]) -> dict[int, Owner]:
    """The new owners of the segments that must move, so that shares differ by one at most.

    What nobody of `servers` owns goes first to who has least; only what is left of a difference is taken from those
    who have more. The same input gives the same answer: two leaders that see the same decide the same.
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
    # Who has most keeps the larger shares: so the fewest move.
    ranked = sorted(servers, key=lambda server: -len(held[server]))
    share = {server: smallest + (rank < larger) for rank, server in enumerate(ranked)}
    for server in ranked:
        free += held[server][share[server] :]
    moves: dict[int, Owner] = {}
    for server in reversed(ranked):
        for _ in range(share[server] - len(held[server])):
            moves[free.pop(0)] = server
    return moves
