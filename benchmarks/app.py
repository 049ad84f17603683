"""The application of the benchmarks over the network: `--app benchmarks.app:app` of a server or an agent.

`stamp` appends its task and when it started, on this machine's clock, to the file that MAINSPRING_BENCH_STAMPS names.
"""

from __future__ import annotations

import os
import time

from benchmarks.common import make_app
from mainspring import current_task

app = make_app()

_path = os.environ.get("MAINSPRING_BENCH_STAMPS", os.devnull)
_stamps = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.job(retries=0)
async def stamp() -> None:
    now = time.time()
    os.write(_stamps, f"{current_task().id} {now!r}\n".encode())
