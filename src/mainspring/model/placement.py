"""Placement: which agent takes the next task.

Next: server/dispatcher.py
"""

from __future__ import annotations

from collections.abc import Mapping


def fits(requirements: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """True if an agent with `labels` can run what has `requirements`."""
    return all(labels.get(name) == value for name, value in requirements.items())


def spread(room: Mapping[int, int], limit: int) -> list[int]:
    """The order in which tasks take sessions: round robin over those with room, for at most `limit` tasks.

    One who takes them in turn may start over at the end of the list, as long as there are no more than `limit`.
    """
    if len(room) == 1:
        return list(room)
    places: list[int] = []
    left = {session: free for session, free in room.items() if free > 0}
    while left and len(places) < limit:
        for session in list(left):
            places.append(session)
            left[session] -= 1
            if not left[session]:
                del left[session]
    return places[:limit]
