"""The application of the network journeys: `tests.journey.network_app:app`, for servers, agents and the test itself.

Each job appends what it does to the ledger that MAINSPRING_TEST_LEDGER names, one line at a time. A run is seen by
its lines: `start`, a `beat` every now and then, and `effect` at its end. Commands do the same, and know
no token: tests/journey/network_command.py.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from mainspring import App, current_task, current_tasks
from tests.journey.network_command import BEAT
from tests.ledger import Ledger

LEDGER = "MAINSPRING_TEST_LEDGER"
ROOT = Path(__file__).parents[2]


def make_app(dsn: str | None = None) -> App:
    app = App("network", dsn=dsn)
    path = os.environ.get(LEDGER, os.devnull)
    ledger = Ledger(path)

    def note(event: str) -> None:
        task = current_task()
        ledger.write(event, task.id, task.attempt, task.token)

    async def last(wait: float) -> None:
        note("start")
        until = time.monotonic() + wait
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, BEAT))
            note("beat")
        note("effect")

    @app.job(retries=10, retry_delay="10ms")
    async def work(wait: float = 0.0) -> None:
        await last(wait)

    @app.job(chunk=10, chunk_wait="100ms", retries=10, retry_delay="10ms")
    async def load(waits: list[float]) -> None:
        """One call for several tasks: each is seen by its lines."""

        def note_all(event: str) -> None:
            for task in current_tasks():
                ledger.write(event, task.id, task.attempt, task.token)

        note_all("start")
        until = time.monotonic() + max(waits)
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, BEAT))
            note_all("beat")
        note_all("effect")

    @app.job(requires={"full": "yes"})
    async def hog(wait: float) -> None:
        """For an agent that is to be full."""
        await last(wait)

    @app.job(delivery="at_most_once")
    async def launch(wait: float = 0.0) -> None:
        await last(wait)

    @app.job(retries=0)
    async def stamp() -> float:
        """When it ran, on this machine's clock, which all its processes share."""
        note("effect")
        return time.time()

    # A clean environment finds neither our modules nor theirs.
    paths = os.pathsep.join(dict.fromkeys([str(ROOT), *(entry for entry in sys.path if entry)]))
    program = [sys.executable, "-m", "tests.journey.network_command", path]
    for name, seconds in (("command", "2"), ("stay", "86400")):
        app.command(name, [*program, seconds], env={"PYTHONPATH": paths}, retries=10, retry_delay="10ms", grace="1s")
    return app


app = make_app()
