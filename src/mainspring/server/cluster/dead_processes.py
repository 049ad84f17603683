"""DeadProcessesLoop: processes on the same machine that died. Nobody has to wait for the leases of theirs.

Every server looks, for a leader elsewhere could not see them.
Writes  store.neighbours    (leases of sessions and of servers that are over)
Next:   server/recovery/rescuer.py
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from mainspring.store.cluster import dead_processes
from mainspring.store.postgres.database import Database

log = logging.getLogger("mainspring")


def process_identity(pid: int | None = None) -> str | None:
    """Names a process so that a neighbour in the same kernel and pid namespace can see whether it lives.

    None where that cannot be told; then only the lease counts.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    fields = _status(pid or os.getpid())
    if fields is None or fields[0] in "ZX":  # it is dead, and only nobody has asked how it ended
        return None
    return f"{boot} {namespace} {pid or os.getpid()} {fields[19]}"


def _status(pid: int) -> list[str] | None:
    """What the system shows of a process, from its state on; None: nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def is_dead_process(identity: str) -> bool:
    """True only if the process could be seen from here and is gone."""
    own, parts = process_identity(), identity.split()
    if own is None or len(parts) != 4 or parts[:2] != own.split()[:2] or not parts[2].isdigit():
        return False
    pid = int(parts[2])
    return process_identity(pid) != identity if _status(pid) is not None else not _is_there(pid)


def _is_there(pid: int) -> bool:
    """By a signal that does nothing: /proc may hide what other users run (hidepid, ProtectProc of systemd)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # it is there, and another user's
    return True


class DeadProcessesLoop:
    def __init__(self, database: Database) -> None:
        self._line = database.line("errands")

    async def step(self) -> int:
        """End the leases of those whose process died; returns how many processes did."""
        async with self._line as conn:
            dead = [process for process in await dead_processes.processes(conn) if is_dead_process(process)]
            if not dead:
                return 0
            sessions, servers = await dead_processes.end(conn, dead)
        if sessions:
            log.warning(
                "sessions that died with their process: %s; their tasks are rescued", ", ".join(map(str, sessions))
            )
        if servers:
            log.warning("servers that died with their process: %s; others take over", ", ".join(servers))
        return len(sessions) + len(servers)

    async def close(self) -> None:
        await self._line.close()
