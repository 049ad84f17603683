"""Slices: long computations that leave the event loop to others every 2 ms.

Servers and agents share a loop with the HTTP API: a forecast must not make a fire late.
Next: operations/planning/forecast.py
"""

from __future__ import annotations

import asyncio
from time import perf_counter

SLICE = 0.002  # seconds


class Slices:
    """Call `rest` between steps that are short themselves."""

    def __init__(self, slice: float = SLICE) -> None:
        self.used = 0.0  # seconds of computing so far
        self._slice = slice
        self._begin = perf_counter()

    async def rest(self) -> None:
        """Let others run, if the slice is used up."""
        length = perf_counter() - self._begin
        if length >= self._slice:
            self.used += length
            await asyncio.sleep(0)
            self._begin = perf_counter()
