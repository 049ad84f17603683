"""Enqueue: bulk (five thousand in a statement, two at a time), and `await enqueue()` of a process without an engine.

single       one after another, a commit each
concurrent   32 at once, and how long one call takes
keyed        the same with an idempotency key each
running      single and concurrent of a process whose engine runs the tasks as well
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import mainspring
from benchmarks.common import arguments, connection, empty_tables, fill, make_app, quantiles, run

AT_ONCE = 32
SETTLED = 6.0  # seconds until the leader has begun all its chores
PARTS = ("bulk", "single", "concurrent", "keyed", "running")


async def bulk(app: mainspring.App, tasks: int) -> dict[str, Any]:
    began = time.perf_counter()
    await fill(app, tasks)
    return {"tasks_per_s": round(tasks / (time.perf_counter() - began))}


async def calls(name: str, call: Callable[[], Awaitable[object]], number: int, at_once: int) -> dict[str, Any]:
    """Calls per second, and milliseconds of one call."""
    waits: list[float] = []

    async def some() -> None:
        for _ in range(number // at_once):
            called = time.perf_counter()
            await call()
            waits.append((time.perf_counter() - called) * 1000)

    for _ in range(20):
        await call()  # connections, plans
    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(at_once)))
    rate = len(waits) / (time.perf_counter() - began)
    return {f"{name}_per_s": round(rate), **{f"{name}_{key}": value for key, value in quantiles(waits).items()}}


async def enqueue(dsn: str, tasks: int, singles: int, parts: list[str]) -> dict[str, Any]:
    app = make_app(dsn)
    noop, numbers = app["noop"], count()
    figures: dict[str, Any] = {}
    async with connection(dsn) as conn:
        await empty_tables(conn)
        await conn.execute("delete from mainspring.task_key")
        async with app:
            if "bulk" in parts:
                figures |= await bulk(app, tasks)
            if "single" in parts:
                figures |= await calls("single", noop.enqueue, singles, 1)
            if "concurrent" in parts:
                figures |= await calls("concurrent", noop.enqueue, singles * 4, AT_ONCE)
            if "keyed" in parts:
                figures |= await calls(
                    "keyed", lambda: noop.using(key=f"key {next(numbers)}").enqueue(), singles * 4, AT_ONCE
                )
        await empty_tables(conn)
        if "running" in parts:
            async with app.running():
                await asyncio.sleep(SETTLED)
                figures |= await calls("running_single", noop.enqueue, singles // 2, 1)
                figures |= await calls("running_concurrent", noop.enqueue, singles * 4, AT_ONCE)
    return figures


def main() -> None:
    args = arguments(__doc__ or "", parts=PARTS, tasks=200_000, singles=5_000, runs=3)
    run("enqueue", lambda dsn: enqueue(dsn, args.tasks, args.singles, args.parts), args)


if __name__ == "__main__":
    main()
