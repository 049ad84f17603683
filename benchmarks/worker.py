"""A worker process for the benchmarks: runs until its standard input closes."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.common import make_app
from mainspring.cli.runtime import run, settle_memory


async def main() -> None:
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), closed.set)
    async with make_app(sys.argv[1]).running():
        settle_memory()
        await closed.wait()


if __name__ == "__main__":
    run(main())
