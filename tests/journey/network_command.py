"""The command of the network journeys, which writes to the jobs' ledger as handlers do.

    python -m tests.journey.network_command LEDGER SECONDS

Standard library only: many of it start at once, and what it imports takes the time of what they test.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from tests.ledger import Ledger

BEAT = 0.05  # seconds


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
