"""Sixteen processes that submit to one bounded queue, killed at random and started again.

    python -m tests.store.flows.submitters DSN DIRECTORY KILLS SEED

Each submits a task at a time and notes what was accepted; a full queue makes it wait a moment. After so many kills, and
once standard input is closed, all are killed. They are forked, so that a new one is there within milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

import asyncpg

SUBMITTERS = 16
JOB = "busy"


async def submit(dsn: str, accepted: Path) -> None:
    conn = await asyncpg.connect(dsn)
    while True:
        try:
            task = await conn.fetchval("select mainspring.enqueue($1)", JOB)
        except asyncpg.PostgresError as error:
            if error.sqlstate != "MSQ01":
                raise
            await asyncio.sleep(0.002)
            continue
        with accepted.open("a") as file:
            file.write(f"{task}\n")


def start(dsn: str, directory: Path) -> int:
    if (pid := os.fork()) > 0:
        return pid
    try:
        asyncio.run(submit(dsn, directory / str(os.getpid())))
    finally:
        os._exit(1)


def main(dsn: str, directory: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    living = [start(dsn, directory) for _ in range(SUBMITTERS)]
    while kills > 0 or not told_to_end():
        kills -= 1
        time.sleep(chance.uniform(0.01, 0.1))
        victim = chance.randrange(SUBMITTERS)
        end(living[victim])
        living[victim] = start(dsn, directory)
    for pid in living:
        end(pid)


def told_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "it ended by itself"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
