"""The application of the network journeys: `tests.journey.network_app:app`, for servers, agents and the test itself.

Each job appends what it does to the ledger that MAINSPRING_TEST_LEDGER names, one fsynced line at a time. A run is
seen by its lines: `start`, a `beat` every now and then, and `effect` at its end. Commands do the same, and know
no token. As a program this module is that command:
    python -m tests.journey.network_app LEDGER SECONDS
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from mainspring import App, current_task
from tests.ledger import Ledger

LEDGER = "MAINSPRING_TEST_LEDGER"
BEAT = 0.05  # seconds
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
    program = [sys.executable, "-m", "tests.journey.network_app", path]
    for name, seconds in (("command", "2"), ("stay", "86400")):
        app.command(name, [*program, seconds], env={"PYTHONPATH": paths}, retries=10, retry_delay="10ms", grace="1s")
    return app


def command(path: str, seconds: float) -> None:
    """Write lines for so long; a SIGTERM ends it without an effect."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ledger = Ledger(path)
    task, attempt = int(os.environ["MAINSPRING_TASK_ID"]), int(os.environ["MAINSPRING_ATTEMPT"])
    ledger.write("start", task, attempt, 0)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, BEAT))
        ledger.write("beat", task, attempt, 0)
    ledger.write("effect", task, attempt, 0)


if __name__ == "__main__":
    command(sys.argv[1], float(sys.argv[2]))
else:
    app = make_app()
