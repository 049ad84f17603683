"""`mainspring` and `python -m mainspring`: the command line.

Imports nothing before it handles Ctrl-C: the imports take longer than a person needs to change their mind.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> int:
    """Run the command line; returns the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored, as by nohup
        signal.signal(signal.SIGINT, _stop)
    from mainspring.cli.main import main as run

    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


def _stop(_number: int, _frame: FrameType | None) -> None:
    """Nothing has begun: an exception here would only end in a traceback, of whatever was being imported."""
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
