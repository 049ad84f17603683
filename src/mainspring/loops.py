"""The one shape of a background loop: a step that finds work, a wake-up, and an interval that adapts.

Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from mainspring.errors import StoreUnavailable

log = logging.getLogger("mainspring")

Step = Callable[[], Awaitable[int]]


async def run_every(interval: float, step: Step, wake: asyncio.Event | None = None, *, adaptive: bool = False) -> None:
    """Repeat `step`: at once while it finds work, else on `wake` or after `interval`, with jitter.

    With `adaptive` the interval shrinks while there is work and grows when there is none. That is for looking
    for work; what keeps something alive must come at its time.

    StoreUnavailable is expected, and waited out; any other error is a bug and ends the loop.
    """
    wake = wake or asyncio.Event()
    pace = Pace(interval)
    name = getattr(step, "__qualname__", repr(step))
    faults = 0
    while True:
        wake.clear()  # before the step, so that a wake during it is not lost
        try:
            found = await step()
            faults = 0
        except StoreUnavailable as error:
            faults += 1
            if faults == 1:
                log.warning("%s: %s; trying again", name, error)
            # Short: while PostgreSQL is away, store/postgres/reconnect.py says how often it is asked.
            await asyncio.sleep(min(0.1 * faults, 0.3) * random.uniform(0.5, 1.5))
            continue
        wait = (pace.after(found) if adaptive else interval) * random.uniform(0.9, 1.1)
        if not found:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await wake.wait()


class Loop(NamedTuple):
    """A step and when it is taken, as `run_every` has it."""

    interval: float
    step: Step
    wake: asyncio.Event | None = None
    adaptive: bool = False


async def run_all(loops: Iterable[Loop]) -> None:
    """Run them until this is cancelled. A bug in one ends them all, loudly."""
    async with asyncio.TaskGroup() as group:
        for loop in loops:
            group.create_task(run_every(loop.interval, loop.step, loop.wake, adaptive=loop.adaptive))


class Pace:
    """An adaptive interval: × 0.8 after a find, × 1.2 after five empty polls; between half and four times the base."""

    def __init__(self, base: float) -> None:
        self.interval = self._base = base
        self._empty = 0

    def after(self, found: int) -> float:
        """The interval until the next poll, after one that found this much."""
        self._empty = 0 if found else self._empty + 1
        if found:
            self.interval = max(self.interval * 0.8, self._base / 2)
        elif self._empty == 5:
            self._empty = 0
            self.interval = min(self.interval * 1.2, self._base * 4)
        return self.interval
