"""Timing wheel: arm and disarm in constant time, no ticking while nothing is due, no long pause with a million timers.

Time is cut into ticks of 1/256 s. Level 0 has a bucket for each tick of this second and the next, level 1 a bucket for
each second of these 256 and the next 256, and so on: a timer lies in the lowest level that reaches its instant. When
the time of a bucket comes, its timers move to lower levels; those of the current tick lie in a small heap, ordered by
their exact instant.

A bucket of an upper level may hold a million timers; moving them all at once would stop the agent for a second. Each
level reaches to the end of the next bucket of the level above, so a crowded bucket can be moved ahead of its time, one
bundle with each `expire`. `soonest` asks for these extra turns only if there is a crowded bucket.
Next: agent/timing/timerfd.py
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from msgspec import Struct

_TICKS = 256.0
_LEVELS = 6  # 256^6 ticks are 34,000 years
_RING = 511  # a level has 512 buckets: those below the current bucket of the level above, and below the next one
_NEVER = float("inf")


class Timer(Struct, gc=False, order=True):
    """An armed timer; `call` is None once it is disarmed.

    The garbage collector does not track timers, as it would walk a million of them. So they drop their argument when
    they have fired or are disarmed.
    """

    at: float
    number: int  # timers of one instant fire in the order in which they were armed
    call: Callable[[Any], None] | None
    argument: Any = None
    bundle: dict[int, Any] | None = None  # where it lies, by its number; None in the heap


class _Bucket:
    __slots__ = ("bundles", "level", "soonest", "start")

    def __init__(self, level: int) -> None:
        self.level = level
        self.start = -1  # the tick at which it begins, while it is in use
        self.soonest = _NEVER  # not later than its first timer; may be early after a disarm
        self.bundles: list[dict[int, Timer]] = []  # small: a large dictionary takes long to grow

    def holds_timers(self) -> bool:
        while self.bundles and not self.bundles[-1]:
            self.bundles.pop()
        return bool(self.bundles)

    def empty(self) -> list[dict[int, Timer]]:
        """Its bundles; the bucket is then free for another time."""
        bundles, self.bundles = self.bundles, []
        self.start, self.soonest = -1, _NEVER
        return bundles


_EXPIRED: dict[int, Timer] = {}  # the bundle of a timer that has expired and may not have been called yet


class Wheel:
    """Pure: the caller passes the time in, and calls `expire` again at `soonest()`."""

    def __init__(self, now: float, bundle: int = 128) -> None:
        self._bundle = bundle  # how many timers are moved in one turn
        self._heap: list[Timer] = []
        self._buckets = [[_Bucket(level) for _ in range(_RING + 1)] for level in range(_LEVELS)]
        self._waiting: list[list[tuple[int, _Bucket]]] = [[] for _ in range(_LEVELS)]  # heaps of buckets by their start
        self._crowded: list[tuple[int, int, _Bucket]] = []  # a heap: from when a bucket can be moved, its start
        self._armed = 0
        self._number = 0
        self._tick = -1
        self._ends: list[int] = []  # the tick to which each level reaches
        self._advance(int(now * _TICKS))

    def __len__(self) -> int:
        return self._armed

    def arm(self, at: float, call: Callable[[Any], None], argument: Any = None) -> Timer:
        self._number += 1
        timer = Timer(at, self._number, call, argument)
        self._armed += 1
        self._place(timer)
        return timer

    def _place(self, timer: Timer) -> None:
        at = timer.at
        tick = int(at * _TICKS)
        if tick <= self._tick:
            timer.bundle = None
            heapq.heappush(self._heap, timer)
            return
        level = bisect_right(self._ends, tick)
        position = tick >> (level << 3)
        bucket = self._buckets[level][position & _RING]
        if bucket.start < 0:
            bucket.start = position << (level << 3)
            heapq.heappush(self._waiting[level], (bucket.start, bucket))
        if at < bucket.soonest:
            bucket.soonest = at
        bundles = bucket.bundles
        if not bundles or len(bundles[-1]) >= self._bundle:
            bundles.append({})
            if len(bundles) == 2 and level:
                heapq.heappush(self._crowded, (bucket.start - (1 << (level << 3)), bucket.start, bucket))
        timer.bundle = bundle = bundles[-1]
        bundle[timer.number] = timer

    def disarm(self, timer: Timer) -> bool:
        """False if it has fired or was disarmed before."""
        if timer.call is None:
            return False
        timer.call = timer.argument = None
        bundle = timer.bundle
        if bundle is _EXPIRED:
            return True
        self._armed -= 1
        if bundle is not None:
            del bundle[timer.number]
        elif len(self._heap) > 64 and len(self._heap) > 2 * self._armed:
            self._heap = [t for t in self._heap if t.call is not None]
            heapq.heapify(self._heap)
        return True

    def clear(self) -> None:
        """Disarm all."""
        buckets = [bucket for waiting in self._waiting for _, bucket in waiting]
        placed = [timer for bucket in buckets for bundle in bucket.bundles for timer in bundle.values()]
        for timer in [*self._heap, *placed]:
            self.disarm(timer)

    def soonest(self) -> float | None:
        """When `expire` has work next; never late, seldom early. None if nothing is armed."""
        while self._heap and self._heap[0].call is None:
            heapq.heappop(self._heap)
        soonest = self._heap[0].at if self._heap else _NEVER
        for waiting in self._waiting:
            while waiting and not waiting[0][1].holds_timers():
                heapq.heappop(waiting)[1].empty()
            if waiting and waiting[0][1].soonest < soonest:
                soonest = waiting[0][1].soonest
        if crowded := self._next_crowded():
            soonest = min(soonest, crowded[0] / _TICKS)
        return None if soonest == _NEVER else soonest

    def expire(self, now: float) -> list[Timer]:
        """Disarm and return all timers due at `now`, in the order of their instants."""
        self._turn(int(now * _TICKS))
        due = []
        while self._heap and self._heap[0].at <= now:
            timer = heapq.heappop(self._heap)
            if timer.call is not None:
                timer.bundle = _EXPIRED
                due.append(timer)
        self._armed -= len(due)
        return due

    def _turn(self, target: int) -> None:
        """Advance the current tick to `target`, move the buckets on the way; then move one bundle ahead of its time."""
        self._advance(target)
        for waiting in self._waiting:
            while waiting and waiting[0][0] <= target:
                for bundle in heapq.heappop(waiting)[1].empty():
                    self._move(bundle)  # to the heap, or to a later bucket of a lower level
        crowded = self._next_crowded()
        if crowded is not None and crowded[0] <= self._tick:
            self._move(crowded[2].bundles.pop())  # the last bundle moves at its time

    def _next_crowded(self) -> tuple[int, int, _Bucket] | None:
        while self._crowded:
            _, start, bucket = self._crowded[0]
            if bucket.start == start and len(bucket.bundles) > 1:
                return self._crowded[0]
            heapq.heappop(self._crowded)  # it was moved
        return None

    def _move(self, bundle: dict[int, Timer]) -> None:
        for timer in bundle.values():
            self._place(timer)

    def _advance(self, tick: int) -> None:
        if tick <= self._tick:
            return  # the clock was set back: buckets that were moved stay moved
        if tick >> 8 != self._tick >> 8:
            # Each level but the last reaches to the end of the next bucket of the level above.
            self._ends = [((tick >> (level << 3)) + 2) << (level << 3) for level in range(1, _LEVELS)]
        self._tick = tick
