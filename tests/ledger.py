"""The jobs' own ledger: one line per event in one write, which stays whatever becomes of the process.

Nothing is flushed to the disk: the machine does not die in these tests, and a flush would hold the event loop.

Standard library only: a command that writes to it starts in a few milliseconds.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    task: int
    attempt: int
    token: int  # 0: a command, which knows none
    pid: int
    event: str
    at: int  # nanoseconds of boot time: one machine, one clock


class Ledger:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, task: int, attempt: int, token: int) -> None:
        line = {
            "task": task,
            "attempt": attempt,
            "token": token,
            "pid": os.getpid(),
            "event": event,
            "at": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read_ledger(path: Path) -> list[Line]:
    """All that was written, up to the last whole line."""
    text = path.read_bytes() if path.exists() else b""
    return [Line(**json.loads(line)) for line in text[: text.rfind(b"\n") + 1].splitlines()]
