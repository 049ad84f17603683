"""A worker process for the benchmarks: runs until its standard input closes."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from benchmarks.common import make_app, settle_gc


async def main() -> None:
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), closed.set)
    async with make_app(sys.argv[1]).running():
        await closed.wait()


if __name__ == "__main__":
    settle_gc()
    uvloop.run(main())
