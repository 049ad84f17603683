"""The application of the benchmarks over the network: `--app benchmarks.app:app` of a server or an agent.

`stamp` appends its task and when it started, on this machine's clock, to the file that MAINSPRING_BENCH_STAMPS names.
In a server MAINSPRING_BENCH_CLAIMS names a file to which it appends seconds and tasks of each claim that found some.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from benchmarks.common import make_app
from mainspring import current_task
from mainspring.store.tasks import claims

app = make_app()


def _file(variable: str) -> int:
    return os.open(os.environ.get(variable, os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


_stamps = _file("MAINSPRING_BENCH_STAMPS")


@app.job(retries=0)
async def wait() -> None:
    """Waits as a call of somebody else's service does."""
    await asyncio.sleep(0.005)


@app.job(retries=0)
async def stamp() -> None:
    now = time.time()
    os.write(_stamps, f"{current_task().id} {now!r}\n".encode())


def _time_claims() -> None:
    """From the call until the rows are there; the dispatcher calls it for its pool and its agents, one at a time."""
    file, claim = _file("MAINSPRING_BENCH_CLAIMS"), claims.claim

    async def timed(*args: Any, **options: Any) -> claims.Claim:
        began = time.perf_counter()
        claimed = await claim(*args, **options)
        if claimed.size:
            os.write(file, f"{time.perf_counter() - began:.6f} {claimed.size}\n".encode())
        return claimed

    claims.claim = timed


if "MAINSPRING_BENCH_CLAIMS" in os.environ:
    _time_claims()
