"""Timing wheel: a million timers armed, half of them disarmed, the rest fired, against a heap with lazy deletion.

The pauses are the longest single calls, in CPU time of the thread: what a fire may have to wait for. Lateness is
that of real fires on an event loop while a million other timers are armed within the next hours.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import time
import tracemalloc
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import uvloop

from benchmarks.common import arguments, fresh_directory, lateness_of, median_of, report, say
from mainspring.agent.timing.timers import Timers
from mainspring.agent.timing.wheel import Wheel
from mainspring.cli.runtime import settle_memory
from mainspring.wire.clock import Clock

EPOCH = 1_790_000_000.0
HOURS = 4 * 3600.0


def nothing(_: object) -> None: ...


class Heap:
    """What the wheel is compared with: heapq in C, with entries that stay until they come up."""

    def __init__(self, _: float) -> None:
        self._entries: list[list[Any]] = []
        self._number = 0

    def arm(self, at: float, call: Callable[[Any], None], argument: Any = None) -> list[Any]:
        self._number += 1
        entry = [at, self._number, call, argument]
        heapq.heappush(self._entries, entry)
        return entry

    def disarm(self, entry: list[Any]) -> None:
        entry[2] = None

    def soonest(self) -> float | None:
        while self._entries and self._entries[0][2] is None:
            heapq.heappop(self._entries)
        return self._entries[0][0] if self._entries else None

    def expire(self, now: float) -> list[list[Any]]:
        due = []
        while self._entries and self._entries[0][0] <= now:
            entry = heapq.heappop(self._entries)
            if entry[2] is not None:
                due.append(entry)
        return due


def _instants(count: int, seconds: float) -> list[float]:
    chance = random.Random(7)
    return [EPOCH + 1 + chance.random() * seconds for _ in range(count)]


def operations(make: Callable[[float], Any], count: int) -> dict[str, float]:
    """Nanoseconds of each operation; and the longest call of `arm` and `expire`, in milliseconds."""
    instants = _instants(count, HOURS)
    timers = make(EPOCH)
    clock = time.perf_counter
    gc.collect()
    began = clock()
    armed = [timers.arm(at, nothing) for at in instants]
    arming = clock() - began
    random.Random(8).shuffle(armed)
    began = clock()
    for timer in armed[: count // 2]:
        timers.disarm(timer)
    disarming = clock() - began
    del armed
    fired, longest = 0, 0.0
    began = clock()
    while (soonest := timers.soonest()) is not None:
        before = time.thread_time()
        fired += len(timers.expire(soonest))
        longest = max(longest, time.thread_time() - before)
    firing = clock() - began
    assert fired == count - count // 2
    return {
        "arm_ns": arming / count * 1e9,
        "disarm_ns": disarming / (count // 2) * 1e9,
        "fire_ns": firing / fired * 1e9,
        "pause_ms": longest * 1e3,
    }


def crowded_pauses(count: int) -> dict[str, float]:
    """All timers in slots of level 2 or 3: the longest call while time passes, as the wheel asks to be turned."""
    longest: dict[str, float] = {}
    for name, seconds, ahead in (("level_2", 250.0, 1_000.0), ("level_3", 60_000.0, 200_000.0)):
        wheel = Wheel(EPOCH)
        arming = 0.0
        instants = [at + ahead for at in _instants(count, seconds)]
        gc.collect()
        for at in instants:
            before = time.thread_time()
            wheel.arm(at, nothing)
            arming = max(arming, time.thread_time() - before)
        now, moving = EPOCH, 0.0
        while (soonest := wheel.soonest()) is not None:
            now = max(now, soonest)
            before = time.thread_time()
            wheel.expire(now)
            moving = max(moving, time.thread_time() - before)
        longest |= {f"{name}_pause_ms": moving * 1e3, f"{name}_arm_pause_ms": arming * 1e3}
    return longest


def memory(count: int) -> float:
    """Bytes for each armed timer, with what the wheel keeps about it."""
    instants = _instants(count, HOURS)
    gc.collect()
    tracemalloc.start()
    wheel = Wheel(EPOCH)
    before, _ = tracemalloc.get_traced_memory()
    for at in instants:
        wheel.arm(at, nothing)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / count


async def lateness(count: int, fires: int, seconds: float) -> dict[str, float]:
    """How late the calls of some timers are while so many others are armed."""
    clock = Clock()
    timers = Timers(clock)
    chance = random.Random(9)
    began = clock.now()
    for _ in range(count):
        timers.at(began + 60 + chance.random() * HOURS, nothing)
    late: list[tuple[float, float]] = []
    done = asyncio.Event()

    def call(instant: float) -> None:
        late.append((instant, clock.now()))
        if len(late) == fires:
            done.set()

    settle_memory()
    first = clock.now() + 0.5
    for number in range(fires):
        instant = first + seconds * number / fires + chance.random() * seconds / fires
        timers.at(instant, call, instant)
    await asyncio.wait_for(done.wait(), seconds + 60)
    timers.close()
    gc.unfreeze()
    return {f"late_{name}": value for name, value in lateness_of(late).items()}


def measure(args: Namespace) -> dict[str, float]:
    wheel, heap = operations(Wheel, args.timers), operations(Heap, args.timers)
    ratios = {f"{name[:-3]}_of_heap": wheel[name] / heap[name] for name in ("arm_ns", "disarm_ns", "fire_ns")}
    late = uvloop.run(lateness(args.timers, args.fires, float(args.seconds)))
    return {**wheel, **ratios, **crowded_pauses(args.timers), "bytes_per_timer": memory(args.timers), **late}


def main() -> None:
    args = arguments(__doc__ or "", timers=1_000_000, fires=1_000, seconds=10, runs=1)
    results = []
    with fresh_directory():
        for number in range(1, args.runs + 1):
            results.append(measure(args))
            say(f"wheel run {number} of {args.runs}: {results[-1]}")
    report("wheel", {**median_of(results), "runs": args.runs}, as_json=args.json)


if __name__ == "__main__":
    main()
