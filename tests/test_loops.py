"""The pace of loops: what keeps something alive comes at its time, what looks for work slows down."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import loops
from mainspring.errors import StoreUnavailable


@pytest.mark.parametrize(("adaptive", "slower"), [(False, False), (True, True)])
async def test_only_an_adaptive_loop_slows_down_when_it_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, adaptive: bool, slower: bool
) -> None:
    waits: list[float] = []

    async def nothing() -> int:
        if len(waits) == 60:
            raise LookupError  # enough
        return 0

    async def at_once(_wake: asyncio.Event, within: float) -> None:
        if within:
            waits.append(within)

    monkeypatch.setattr(loops, "_woken", at_once)
    with pytest.raises(LookupError):
        await loops.run_every(5.0, nothing, adaptive=adaptive)
    assert all(4.5 <= wait <= 5.5 for wait in waits[:4])
    assert (waits[-1] > 15.0) is slower


async def test_loops_wait_for_shared_ticks_as_long_as_they_are_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[float] = []

    async def nothing() -> int:
        if len(ends) == 80:
            raise LookupError  # enough
        return 0

    async def at_once(_wake: asyncio.Event, within: float) -> None:
        if within:
            ends.append(asyncio.get_running_loop().time() + within)

    def is_on_tick(end: float) -> bool:
        return abs((end - loops._PHASE) / loops.TICK - round((end - loops._PHASE) / loops.TICK)) < 0.02

    monkeypatch.setattr(loops, "_woken", at_once)
    with pytest.raises(LookupError):
        await loops.run_every(5.0, nothing, on_ticks=lambda: len(ends) < 40)
    assert all(map(is_on_tick, ends[:40]))
    assert sum(map(is_on_tick, ends[40:])) < 20, "with jitter again"


async def test_what_fell_due_in_a_step_of_a_computation_starts_before_its_next_step() -> None:
    """As a wake timer does it: its descriptor is readable, and its callback wakes a task."""
    loop = asyncio.get_running_loop()
    readable, written = os.pipe()
    due = asyncio.Event()
    handler = asyncio.create_task(due.wait())
    await asyncio.sleep(0)
    loop.add_reader(readable, due.set)
    try:
        os.write(written, b"x")
        await loops.let_fire()
        assert handler.done()
    finally:
        loop.remove_reader(readable)
        os.close(readable)
        os.close(written)


async def test_a_loop_looks_again_at_a_wake_up_or_after_its_interval_and_leaves_no_timer() -> None:
    looks = 0
    wake, looked = asyncio.Event(), asyncio.Event()

    async def look() -> int:
        nonlocal looks
        looks += 1
        looked.set()
        return 0

    async def until(number: int) -> None:
        while looks < number:
            looked.clear()
            await asyncio.wait_for(looked.wait(), 20)

    often = asyncio.create_task(loops.run_every(0.001, look))
    await until(3)
    often.cancel()
    looks = 0
    seldom = asyncio.create_task(loops.run_every(3600.0, look, wake))
    await until(1)
    wake.set()
    await until(2)
    seldom.cancel()
    await asyncio.wait([often, seldom])
    assert not [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]


async def test_a_long_outage_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that doubled without end would be no number any more."""
    pauses: list[float] = []
    real_sleep = asyncio.sleep

    async def no_pause(seconds: float) -> None:
        pauses.append(seconds)
        await real_sleep(0)

    async def away() -> int:
        if len(pauses) == 3000:
            raise LookupError  # enough
        raise StoreUnavailable("PostgreSQL does not answer")

    monkeypatch.setattr("mainspring.loops.asyncio.sleep", no_pause)
    with pytest.raises(LookupError):
        await loops.run_every(5.0, away)
    assert max(pauses) < 1.0, "whoever waits is soon back"


async def test_a_bug_in_one_loop_ends_them_all() -> None:
    ended = []

    async def idle() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("idle")
        return 0

    async def broken() -> int:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        await loops.run_all([loops.run_every(5.0, idle), loops.run_every(5.0, broken)])
    assert raised.group_contains(ZeroDivisionError)
    assert ended == ["idle"]


