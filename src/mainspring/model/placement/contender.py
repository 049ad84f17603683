"""Contender: a pool whose tasks compete with those of others for the room of a server's agents.

Next: server/dispatch/placement.py
"""

from __future__ import annotations

from typing import NamedTuple

from mainspring.model.placement.placement import Requirements
from mainspring.model.tasks.claim_floors import Floor, Floors

BATCH = 2000  # tasks in one claim
AHEAD_BATCH = 250  # tasks in one claim ahead of time: arming them must not hold up what fires meanwhile

Reserved = dict[int, set[str]]  # by session, amounts that wait for a more important task


class Contender(NamedTuple):
    """A pool that agents here have room for."""

    pool: int
    requirements: Requirements
    room: dict[int, int]  # free places by session
    start: list[Floor]  # where its claim starts
    ahead: float  # seconds
    floors: Floors | None = None  # None: tasks that are not due yet
    gathers: bool = False  # its claim waits for more room
    reserves_on: int | None = None  # it has no room: all agents lack amounts that it needs, this session the least
    most: int = BATCH

    @property
    def limit(self) -> int:
        if self.reserves_on is not None:
            return 1
        return min(sum(self.room.values()), AHEAD_BATCH if self.floors is None else self.most)
