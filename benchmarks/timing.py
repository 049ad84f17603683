"""What the benchmarks of time share: a handler that notes when it started, on the clock of this machine."""

from __future__ import annotations

import asyncio
import time

import mainspring
from mainspring import current_task


class Starts:
    """When each task's handler started, by task."""

    def __init__(self, app: mainspring.App) -> None:
        self.at: dict[int, float] = {}
        self._changed = asyncio.Event()

        @app.job(name="stamp", retries=0)
        async def stamp() -> None:
            self.at[current_task().id] = time.time()
            self._changed.set()

        self.job = stamp

    async def wait_for(self, count: int, timeout: float = 60.0) -> None:
        async with asyncio.timeout(timeout):
            while len(self.at) < count:
                self._changed.clear()
                await self._changed.wait()
