"""Giving way: steps of requests wait for imminent fires, on a clock that only the test moves."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import cast

import pytest

from mainspring.operations.parts import giving_way
from mainspring.operations.parts.giving_way import LONGEST, OPEN, SOON, GivingWay
from mainspring.operations.parts.slices import YOUNG, Slices
from mainspring.store.postgres.database import Database


class _Handle:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call, self.is_cancelled = at, call, False

    def cancel(self) -> None:
        self.is_cancelled = True


class World:
    """Instants of an agent, timers of a loop, and the clock of both."""

    def __init__(self, *instants: float) -> None:
        self.time = 100.0
        self.instants = [100.0 + instant for instant in instants]
        self.handles: list[_Handle] = []
        self.asked = 0
        self.log: list[str] = []
        self.on_fired: Callable[[], None] = lambda: None
        self.way = GivingWay(self, lambda: self.time, self._later)

    def next_fire(self) -> float | None:
        self.asked += 1
        return self.instants[0] - self.time if self.instants else None

    def _later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        self.handles.append(_Handle(self.time + seconds, call))
        return cast(asyncio.TimerHandle, self.handles[-1])

    def step(self, name: str) -> asyncio.Task[None]:
        async def run() -> None:
            await self.way.wait()
            self.log.append(name)

        return asyncio.ensure_future(run())

    async def advance(self, seconds: float) -> None:
        """Let everything happen that is due until then, in its order."""
        await settled()
        end = self.time + seconds
        while True:
            timers = [handle for handle in self.handles if not handle.is_cancelled]
            due = [*self.instants[:1], *(handle.at for handle in timers)]
            if not due or min(due) > end:
                break
            self.time = max(self.time, min(due))
            if self.instants and self.instants[0] <= self.time:
                self.instants.pop(0)
                asyncio.get_running_loop().call_soon(self.log.append, "fire")  # as its handler starts: one turn later
                self.on_fired()
            for handle in timers:
                if handle.at <= self.time:
                    handle.cancel()
                    handle.call()
            await settled()
        self.time = end


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_step_runs_behind_the_handler_of_an_imminent_fire() -> None:
    world = World(SOON / 2)
    step = world.step("step")
    await world.advance(SOON / 4)
    assert world.log == []
    await world.advance(SOON)
    assert world.log == ["fire", "step"]
    assert step.done()
    assert all(handle.is_cancelled for handle in world.handles)


async def test_a_fire_that_is_overdue_comes_first_too() -> None:
    world = World(-SOON)
    world.step("step")
    await settled()
    assert world.log == []
    await world.advance(0.0)
    assert world.log == ["fire", "step"]


@pytest.mark.parametrize("instants", [(), (SOON * 1.5,)], ids=["nothing armed", "not imminent"])
async def test_a_step_does_not_wait_without_an_imminent_fire(instants: tuple[float, ...]) -> None:
    world = World(*instants)
    waiting = world.way.wait()
    with pytest.raises(StopIteration):
        waiting.send(None)  # it returns without yielding to the loop once
    assert world.asked == 1
    assert world.handles == []


async def test_a_step_waits_for_a_gap_that_is_long_enough() -> None:
    world = World(SOON / 2, SOON, SOON * 1.5, SOON * 4)
    world.step("step")
    await world.advance(SOON * 1.2)
    assert world.log == ["fire", "fire"]
    await world.advance(SOON)
    assert world.log == ["fire", "fire", "fire", "step"]


async def test_of_those_released_each_looks_again() -> None:
    world = World(SOON / 2, SOON * 2)

    async def long() -> None:
        await world.way.wait()
        world.time += SOON * 0.8  # computes; the second fire is imminent then
        world.log.append("long")

    steps = [asyncio.ensure_future(long()), world.step("other")]
    await world.advance(SOON)
    assert world.log == ["fire", "long"]
    await world.advance(SOON)
    assert world.log == ["fire", "long", "fire", "other"]
    assert all(step.done() for step in steps)


async def test_under_a_flood_a_step_waits_for_a_bounded_time_and_then_others_do_not_wait_for_as_long() -> None:
    world = World(*(number / 5_000 for number in range(1, 200)))
    world.step("first")
    await world.advance(LONGEST / 2)
    world.step("second")  # bound by the first
    await world.advance(LONGEST * 0.49)
    assert not {"first", "second"} & set(world.log)
    await world.advance(LONGEST * 0.02)
    assert {"first", "second"} <= set(world.log)
    world.step("third")
    await settled()
    assert world.log[-1] == "third"  # the way is open
    await world.advance(OPEN)
    world.step("fourth")
    await settled()
    assert "fourth" not in world.log
    await world.advance(LONGEST * 1.01)
    assert "fourth" in world.log


async def test_a_step_that_is_pushed_back_again_and_again_waits_no_longer_than_one_that_waits_once() -> None:
    gaps = [SOON / 2 + number * SOON * 1.2 for number in range(20)]
    world = World(*gaps)

    async def busy() -> None:
        """Takes each gap for itself, before the other step."""
        while world.instants:
            await world.way.wait()
            world.time += SOON * 0.4

    taking = asyncio.ensure_future(busy())
    await settled()
    began = world.time
    step = world.step("step")
    while not step.done() and world.time < began + LONGEST * 3:
        await world.advance(SOON / 4)
    assert world.time - began <= LONGEST + SOON
    taking.cancel()


async def test_the_end_of_one_that_waits_leaves_the_others_waiting() -> None:
    world = World(SOON / 2)
    steps = [world.step("first"), world.step("second")]
    await settled()
    steps[0].cancel()
    await settled()
    assert not steps[1].done()
    await world.advance(SOON)
    assert world.log == ["fire", "second"]


async def test_a_long_computation_gives_way_between_its_steps() -> None:
    world = World(SOON / 2, SOON * 100)
    before = giving_way.current.set(world.way)

    async def compute() -> None:
        slices = Slices(slice=1e9)
        for number in range(3):
            await slices.rest()
            world.log.append(f"step {number}")

    computing = asyncio.ensure_future(compute())
    giving_way.current.reset(before)
    await settled()
    assert world.log == []
    await world.advance(SOON)
    assert world.log == ["fire", "step 0", "step 1", "step 2"]
    assert computing.done()


async def test_a_statement_gives_way_before_its_rows_are_worked_on_but_not_inside_a_transaction(
    database: Database,
) -> None:
    pool = database.for_api()
    waits: list[str] = []

    async def give_way() -> None:
        waits.append("waited")

    pool.give_way = give_way
    try:
        async with pool.acquire() as conn:
            waits.clear()
            await conn.fetchval("select 1")
            assert len(waits) == 1
            async with conn.transaction():  # it may hold locks
                await conn.fetchval("select 1")
                assert len(waits) == 1
            assert len(waits) == 2
    finally:
        await pool.close()


async def test_new_objects_that_stay_are_collected_a_few_at_a_time() -> None:
    """A collection of 50,000 of them, as a server makes it by itself, would hold the event loop for 40 ms."""
    before, slices, kept = gc.get_threshold(), Slices(), list[list[int]]()
    gc.set_threshold(1_000_000)
    try:
        for number in range(20_000):
            kept.append([number])
            await slices.rest()
            assert gc.get_count()[0] < 10 * YOUNG
        light = Slices()
        kept += [[number] for number in range(YOUNG // 2)]
        young = gc.get_count()[0]
        await light.rest()
        assert gc.get_count()[0] >= young, "what makes few objects collects none"
    finally:
        gc.set_threshold(*before)
