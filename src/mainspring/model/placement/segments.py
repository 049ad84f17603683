"""Segments: a hundred slices of all schedules and tasks, shared by the slots of each server's agents, with few moves.

`assign` is pure: (the owner of each segment, the slots of the active servers) → the segments that move. `Capacity` has
the averages of slots that one leader has seen.
Next: server/cluster/coordinator.py
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

SEGMENTS = 100
SETTLE = 60.0  # seconds over which the slots of a server are averaged
STEADY = 30.0  # seconds without a change after which they count as they are
BASE = 0.1  # of the slots of an average server, that each server counts beside those of its agents
SLACK, SLACK_OF_SHARE = 2, 4  # segments that a server may be off while slots change; at most a fourth of its share

Owner = TypeVar("Owner", bound=Hashable)


class _Seen(NamedTuple):
    """The slots of a server, over time."""

    since: float
    at: float
    slots: int
    changed_at: float
    average: float

    def then(self, slots: int, now: float) -> _Seen:
        changed_at = self.changed_at if slots == self.slots else now
        if now - changed_at >= STEADY:
            return _Seen(self.since, now, slots, changed_at, slots)
        part = min(1.0, (now - self.at) / min(SETTLE, now - self.since)) if now > self.since else 1.0
        return _Seen(self.since, now, slots, changed_at, self.average + (slots - self.average) * part)


class Capacity(Generic[Owner]):
    """The slots of each server, averaged while they change: agents that come and go move no segments back and forth."""

    def __init__(self) -> None:
        self._seen: dict[Owner, _Seen] = {}

    def observe(self, slots: Mapping[Owner, int], now: float) -> dict[Owner, float]:
        """The slots that each server counts at `now`: of one that is new, the average of the time since it came.

        A server is new until its first agent has connected.
        """
        known = {server: seen for server, seen in self._seen.items() if seen.slots or seen.changed_at > seen.since}
        new = {server: _Seen(now, now, its, now, its) for server, its in slots.items()}
        self._seen = {server: known.get(server, new[server]).then(its, now) for server, its in slots.items()}
        return {server: seen.average for server, seen in self._seen.items()}

    @property
    def is_steady(self) -> bool:
        return all(seen.at - seen.changed_at >= STEADY for seen in self._seen.values())


def assign(owners: Mapping[int, Owner | None], slots: Mapping[Owner, float], *, exact: bool = True) -> dict[int, Owner]:
    """The new owners of the segments that must move, so that each server has the share of its slots.

    Segments without an owner among the servers go to those with too few. Only then do servers with more than their
    share give some up; if it need not be `exact`, only if one is off by more than the slack. Deterministic: two leaders
    that see the same decide the same.
    """
    if not slots:
        return {}
    held: dict[Owner, list[int]] = {server: [] for server in slots}
    free: list[int] = []
    for segment, owner in sorted(owners.items()):
        if owner in held:
            held[owner].append(segment)
        else:
            free.append(segment)
    share = _shares(len(owners), slots, {server: len(its) for server, its in held.items()})
    moves: dict[int, Owner] = {}

    def fill() -> None:
        while free:
            server = max(slots, key=lambda each: share[each] - len(held[each]))
            held[server].append(free[0])
            moves[free.pop(0)] = server

    fill()
    slack = {server: 0 if exact else min(SLACK, its // SLACK_OF_SHARE) for server, its in share.items()}
    if any(abs(len(held[server]) - share[server]) > slack[server] for server in slots):
        for server in slots:
            while len(held[server]) > share[server]:
                free.append(held[server].pop(0))
        fill()
    return moves


def _shares(count: int, slots: Mapping[Owner, float], held: Mapping[Owner, int]) -> dict[Owner, int]:
    """How many segments each server has by its slots. Of fractions those are rounded up that save a move."""
    base = BASE * sum(slots.values()) / len(slots) or 1.0
    total = sum(slots.values()) + base * len(slots)
    exact = {server: count * (own + base) / total for server, own in slots.items()}
    share = {server: int(one) for server, one in exact.items()}
    ranked = sorted(slots, key=lambda server: (held[server] <= share[server], share[server] - exact[server]))
    for server in ranked[: count - sum(share.values())]:
        share[server] += 1
    return share


def ranges(numbers: Iterable[int]) -> str:
    """Segments as people read them: 0-33, 67."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
