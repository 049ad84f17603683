"""The system's processes as the guardian sees them: its children and what is below them, signalled and reaped.

Imports the standard library only, as all that the guardian runs.
Next: agent/guardian/groups.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress


def signal_group(pid: int, number: int) -> bool:
    """True if the group had a process that we may signal (a zombie counts as one)."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_process(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def reap(*, before: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """Reap each child that has exited; `before` is called while its process id is still taken."""
    with suppress(ChildProcessError):
        if not hasattr(os, "waitid"):  # macOS before Python 3.13: an instant after it, not before
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                before(reaped[0])
                yield reaped[0], os.waitstatus_to_exitcode(reaped[1])
            return
        while exited := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            before(exited.si_pid)
            pid, status = os.waitpid(exited.si_pid, 0)
            yield pid, os.waitstatus_to_exitcode(status)


def children() -> list[int]:
    """Ours, and as we are their reaper the orphans of commands too. Elsewhere than on Linux those
    go to process 1, and what leaves its group is out of our sight."""
    return _listed("/proc/thread-self/children")


def descendants(*roots: int) -> set[int]:
    """All that is below these processes, and they themselves."""
    found: set[int] = set()
    waiting = set(roots)
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                waiting.update(_listed(f"/proc/{pid}/task/{thread}/children"))
        waiting -= found
    return found


def variables(pid: int) -> set[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()


def _listed(path: str) -> list[int]:
    try:
        with open(path, "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []
