"""The command of the torture run: writes to the ledger as the handlers do, and knows no token.

    python -I -S tests/torture/command.py LEDGER        with the task's arguments in MAINSPRING_ARGS

A process of its own that imports next to nothing: many are started.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.ledger import Ledger

BEAT = 0.2  # seconds


def main(path: str) -> int:
    """A SIGTERM ends it without an effect."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    args = json.loads(os.environ["MAINSPRING_ARGS"])
    task, attempt = int(os.environ["MAINSPRING_TASK_ID"]), int(os.environ["MAINSPRING_ATTEMPT"])
    ledger = Ledger(path)
    ledger.write("start", task, attempt, 0)
    until = time.monotonic() + args.get("wait", 0.0)
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, BEAT))
        ledger.write("beat", task, attempt, 0)
    if attempt <= args.get("fails", 0):
        ledger.write("fail", task, attempt, 0)
        return 3
    ledger.write("effect", task, attempt, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
