"""Footprint: start-up to the first task run, and memory and CPU of an idle worker process."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import psutil

from benchmarks.common import arguments, connection, empty_tables, make_app, run


async def footprint(dsn: str, seconds: int) -> dict[str, Any]:
    async with connection(dsn) as conn, make_app(dsn) as app:
        await empty_tables(conn)
        task = await app["noop"].enqueue()
        began = time.perf_counter()
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.worker", dsn, stdin=asyncio.subprocess.PIPE
        )
        try:
            await task.result(timeout=60)
            started = time.perf_counter() - began
            process = psutil.Process(child.pid)
            await asyncio.sleep(3.0)  # the work of starting is over
            before = process.cpu_times()
            await asyncio.sleep(seconds)
            after = process.cpu_times()
            cpu = (after.user + after.system - before.user - before.system) / seconds
            memory = process.memory_info().rss / 2**20
        finally:
            assert child.stdin is not None
            child.stdin.close()
            await child.wait()
    return {
        "startup_s": round(started, 3),
        "idle_memory_mb": round(memory, 1),
        "idle_cpu_percent": round(cpu * 100, 2),
    }


def main() -> None:
    args = arguments(__doc__ or "", seconds=10, runs=3)
    run("footprint", lambda dsn: footprint(dsn, args.seconds), args)


if __name__ == "__main__":
    main()