def test_a_signal_calls_all_that_are_connected_in_order_with_the_news() -> None:
    heard: list[tuple[str, int]] = []
    signal: loops.Signal[[int]] = loops.Signal()
    signal.send(1)
    signal.connect(lambda news: heard.append(("first", news)), lambda news: heard.append(("second", news)))
    signal.connect(lambda news: heard.append(("third", news)))
    signal.send(2)
    assert heard == [("first", 2), ("second", 2), ("third", 2)]


@pytest.mark.parametrize("seconds", [0.0, -5.0, 0.01])
async def test_an_alarm_rings_at_its_time_and_at_once_if_that_has_passed(seconds: float) -> None:
    wake = asyncio.Event()
    loops.Alarm(wake).set(seconds)
    assert not wake.is_set()
    async with asyncio.timeout(10):
        await wake.wait()


@pytest.mark.parametrize("later", [None, 3600.0])
async def test_an_alarm_that_is_set_again_does_not_ring_at_the_time_before(later: float | None) -> None:
    wakes = [asyncio.Event(), asyncio.Event()]
    moved, last = [loops.Alarm(wake) for wake in wakes]
    moved.set(0.0)
    moved.set(later)
    last.set(0.0)
    async with asyncio.timeout(10):
        await wakes[1].wait()
    assert not wakes[0].is_set()
    moved.set(0.0)
    async with asyncio.timeout(10):
        await wakes[0].wait()


def test_a_busy_poll_shortens_the_interval_by_a_fifth_down_to_a_half() -> None:
    pace = loops.Pace(1.0)
    waits = [pace.after(1) for _ in range(6)]
    assert waits[:3] == pytest.approx([0.8, 0.64, 0.512])
    assert waits[3:] == [0.5, 0.5, 0.5]


def test_only_the_fifth_empty_poll_in_a_row_lengthens_it() -> None:
    pace = loops.Pace(1.0)
    assert [pace.after(0) for _ in range(4)] == [1.0] * 4
    assert pace.after(0) == pytest.approx(1.2)
    assert [pace.after(0) for _ in range(4)] == pytest.approx([1.2] * 4)
    assert pace.after(0) == pytest.approx(1.44)


def test_a_find_starts_the_count_of_empty_polls_anew() -> None:
    pace = loops.Pace(1.0)
    for _ in range(4):
        pace.after(0)
    pace.after(1)
    assert [pace.after(0) for _ in range(4)] == pytest.approx([0.8] * 4)


@given(st.floats(0.001, 1000), st.lists(st.integers(0, 2), max_size=200))
def test_it_stays_between_a_half_and_four_times_its_base(base: float, finds: list[int]) -> None:
    pace = loops.Pace(base)
    for found in finds:
        assert base / 2 <= pace.after(found) <= base * 4


def test_it_reaches_four_times_its_base_when_nothing_ever_comes() -> None:
    pace = loops.Pace(0.5)
    for _ in range(5 * 8):
        pace.after(0)
    assert pace.interval == 2.0


@given(st.floats(0.0, 1e6), st.floats(0.001, 1000), st.floats(0.9, 1.1))
def test_a_loop_is_never_later_for_the_sake_of_a_tick(now: float, interval: float, jitter: float) -> None:
    wait = loops.until_tick(now, interval * jitter, interval * 1.1)
    assert 0.0 < wait <= interval * 1.1
    assert wait >= interval * 0.9 - loops.TICK * 1.001, "nor more than a tick sooner"


@given(st.floats(0.0, 1e5), st.sampled_from([0.25, 0.5, 1.0, 2.0, 5.0]), st.floats(0.9, 1.1))
def test_loops_that_look_on_a_tick_look_again_on_one(began: float, interval: float, jitter: float) -> None:
    now = began + loops.until_tick(began, loops.TICK, 2 * loops.TICK)
    ticks = loops.until_tick(now, interval * jitter, interval * 1.1) / loops.TICK
    assert ticks == pytest.approx(round(ticks), abs=1e-6)
    assert round(ticks) >= 1


async def test_a_loop_that_begins_later_can_be_woken() -> None:
    steps = []
    wake = asyncio.Event()

    async def step() -> int:
        steps.append(wake.is_set())
        return 0

    loop = asyncio.create_task(loops.run_every(3600.0, step, wake, first=3600.0))
    await asyncio.sleep(0.01)
    assert steps == []
    wake.set()
    await asyncio.sleep(0.01)
    assert steps == [False], "what woke it is done with"
    loop.cancel()
