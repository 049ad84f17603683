"""Groups: the processes of one command, which the guardian pauses and ends together.

Most are in the process group of the leader. One that left it by setsid() is found as a descendant, or, once its
parent has exited, by its environment variables.
Next: agent/guardian/process_table.py
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

from mainspring.agent.guardian.process_table import children, descendants, signal_group, signal_process, variables

NEVER = float("inf")
ROUNDS = 20  # of looking for processes forked since the last round; a stopped process does not fork


class Group:
    """One command: its leader, the leader's process group, and the processes that escaped from it."""

    __slots__ = ("asked", "exit_code", "expired", "kill_at", "marks", "number", "paused", "process")

    def __init__(self, number: int, process: subprocess.Popen[bytes], marks: list[str]) -> None:
        self.number = number
        self.process = process
        self.marks = {os.fsencode(mark) for mark in marks}
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

    def owns(self, its_variables: set[bytes]) -> bool:
        return self.marks <= its_variables

    def is_alive(self) -> bool:
        return signal_group(self.process.pid, 0)

    def signal_escaped(self, escaped: set[int], *, kill: bool) -> None:
        """They are children of the guardian and reaped by it: their ids cannot have been reused."""
        for pid in escaped if kill else escaped - self.asked:
            with suppress(PermissionError):
                os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        self.asked |= escaped

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
        escaped = [pid for pid in children() if self.owns(variables(pid))]
        leader = [self.process.pid] if self.exit_code is None else []  # a reaped id may have been reused
        return descendants(*leader, *escaped)
