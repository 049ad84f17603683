"""Timing wheel: arm and disarm in constant time, and no ticking while nothing is due.

Time is cut into ticks of 1/256 s. A timer lies in the level of the highest byte in which its tick differs
from the current one: level 0 holds the next second in 256 slots of a tick, level 1 the next 256 seconds in
slots of a second, and so on. When the current tick reaches a slot, its timers move to lower levels; those
of the current tick lie in a small heap by their exact instant. A bitmap per level finds the next slot.
Next: agent/timers.py
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

_TICKS = 256.0
_LEVELS = 6  # 256^6 ticks are 34,000 years


class Timer:
    """An armed timer; `slot` is where it lies, None in the heap, and `call` is None once it is disarmed."""

    __slots__ = ("argument", "at", "call", "number", "slot")

    def __init__(self, at: float, number: int, call: Callable[[Any], None], argument: Any) -> None:
        self.at = at
        self.number = number  # those of one instant fire in the order in which they were armed
        self.call: Callable[[Any], None] | None = call
        self.argument = argument
        self.slot: _Slot | None = None

    def __lt__(self, other: Timer) -> bool:
        return (self.at, self.number) < (other.at, other.number)


class _Slot:
    __slots__ = ("index", "level", "soonest", "timers")

    def __init__(self, level: int, index: int) -> None:
        self.level = level
        self.index = index
        self.soonest = float("inf")  # not later than the first timer; may be early after a disarm
        self.timers: dict[int, Timer] = {}


_HANDED_OUT = _Slot(-1, 0)  # where a timer lies that has expired and may not have been called yet


class Wheel:
    """Pure: the caller gives the time, and asks `soonest()` when to come back."""

    def __init__(self, now: float) -> None:
        self._tick = int(now * _TICKS)
        self._heap: list[Timer] = []
        self._slots = [[_Slot(level, index) for index in range(256)] for level in range(_LEVELS)]
        self._filled = [0] * _LEVELS  # a bit per slot that holds timers
        self._armed = 0
        self._number = 0

    def __len__(self) -> int:
        return self._armed

    def arm(self, at: float, call: Callable[[Any], None], argument: Any = None) -> Timer:
        self._number += 1
        timer = Timer(at, self._number, call, argument)
        self._armed += 1
        self._place(timer)
        return timer

    def _place(self, timer: Timer) -> None:
        tick = int(timer.at * _TICKS)
        if tick <= self._tick:
            timer.slot = None
            heapq.heappush(self._heap, timer)
            return
        level = min(((tick ^ self._tick).bit_length() - 1) >> 3, _LEVELS - 1)
        slot = self._slots[level][(tick >> (level << 3)) & 255]
        timer.slot = slot
        slot.timers[id(timer)] = timer
        if timer.at < slot.soonest:
            slot.soonest = timer.at
        self._filled[level] |= 1 << slot.index

    def disarm(self, timer: Timer) -> bool:
        """False if it has fired or was disarmed before."""
        if timer.call is None:
            return False
        timer.call = None
        slot = timer.slot
        if slot is _HANDED_OUT:
            return True
        self._armed -= 1
        if slot is not None:
            del slot.timers[id(timer)]
            if not slot.timers:
                self._empty(slot)
        elif len(self._heap) > 64 and len(self._heap) > 2 * self._armed:
            self._heap = [t for t in self._heap if t.call is not None]
            heapq.heapify(self._heap)
        return True

    def _empty(self, slot: _Slot) -> None:
        slot.soonest = float("inf")
        self._filled[slot.level] &= ~(1 << slot.index)

    def _first_slot(self) -> _Slot | None:
        """The slot that comes next: a lower level always lies before a higher one."""
        for level, filled in enumerate(self._filled):
            if filled:
                return self._slots[level][(filled & -filled).bit_length() - 1]
        return None

    def soonest(self) -> float | None:
        """When `expire` has something to do; never too late, seldom too early. None: nothing is armed."""
        while self._heap and self._heap[0].call is None:
            heapq.heappop(self._heap)
        slot = self._first_slot()
        if self._heap:
            return min(self._heap[0].at, slot.soonest) if slot else self._heap[0].at
        return slot.soonest if slot else None

    def expire(self, now: float) -> list[Timer]:
        """Disarm and return all timers due at `now`, in the order of their instants."""
        self._turn(int(now * _TICKS))
        due = []
        while self._heap and self._heap[0].at <= now:
            timer = heapq.heappop(self._heap)
            if timer.call is not None:
                timer.slot = _HANDED_OUT
                due.append(timer)
        self._armed -= len(due)
        return due

    def _turn(self, target: int) -> None:
        """Advance the current tick to `target`, opening the slots on the way."""
        while (slot := self._first_slot()) is not None:
            shift = slot.level << 3
            start = ((self._tick >> (shift + 8)) << 8 | slot.index) << shift
            if start > target:
                break
            self._tick = start
            timers, slot.timers = slot.timers, {}
            self._empty(slot)
            for timer in timers.values():
                self._place(timer)
        if target > self._tick:
            self._tick = target
