"""Timers and wake timers: calls on the loop, at the instant, with either kind of wake timer."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mainspring.agent.timing import timers as timers_module
from mainspring.agent.timing.timerfd import ThreadTimer, TimerfdTimer, WakeTimer, make_wake_timer
from mainspring.agent.timing.timers import Timers
from mainspring.wire.clock import Clock, boottime

KINDS: list[type[ThreadTimer] | type[TimerfdTimer]] = [ThreadTimer]
if sys.platform == "linux":
    KINDS.append(TimerfdTimer)

kinds = pytest.mark.parametrize("kind", KINDS)


class Rings:
    """Counts, and lets a test wait for the next one."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self._rung = asyncio.Event()

    def __call__(self, *_: Any) -> None:
        self.at.append(boottime())
        self._rung.set()

    async def next(self) -> float:
        await asyncio.wait_for(self._rung.wait(), 20)
        self._rung.clear()
        return self.at[-1]


@kinds
async def test_an_alarm_rings_once_at_its_instant_and_not_before(kind: Callable[..., WakeTimer]) -> None:
    rings = Rings()
    timer = kind(asyncio.get_running_loop(), rings)
    at = boottime() + 0.02
    timer.set(at)
    assert await rings.next() >= at - 1e-6
    timer.set(boottime() - 100)  # past: at once
    await rings.next()
    timer.set(-5.0)
    await rings.next()
    assert len(rings.at) == 3
    timer.close()


@kinds
async def test_setting_an_alarm_anew_replaces_what_was_set(kind: Callable[..., WakeTimer]) -> None:
    rings = Rings()
    timer = kind(asyncio.get_running_loop(), rings)
    timer.set(boottime() + 3600)
    timer.set(boottime() + 0.01)
    await rings.next()
    timer.set(boottime() + 0.005)
    timer.set(None)
    timer.set(boottime() + 3600)
    later = boottime() + 0.03
    marker = kind(asyncio.get_running_loop(), marked := Rings())
    marker.set(later)
    await marked.next()
    assert len(rings.at) == 1, "neither the cancelled one nor the one in an hour"
    timer.close()
    marker.close()


@kinds
async def test_a_closed_alarm_does_not_ring_and_can_still_be_set(kind: Callable[..., WakeTimer]) -> None:
    """A runner that is being stopped may still arm something; no other descriptor may be touched by it."""
    rings, others = Rings(), Rings()
    timer = kind(asyncio.get_running_loop(), rings)
    timer.close()
    other = kind(asyncio.get_running_loop(), others)  # likely in the descriptor that became free
    other.set(boottime() + 0.02)
    timer.set(boottime() + 3600)
    timer.set(None)
    await others.next()
    timer.close()
    other.set(boottime() + 0.01)
    await others.next()
    assert rings.at == []
    other.close()


@pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")
async def test_linux_has_a_timerfd_and_another_system_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    before = len(os.listdir("/proc/self/fd"))
    timer = make_wake_timer(loop, Rings())
    assert isinstance(timer, TimerfdTimer)
    timer.close()
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.setattr(sys, "platform", "darwin")
    timer = make_wake_timer(loop, Rings())
    assert isinstance(timer, ThreadTimer)
    timer.close()


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def timers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Clock], Timers]]:
    made: list[Timers] = []
    monkeypatch.setattr(timers_module, "make_wake_timer", request.param)

    def make(clock: Clock) -> Timers:
        made.append(Timers(clock))
        return made[-1]

    yield make
    for each in made:
        each.close()


async def test_calls_come_in_order_and_none_before_its_instant(timers: Callable[[Clock], Timers]) -> None:
    clock = Clock()
    mine = timers(clock)
    done = asyncio.Event()
    called: list[tuple[float, float]] = []

    def call(instant: float) -> None:
        called.append((instant, clock.now()))
        if len(called) == 20:
            done.set()

    start = clock.now()
    for number in range(20):
        instant = start + ((number * 7) % 20) / 500
        mine.at(instant, call, instant)
    await asyncio.wait_for(done.wait(), 20)
    assert [instant for instant, _ in called] == sorted(instant for instant, _ in called)
    assert all(now >= instant for instant, now in called)
    assert len(mine) == 0


async def test_an_earlier_timer_moves_the_alarm_and_a_disarmed_one_does_not_call(
    timers: Callable[[Clock], Timers],
) -> None:
    clock = Clock()
    mine, rings = timers(clock), Rings()
    far = mine.at(clock.now() + 3600, rings)
    near = mine.at(clock.now() + 0.01, rings)
    mine.at(clock.now() + 0.02, rings)
    assert mine.disarm(near)
    assert not mine.disarm(near)
    await rings.next()
    assert len(rings.at) == 1
    assert len(mine) == 1
    assert mine.disarm(far)


async def test_a_call_may_arm_and_disarm_others(timers: Callable[[Clock], Timers]) -> None:
    clock = Clock()
    mine, rings, never = timers(clock), Rings(), Rings()
    instant = clock.now() + 0.01

    def call(_: object) -> None:
        mine.disarm(victim)
        mine.at(clock.now() - 1, rings)
        mine.at(clock.now() + 0.005, rings)

    mine.at(instant, call)
    victim = mine.at(instant + 1e-7, never)
    await rings.next()
    if len(rings.at) < 2:
        await rings.next()
    assert never.at == []
    assert len(mine) == 0


async def test_when_the_followed_clock_is_set_the_alarm_follows(timers: Callable[[Clock], Timers]) -> None:
    clock = Clock()
    mine, rings = timers(clock), Rings()
    mine.at(clock.now() + 3600, rings)
    clock.offset += 3600 - 0.02
    mine.clock_changed()
    await rings.next()
    mine.at(clock.now() + 0.02, rings)
    clock.offset -= 3600
    mine.clock_changed()
    marker = Rings()
    asyncio.get_running_loop().call_later(0.05, marker)
    await marker.next()
    assert len(rings.at) == 1, "the clock went back an hour: not yet"


async def test_it_is_on_time_to_a_few_milliseconds(timers: Callable[[Clock], Timers]) -> None:
    clock = Clock()
    mine, rings = timers(clock), Rings()
    late = []
    for _ in range(10):
        instant = clock.now() + 0.01
        mine.at(instant, rings)
        late.append(await rings.next() + clock.offset - instant)
    assert min(late) < 0.005, "the best of ten, as the machine may be busy"


def test_boot_time_does_not_go_back() -> None:
    first = boottime()
    time.sleep(0)
    assert boottime() >= first


async def test_the_next_fire_is_that_of_the_first_instant_and_none_without_any() -> None:
    clock = Clock(offset=1000.0)
    timers = Timers(clock)
    assert timers.next_fire() is None
    now = clock.now()
    timers.at(now + 300, print)
    timers.at(now + 100, print)
    left = timers.next_fire()
    assert left is not None
    assert now + 100 - clock.now() <= left <= 100
    overdue = timers.at(now - 5, print)
    assert (timers.next_fire() or 0.0) <= -5
    timers.disarm(overdue)
    timers.close()
    assert timers.next_fire() is None


async def test_that_an_instant_has_passed_is_told_after_its_calls() -> None:
    timers = Timers(Clock())
    calls: list[str] = []
    rings = Rings()

    def fired() -> None:
        calls.append("fired")
        rings()

    timers.on_fired = fired
    timers.after(0.005, calls.append, "call")
    await rings.next()
    assert calls == ["call", "fired"]
    timers.close()
