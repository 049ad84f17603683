"""Many agents in one process that have nothing to do: each with a connection, a session and a lease of its own.

    python -m benchmarks.idle_agents URL TOKEN COUNT

Prints a line when all are connected; runs until its standard input closes.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

from mainspring.cli.runtime import run, settle_memory
from mainspring.config import load

AT_ONCE = 20  # agents that connect at the same time


async def main(url: str, token: str, count: int) -> None:
    network: Any = import_module("mainspring.compose.network")
    closed, turn = asyncio.Event(), asyncio.Semaphore(AT_ONCE)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), closed.set)
    async with AsyncExitStack() as stack:

        async def join(number: int) -> None:
            async with turn:
                settings = load({"server": url, "token": token, "agent_name": f"idle-{number}", "slots": 4})
                agent = await stack.enter_async_context(network.RemoteAgent(settings, {}, None))
                await agent.joined(closed)

        await asyncio.gather(*(join(number) for number in range(count)))
        settle_memory()
        print("connected", flush=True)
        await closed.wait()


if __name__ == "__main__":
    run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
