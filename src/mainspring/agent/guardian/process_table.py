"""Process table: the guardian's children and their descendants; signal and reap them.

Next: agent/run/endings.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress


def signal_group(pid: int, number: int) -> bool:
    """True if the group has a process that may be signalled (a zombie counts)."""
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
        if not hasattr(os, "waitid"):  # macOS before Python 3.13: called an instant after it
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                before(reaped[0])
                yield reaped[0], os.waitstatus_to_exitcode(reaped[1])
            return
        while exited := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            before(exited.si_pid)
            pid, status = os.waitpid(exited.si_pid, 0)
            yield pid, os.waitstatus_to_exitcode(status)


def children() -> list[int]:
    """The guardian's, including orphans of commands, as it is their subreaper. Elsewhere than on Linux those go to
    process 1, and a process that leaves its group is not found."""
    return _listed("/proc/thread-self/children")


def descendants(*roots: int) -> set[int]:
    """These processes and everything below them."""
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
