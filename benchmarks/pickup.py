"""Pick-up: an idle system, one task every 50 ms; from the call of enqueue to the first line of the handler.

local    the process that submits runs the task as well
across   another process runs it (figures that begin with `across_`; `across_submit_…` is the call of enqueue)
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.app import app as remote
from benchmarks.common import arguments, make_app, quantiles, run
from benchmarks.network import APP, process, read_stamps
from benchmarks.timing import Starts

PARTS = ("local", "across")
EVERY = 0.05


async def local(dsn: str, tasks: int) -> dict[str, Any]:
    app = make_app(dsn)
    starts = Starts(app)
    waits = []
    async with app.running():
        await asyncio.sleep(1.0)  # let it become idle
        for number in range(tasks):
            called = time.time()
            task = await starts.job.enqueue()
            await starts.wait_for(number + 1)
            waits.append((starts.at[task.id] - called) * 1000)
            await asyncio.sleep(EVERY)
    return quantiles(waits)


async def across(dsn: str, tasks: int) -> dict[str, Any]:
    """A worker process runs what this process submits."""
    called: dict[int, float] = {}
    submits = []
    with tempfile.NamedTemporaryFile() as file:
        stamps = Path(file.name)
        with process("worker", APP, "--dsn", dsn, stamps=stamps):
            await remote.open(dsn=dsn)
            try:
                await asyncio.sleep(1.0)
                for _ in range(tasks):
                    began = time.time()
                    task = await remote["stamp"].enqueue()
                    submits.append((time.time() - began) * 1000)
                    called[task.id] = began
                    await asyncio.sleep(EVERY)
                async with asyncio.timeout(10.0):
                    while len(started := read_stamps(stamps)) < tasks:
                        await asyncio.sleep(EVERY)
            finally:
                await remote.close()
    waits = quantiles([(started[task] - at) * 1000 for task, at in called.items()])
    return {f"across_{key}": value for key, value in waits.items()} | {
        f"across_submit_{key}": value for key, value in quantiles(submits).items()
    }


async def pickup(dsn: str, tasks: int, parts: list[str]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if "local" in parts:
        figures |= await local(dsn, tasks)
    if "across" in parts:
        figures |= await across(dsn, tasks)
    return figures


def main() -> None:
    args = arguments(__doc__ or "", parts=PARTS, tasks=200, runs=3)
    run("pickup", lambda dsn: pickup(dsn, args.tasks, args.parts), args)


if __name__ == "__main__":
    main()
