"""Probe: what the machine itself does while a benchmark runs, measured by two processes that do nothing else.

One waits for a timer every 10 ms, on a timerfd where the system has one: no timer of ours can be more exact. The other
writes 8 kB with fdatasync every 100 ms, and reads the processor time that the hypervisor gave to others. They are
apart, so that a slow disk delays no timer. A figure of a benchmark can be no better than this.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

TICK = 0.01  # seconds between two timers
WRITE_EVERY = 0.1  # seconds
STDIN = 0
_TFD_TIMER_ABSTIME = 1


class Probe:
    """The processes that measure, from the first moment until `figures` is called."""

    def __init__(self, directory: Path) -> None:
        self._timer = self._start("timer")
        self._writer = self._start("writes", str(directory))

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.probe", *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def timer_between(self, began: float, ended: float) -> dict[str, float]:
        """How late the timers were that were due in this span, in seconds since 1970."""
        assert self._timer.stdin is not None
        assert self._timer.stdout is not None
        self._timer.stdin.write(f"{began!r} {ended!r}\n")
        self._timer.stdin.flush()
        found: dict[str, float] = json.loads(self._timer.stdout.readline())
        return found

    def figures(self) -> dict[str, Any]:
        """Of the whole time. The processes end."""
        found: dict[str, Any] = {}
        for process in (self._timer, self._writer):
            out, _ = process.communicate(timeout=10)
            found |= json.loads(out)
        return found


def quantiles(name: str, milliseconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(milliseconds) or [0.0]
    places = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    last = len(ordered) - 1
    return {f"{name}_{word}_ms": round(ordered[min(int(len(ordered) * at), last)], 3) for word, at in places.items()}


class Timer:
    """Waits for an instant of the monotonic clock, or until the standard input has something to read."""

    def __init__(self) -> None:
        self._fd = -1
        if sys.platform == "linux":
            with suppress(OSError, AttributeError):
                self._libc = ctypes.CDLL(None, use_errno=True)
                self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)

    def is_asked_before(self, due: float) -> bool:
        """Returns at `due`, or earlier and true if the standard input can be read."""
        if self._fd < 0:
            return bool(select.select([STDIN], [], [], max(due - time.monotonic(), 0.0))[0])
        seconds, nanoseconds = divmod(int(due * 1e9), 1_000_000_000)
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, struct.pack("qqqq", 0, 0, seconds, nanoseconds), None)
        return STDIN in select.select([STDIN, self._fd], [], [])[0]


def watch_timer() -> dict[str, Any]:
    """Until the standard input is closed. Each line on it is a span, of which the figures are printed.

    After a stall every timer that was due meanwhile counts, as every task would.
    """
    timer = Timer()
    instants, late = array("d"), array("d")
    questions = os.fdopen(STDIN, "r", closefd=False)
    due = time.monotonic() + TICK
    while True:
        if timer.is_asked_before(due):
            line = questions.readline()
            if not line:
                return {**quantiles("timer", late), "seconds": round(len(late) * TICK, 1)}
            began, ended = (float(word) + time.monotonic() - time.time() for word in line.split())
            those = [late[number] for number, at in enumerate(instants) if began <= at <= ended]
            print(json.dumps(quantiles("timer", those)), flush=True)
            due = time.monotonic()  # the time of this answer is not the machine's
        else:
            instants.append(due)
            late.append((time.monotonic() - due) * 1000)
        due += TICK


def watch_writes(directory: Path) -> dict[str, Any]:
    """Until the standard input is closed."""
    writes = array("d")
    stolen, whole = steal()
    path = directory / f"probe-{os.getpid()}"
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    path.unlink()
    while not select.select([STDIN], [], [], WRITE_EVERY)[0]:
        began = time.monotonic()
        os.pwrite(file, b"x" * 8192, 0)
        os.fdatasync(file)
        writes.append((time.monotonic() - began) * 1000)
    stolen_now, whole_now = steal()
    percent = 100 * (stolen_now - stolen) / max(whole_now - whole, 1)
    return {**quantiles("fdatasync", writes), "steal_percent": round(percent, 2)}


def steal() -> tuple[int, int]:
    """Processor time that was stolen, and all of it, in ticks since the start of the machine; nothing outside Linux."""
    try:
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return 0, 0
    times = [int(part) for part in line.split()[1:]]
    return (times[7] if len(times) > 7 else 0), sum(times[:8])


if __name__ == "__main__":
    print(json.dumps(watch_timer() if sys.argv[1] == "timer" else watch_writes(Path(sys.argv[2]))))
