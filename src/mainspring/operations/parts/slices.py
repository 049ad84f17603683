"""Slices: long computations that leave the event loop to others every 2 ms, and to a fire that is imminent.

Servers and agents share a loop with the HTTP API: a forecast must not make a fire late.
Next: operations/planning/forecast.py
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator
from time import perf_counter, thread_time
from typing import TypeVar

from mainspring.operations.parts import giving_way

T = TypeVar("T")

SLICE = 0.002  # seconds
YOUNG = 2_000  # new objects that the garbage collector looks at in a millisecond or two


class Slices:
    """Call `rest` between steps that are short themselves."""

    def __init__(self, slice: float = SLICE) -> None:
        self.used = 0.0  # seconds of computing so far: of the processor, which others may keep busy
        self._slice = slice
        self._giving_way = giving_way.current.get()
        self._young = gc.get_count()[0]  # objects that were there before
        self.resume()

    async def rest(self) -> None:
        """Let others run, if the slice is used up or a fire is imminent."""
        way = self._giving_way
        if way is not None and way.is_due():
            self.used += thread_time() - self._begin_computing
            await way.wait()
            self.resume()
        elif perf_counter() - self._begin >= self._slice:
            self.used += thread_time() - self._begin_computing
            await asyncio.sleep(0)
            self.resume()
        self._collect()

    def _collect(self) -> None:
        """Collect new objects of this computation that stay, such as those of a large body, a few at a time.

        By itself a server does it after 50,000 (cli/runtime.py), which takes 40 ms.
        """
        young = gc.get_count()[0]
        if young - self._young > YOUNG:
            gc.collect(0)
            young = gc.get_count()[0]
        self._young = min(young, self._young)

    def resume(self) -> None:
        """Begin anew after something was awaited, which is no computing."""
        self._begin, self._begin_computing = perf_counter(), thread_time()


async def in_slices(steps: Generator[None, None, T]) -> T:
    """What a computation returns that yields between its steps; others run whenever a slice is used up."""
    slices = Slices()
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            found: T = ended.value
            return found
        await slices.rest()
