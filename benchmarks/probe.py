"""Probe: what the machine itself does while a benchmark runs, measured by a process that does nothing else.

A bare timer every 10 ms, a write of 8 kB with fdatasync every 100 ms, and the time that the hypervisor gave to others.
A figure of a benchmark can be no better than this.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TICK = 0.01  # seconds between two timers
TICKS_PER_WRITE = 10


class Probe:
    """The process that measures, from the first moment until `figures` is called."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.probe", str(directory)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def figures(self) -> dict[str, Any]:
        out, _ = self._process.communicate(timeout=10)
        found: dict[str, Any] = json.loads(out)
        return found


def quantiles(name: str, milliseconds: list[float]) -> dict[str, float]:
    ordered = sorted(milliseconds)
    places = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    last = len(ordered) - 1
    return {f"{name}_{word}_ms": round(ordered[min(int(len(ordered) * at), last)], 3) for word, at in places.items()}


def steal() -> tuple[int, int]:
    """Processor time that was stolen, and all of it, in ticks since the start of the machine."""
    times = [int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (times[7] if len(times) > 7 else 0), sum(times[:8])


def measure(directory: Path) -> dict[str, Any]:
    """Until the standard input is closed."""
    late: list[float] = []
    writes: list[float] = []
    stolen, whole = steal()
    path = directory / f"probe-{os.getpid()}"
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    path.unlink()
    due = time.monotonic() + TICK
    while not select.select([sys.stdin], [], [], 0)[0]:
        time.sleep(max(due - time.monotonic(), 0.0))
        late.append((time.monotonic() - due) * 1000)
        if len(late) % TICKS_PER_WRITE == 0:
            began = time.monotonic()
            os.pwrite(file, b"x" * 8192, 0)
            os.fdatasync(file)
            writes.append((time.monotonic() - began) * 1000)
        due = max(due + TICK, time.monotonic())
    stolen_now, whole_now = steal()
    return {
        **quantiles("timer", late or [0.0]),
        **quantiles("fdatasync", writes or [0.0]),
        "steal_percent": round(100 * (stolen_now - stolen) / max(whole_now - whole, 1), 2),
        "seconds": round(len(late) * TICK, 1),
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
