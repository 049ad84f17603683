"""Groups: the processes of one command, which the guardian pauses and ends together; how processes are found, signalled
and reaped.

Most are in the process group of the leader. One that left it by setsid() is found as a descendant, or, once its
parent has exited, as a child of the guardian that carries the mark of the group.
Next: agent/run/endings.py
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress

from mainspring.agent.guardian.marks import mark_of

NEVER = float("inf")
ROUNDS = 20  # of looking for processes forked since the last round; a stopped process does not fork


class Group:
    """One command: its leader, the leader's process group, and the processes that escaped from it."""

    __slots__ = ("asked", "exit_code", "expired", "kill_at", "mark", "number", "paused", "process")

    def __init__(self, number: int, process: subprocess.Popen[bytes], mark: int | None) -> None:
        self.number = number
        self.process = process
        self.mark = mark
        self.asked: set[int] = set()  # escaped processes that were sent TERM
        self.exit_code: int | None = None  # of the leader, once it is reaped
        self.kill_at = NEVER  # set once: the group is being ended
        self.paused = False
        self.expired = False  # killed because the agent's lease expired

    def pause(self, *, resume: bool) -> None:
        self.paused = not resume
        self._signal_all(signal.SIGCONT if resume else signal.SIGSTOP)

    def end(self, kill_at: float) -> None:
        """Send TERM; a paused group is resumed, or it would not receive it."""
        self.kill_at = kill_at
        signal_group(self.process.pid, signal.SIGTERM)
        if self.paused:
            self.pause(resume=True)

    def kill(self) -> None:
        signal_group(self.process.pid, signal.SIGKILL)

    def is_alive(self) -> bool:
        return signal_group(self.process.pid, 0)

    def signal_escaped(self, pid: int, *, kill: bool) -> None:
        """It is a child of the guardian and reaped by it: its id cannot have been reused."""
        if kill or pid not in self.asked:
            signal_process(pid, signal.SIGKILL if kill else signal.SIGTERM)
            self.asked.add(pid)

    def _signal_all(self, number: int) -> None:
        """Also the processes that escaped from the group."""
        signal_group(self.process.pid, number)
        signalled: set[int] = set()
        nothing_new = 0
        for _ in range(ROUNDS):
            new = self._members() - signalled
            nothing_new = 0 if new else nothing_new + 1
            if nothing_new == 2:  # one round can miss a child while others come and go
                return
            for pid in new:
                signal_process(pid, number)
            signalled |= new

    def _members(self) -> set[int]:
        escaped = [pid for pid in children() if mark_of(pid) == self.mark]
        leader = [self.process.pid] if self.exit_code is None else []  # a reaped id may have been reused
        return descendants(*leader, *escaped)


# ── the processes of the system ─────────────────────────────────────────────────────────────────


def signal_group(pid: int, number: int) -> bool:
    """True if the group has a process that may be signalled (a zombie counts)."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_process(pid: int, number: int) -> bool:
    """False if it has exited, or belongs to a user whose processes may not be signalled."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


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
    """The guardian's, including orphans of commands, as it is their subreaper. None is missed: a child leaves this list
    only when the guardian reaps it. Elsewhere than on Linux orphans go to process 1, and one that has left its group is
    not found."""
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


def _listed(path: str) -> list[int]:
    try:
        with open(path, "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []
