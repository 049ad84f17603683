"""Placement: which agent takes the next task.

Next: server/dispatcher.py
"""

from __future__ import annotations

from collections.abc import Mapping


def fits(requirements: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """True if an agent with `labels` can run what has `requirements`."""
    return all(labels.get(name) == value for name, value in requirements.items())


def spread(room: Mapping[int, int], limit: int) -> list[int]:
    """Round robin over sessions with room, at most `limit` places: the order in which tasks take them."""
    if len(room) == 1:
        ((session, free),) = room.items()
        return [session] * min(free, limit)
    places: list[int] = []
    left = {session: free for session, free in room.items() if free > 0}
    while left and len(places) < limit:
        for session in list(left):
            places.append(session)
            left[session] -= 1
            if not left[session]:
                del left[session]
    return places[:limit]
