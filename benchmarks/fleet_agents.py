"""Several agents in one process for benchmarks/fleet.py, each with a connection, a session and a lease of its own.

    python -m benchmarks.fleet_agents URLS TOKEN FIRST COUNT SLOTS

Prints a line when all are connected. A line on its standard input begins the measurement: starts and frames are
counted from there. When the input closes it drains its agents, and prints what it has counted, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from array import array
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.common import make_app
from mainspring import current_task
from mainspring.cli.runtime import run, settle_memory
from mainspring.compose.network import RemoteAgent
from mainspring.wire.websocket import WebSocketChannel

AT_ONCE = 10  # agents that connect at the same time
app = make_app()


class Notes:
    """When each handler started, and the frames of all agents here by what they carry."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.tasks, self.at = array("q"), array("d")
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    def as_json(self) -> str:
        return json.dumps(
            {"tasks": list(self.tasks), "at": list(self.at), "sent": self.sent, "received": self.received}
        )


notes = Notes()


@app.job(retries=0)
async def stamp() -> None:
    notes.at.append(time.time())
    notes.tasks.append(current_task().id)


def kind(frame: Any) -> str:
    """The messages of a frame, or `Ack` if it has none."""
    return "+".join(sorted({type(message).__name__ for message in frame.messages})) or "Ack"


def count_frames() -> None:
    """From here on, of every channel of this process."""
    send, receive = WebSocketChannel.send, WebSocketChannel.receive

    async def counted_send(self: Any, frame: Any) -> None:
        notes.sent[kind(frame)] += 1
        await send(self, frame)

    async def counted_receive(self: Any) -> Any:
        frame = await receive(self)
        notes.received[kind(frame)] += 1
        return frame

    WebSocketChannel.send, WebSocketChannel.receive = counted_send, counted_receive  # type: ignore[method-assign]


def watch_input(closed: asyncio.Event) -> None:
    def read() -> None:
        if os.read(0, 100):
            notes.clear()
        else:
            asyncio.get_running_loop().remove_reader(0)
            closed.set()

    asyncio.get_running_loop().add_reader(0, read)


async def main(urls: str, token: str, first: int, count: int, slots: int) -> None:
    closed, turn = asyncio.Event(), asyncio.Semaphore(AT_ONCE)
    watch_input(closed)
    async with AsyncExitStack() as stack:

        async def join(number: int) -> None:
            async with turn:
                given = {"server": urls, "token": token, "agent_name": f"fleet-{number}", "slots": slots}
                agent = RemoteAgent(app.settings(**given), app.handlers, app.name)
                await stack.enter_async_context(agent)
                await agent.joined(closed)

        await asyncio.gather(*(join(number) for number in range(first, first + count)))
        settle_memory()
        print("connected", flush=True)
        await closed.wait()
    print(notes.as_json(), flush=True)


if __name__ == "__main__":
    count_frames()
    first, count, slots = map(int, sys.argv[3:])
    run(main(sys.argv[1], sys.argv[2], first, count, slots))
