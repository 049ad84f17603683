"""Holds: nothing new of a held job is dispatched, or nothing at all; what runs continues.

A hold that was released is not over at once: what waited is let go bit by bit, so that it does not start as a herd.
Next: store/cluster/holds.py
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

SPREAD = 60.0  # seconds over which what waits is let go after a release
LEAST_RATE = 1  # tasks of a job a second: a few that wait do not take the whole minute
LEAST_RATE_OF_ALL = 10  # the same where everything was held, which paces what is submitted meanwhile as well


class Hold(Struct, frozen=True):
    job: int | None  # None: everything
    held_at: datetime
    held_by: str
    note: str | None
    skips: bool  # plan times are decided as paused meanwhile
    released_at: datetime | None = None  # None: it is in force
    spread_until: datetime | None = None
    waiting: int | None = None  # tasks, when it was released

    @property
    def is_in_force(self) -> bool:
        return self.released_at is None


class Holds(Struct, frozen=True):
    """All of them."""

    everything: Hold | None = None
    jobs: dict[int, Hold] = {}

    @property
    def stops_all(self) -> bool:
        return self.everything is not None and self.everything.is_in_force

    @property
    def held_jobs(self) -> list[int]:
        return [id for id, hold in self.jobs.items() if hold.is_in_force]

    def stops(self, job: int) -> bool:
        """Whether nothing of this job may be dispatched."""
        hold = self.jobs.get(job)
        return self.stops_all or (hold is not None and hold.is_in_force)


NO_HOLDS = Holds()


def as_holds(found: list[Hold]) -> Holds:
    if not found:
        return NO_HOLDS
    everything = next((hold for hold in found if hold.job is None), None)
    return Holds(everything, {hold.job: hold for hold in found if hold.job is not None})


class Spread:
    """How many tasks may be claimed by now, of those that waited when the hold of everything was released.

    `began` is when this process learned of the release: its own clock counts, and a burst at the start is small.
    """

    def __init__(self, waiting: int, began: float, seconds: float = SPREAD) -> None:
        self._left = float(waiting)
        self._rate = max(waiting / seconds, LEAST_RATE_OF_ALL)
        self._ends = began + seconds
        self._last = began
        self._budget = max(1.0, self._rate / 10)

    def allows(self, now: float) -> int | None:
        """How many at this moment; None: any number, for it is over."""
        if now >= self._ends or self._left <= 0:
            return None
        self._budget = min(self._rate, self._budget + (now - self._last) * self._rate)
        self._last = now
        return int(self._budget)

    def claimed(self, tasks: int) -> None:
        self._left -= tasks
        self._budget -= tasks
