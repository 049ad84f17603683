"""Pick-up: an idle system, one task every 50 ms; from the call of enqueue to the first line of the handler."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.common import arguments, make_app, quantiles, run
from benchmarks.timing import Starts


async def pickup(dsn: str, tasks: int) -> dict[str, Any]:
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
            await asyncio.sleep(0.05)
    return quantiles(waits)


def main() -> None:
    args = arguments(__doc__ or "", tasks=200, runs=3)
    run("pickup", lambda dsn: pickup(dsn, args.tasks), args)


if __name__ == "__main__":
    main()
