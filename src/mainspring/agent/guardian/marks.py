"""Marks: how the guardian recognises the processes of a command, whatever they did to leave it.

The mark is the soft limit RLIMIT_RTTIME, which concerns real-time scheduling only. The kernel copies it at fork, keeps
it at exec, setsid() and setuid(), and shows it to everyone in /proc/PID/limits. Environment variables are no mark:
`env -i` drops them, and a process has none for an instant while it is in exec.
Next: agent/guardian/groups.py
"""

from __future__ import annotations

import os
import resource

_KIND: int | None = getattr(resource, "RLIMIT_RTTIME", None)  # Linux only
_LINE = b"Max realtime timeout"
UNMARKED = -1
_FAR = 1 << 62  # microseconds: no real-time process comes near it


class Marks:
    """Gives each command a mark that no other command of this guardian has."""

    def __init__(self) -> None:
        # Random, so that a command which runs an agent of its own does not have the marks of that agent's commands.
        self._first = _FAR + (int.from_bytes(os.urandom(3)) << 32)
        self._hard = resource.RLIM_INFINITY
        if _KIND is not None:
            self._hard = resource.getrlimit(_KIND)[1]
            if self._hard != resource.RLIM_INFINITY:
                self._first = min(self._first, self._hard)

    def set(self, number: int) -> int | None:
        """Mark this process as the command `number`: the next child inherits it. None where there are no marks.

        The guardian keeps it until the next start: a start needs no code between fork and exec, and stays a vfork."""
        if _KIND is None:
            return None
        mark = self._first - number % (self._first // 2 + 1)
        resource.setrlimit(_KIND, (mark, self._hard))
        return mark


def mark_of(pid: int) -> int | None:
    """The mark of a process, even of a zombie; UNMARKED if the process has removed it; None if it cannot be read."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            value = file.read().partition(_LINE)[2].split(maxsplit=1)[0]
    except (OSError, IndexError):
        return None
    return int(value) if value.isdigit() else UNMARKED
