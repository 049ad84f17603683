"""The application of the journeys, and a worker process that runs it until SIGTERM.

Each handler appends what it does to a ledger of its own, in one write per line: one machine, one clock, and a line
that was written stays whatever becomes of the process.
    python -m tests.journey.worker DSN LEDGER [SETTING=VALUE ...]
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from mainspring import App, current_task


class Ledger:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str) -> None:
        task = current_task()
        line = {
            "task": task.id,
            "attempt": task.attempt,
            "token": task.token,
            "pid": os.getpid(),
            "event": event,
            "at": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")


def make_app(dsn: str, ledger: Ledger | None = None, **settings: Any) -> App:
    app = App("journey", dsn=dsn, **settings)

    def note(event: str) -> None:
        assert ledger is not None
        ledger.write(event)

    async def on_record(checkpoint: Any = None) -> None:
        """Wait until the database knows that this task runs, and its checkpoint."""
        while True:
            status = await app.status(current_task().id)
            if status.state == "running" and status.checkpoint == checkpoint:
                return
            await asyncio.sleep(0.01)

    @app.job(retries=3, retry_delay="10ms")
    async def work(wait: float = 0.0) -> None:
        await asyncio.sleep(wait)
        note("effect")

    @app.job(retries=0)
    async def hold(gate: str) -> int:
        """Runs until the file `gate` is there."""
        note("start")
        while not Path(gate).exists():
            await asyncio.sleep(0.01)
        note("effect")
        return current_task().attempt

    @app.job(retries=0)
    def hold_sync(gate: str) -> int:
        note("start")
        while not Path(gate).exists():
            time.sleep(0.01)
        note("effect")
        return current_task().attempt

    @app.job(retries=3, retry_delay="10ms", concurrency_key="{key}", max_running=12)
    async def exclusive(key: str) -> None:
        """Alone with its key, and one of twelve."""
        note(f"enter {key}")
        await asyncio.sleep(0.005)
        note(f"leave {key}")

    @app.job(retries=3, retry_delay="10ms")
    async def copy_in_steps() -> list[int]:
        """Dies once, after its first checkpoint is durable."""
        task = current_task()
        done = list(task.checkpoint or [])
        if not done:
            task.checkpoint = [task.attempt]
            await on_record(task.checkpoint)
            os.kill(os.getpid(), signal.SIGKILL)
        return [*done, task.attempt]

    @app.job(delivery="effectively_once", retries=5, retry_delay="10ms")
    async def pay(die: str) -> None:
        """Dies at its first attempt, before or after the commit."""
        task = current_task()
        first = task.checkpoint is None
        if first:
            task.checkpoint = "began"
            await on_record(task.checkpoint)
        async with task.transaction() as conn:
            await conn.execute("insert into public.effect values ($1, $2)", task.id, task.token)
            if first and die == "before the commit":
                os.kill(os.getpid(), signal.SIGKILL)
        if first and die == "after the commit":
            os.kill(os.getpid(), signal.SIGKILL)

    @app.job(delivery="at_most_once")
    async def launch(gate: str) -> None:
        note("start")
        while not Path(gate).exists():
            await asyncio.sleep(0.01)
        note("effect")

    @app.job(broadcast=True, retries=0)
    async def everywhere() -> None:
        note("effect")

    @app.job(broadcast=True, retries=3, retry_delay="10ms")
    async def hold_everywhere(gate: str) -> None:
        note("start")
        while not Path(gate).exists():
            await asyncio.sleep(0.01)
        note("effect")

    @app.job(retries=10, retry_delay="10ms")
    async def crash() -> None:
        """Takes its process along, each time."""
        note("start")
        await on_record()
        os.kill(os.getpid(), signal.SIGKILL)

    @app.job
    async def stand() -> None:
        """A daemon: writes that it is there, again and again."""
        while True:
            note("beat")
            await asyncio.sleep(0.02)

    return app


async def main(dsn: str, path: str, *settings: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    given = dict(setting.split("=", 1) for setting in settings)
    async with make_app(dsn, Ledger(Path(path)), **given).running():
        print("ready", flush=True)
        await stopped.wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
