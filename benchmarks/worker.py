"""A worker process for the benchmarks: says when it is loaded, then runs until its standard input closes."""

from __future__ import annotations

import asyncio
import sys

import mainspring
from benchmarks.common import make_app
from mainspring.cli.runtime import run, settle_memory


async def main(app: mainspring.App) -> None:
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), closed.set)
    async with app.running():
        settle_memory()
        await closed.wait()


if __name__ == "__main__":
    app = make_app(sys.argv[1])
    print("loaded", flush=True)
    run(main(app))
