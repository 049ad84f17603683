"""Claim floors: where a claim starts its scan, so that it never reads the dead entries of earlier claims.

Each priority level has a tip (the last position claimed) and a mark (the tip of a moment ago). A claim in full flow
starts at the tip. One that may be the first after a pause starts at the mark, because a transaction that began before
the tip may have committed after it. A task below the mark is a straggler: a separate, slower scan finds it and lowers
the floor.
Next: store/tasks/claims.py
"""

from __future__ import annotations

from typing import NamedTuple

from mainspring.model.tasks.jobs import PRIORITY_LEVELS
from mainspring.model.tasks.pools import PARKED

Floor = tuple[float, int]  # (run_at, id)

BOTTOM: Floor = (0.0, 0)
LATEST = 7_258_118_400.0  # the year 2200, after which no task is due
_LEVEL_INDEX = {priority: index for index, priority in enumerate(PRIORITY_LEVELS)}


class Released(NamedTuple):
    """A task that became pending. It may lie below the floor, so the dispatcher lowers the floor to it."""

    pool: int
    priority: int
    position: Floor


def parse_released(text: str) -> Released | None:
    """The position in a hint, `POOL PRIORITY AT ID`. None if it has none: anyone may send one, of whatever form."""
    try:
        pool, priority, at, id = text.split()
        released = Released(int(pool), int(priority), (float(at), int(id)))
    except ValueError:
        return None
    is_task = 0 <= released.position[0] < LATEST and 0 <= released.position[1] < 2**63
    return released if is_task and 0 < released.pool < PARKED and released.priority in _LEVEL_INDEX else None


class Floors:
    def __init__(self, lag: float = 0.25) -> None:
        self._lag = lag
        self._marked_at = float("-inf")
        self.tip: list[Floor] = [BOTTOM] * len(PRIORITY_LEVELS)
        self.mark: list[Floor] = [BOTTOM] * len(PRIORITY_LEVELS)
        self._next: list[Floor] = list(self.tip)
        self._lowered: set[int] = set()  # levels, since the last claim began

    def start(self, now: float, *, flowing: bool) -> list[Floor]:
        """The lower bounds for a claim at `now`, one per level."""
        self._lowered.clear()
        if now - self._marked_at >= self._lag:
            self.mark, self._next = self._next, list(self.tip)
            self._marked_at = now
        return self.tip if flowing else self.mark

    def claimed(self, priority: int, position: Floor) -> None:
        """A claim took the task at `position`. A floor that was lowered since the claim began stays low."""
        level = _LEVEL_INDEX[priority]
        if position > self.tip[level] and level not in self._lowered:
            self.tip[level] = position

    def lower(self, priority: int, position: Floor) -> None:
        """A task became pending at `position`, or was found there."""
        level = _LEVEL_INDEX[priority]
        self._lowered.add(level)
        for floors in (self.tip, self.mark, self._next):
            floors[level] = min(floors[level], position)
