"""Privacy: what other processes can read of this one: its environment, its arguments, its memory. Linux only.

/proc/PID/environ and /proc/PID/cmdline show the memory where the kernel put them at exec. Removing a variable does not
change that memory; overwriting it does, for root as well. Imports the standard library only.
Next: agent/guardian/guardian.py
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from contextlib import suppress

_PR_SET_DUMPABLE = 4
_ARGUMENTS, _ENVIRONMENT = 48, 50  # the fields of /proc/self/stat with the first address; the next one has the last


def forbid_dumps() -> None:
    """From now on only root can read this process's memory, environment and descriptors, or trace it. It writes no
    core dump. Programs that it starts are not affected: exec resets this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def hide_environment() -> None:
    """Copy the environment to other memory, and overwrite the first copy. Nothing changes for this process and for
    programs that it starts. Call it before there are threads: another one may be reading a variable."""
    area = _area(_ENVIRONMENT)
    if area is None:
        return
    for name, value in os.environb.items():
        os.putenv(name, value)  # the C library points to its own copy from now on
    ctypes.memset(area[0], 0, area[1] - area[0])


def hide_arguments(secrets: Iterable[str]) -> None:
    """Overwrite these words in the command line that `ps` shows. They were visible until now."""
    area = _area(_ARGUMENTS)
    if area is None:
        return
    shown = ctypes.string_at(area[0], area[1] - area[0])
    for secret in filter(None, map(os.fsencode, secrets)):
        at = shown.find(secret)
        while at >= 0:
            ctypes.memset(area[0] + at, ord("*"), len(secret))
            at = shown.find(secret, at + len(secret))


def _area(field: int) -> tuple[int, int] | None:
    """The memory of arguments or environment; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # from the third field on
        first, last = int(fields[field - 3]), int(fields[field - 2])
        if 0 < first < last:
            return first, last
    return None
