"""DeadProcessesLoop: expire at once the leases of sessions and servers whose process on this machine has died.

Every server does this: the leader may run on another machine and cannot see the processes of this one.
Writes  store.cluster.leases   (expired leases)
Next:   server/recovery/rescuer.py
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from mainspring.store.cluster import leases
from mainspring.store.postgres.database import Database

log = logging.getLogger("mainspring")


def process_identity(pid: int | None = None) -> str | None:
    """Identifies a process to others in the same kernel and pid namespace.

    None if it is dead or cannot be identified; then only its lease counts.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    fields = _status(pid or os.getpid())
    if fields is None or fields[0] in "ZX":  # a zombie is dead
        return None
    return f"{boot} {namespace} {pid or os.getpid()} {fields[19]}"


def _status(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def is_dead_process(identity: str) -> bool:
    """True only if the process would be visible from here and is not there."""
    own, parts = process_identity(), identity.split()
    if own is None or len(parts) != 4 or parts[:2] != own.split()[:2] or not parts[2].isdigit():
        return False
    pid = int(parts[2])
    return process_identity(pid) != identity if _status(pid) is not None else not _exists(pid)


def _exists(pid: int) -> bool:
    """By signal 0: /proc may hide processes of other users (hidepid, ProtectProc of systemd)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # it exists and is another user's
    return True


class DeadProcessesLoop:
    def __init__(self, database: Database) -> None:
        self._dedicated = database.dedicated("background")

    async def step(self) -> int:
        """Expire the leases of dead processes; returns how many leases."""
        async with self._dedicated as conn:
            dead = [process for process in await leases.processes(conn) if is_dead_process(process)]
            if not dead:
                return 0
            sessions, servers = await leases.end(conn, dead)
        if sessions:
            ids = ", ".join(map(str, sessions))
            log.warning("sessions that died with their process: %s; their tasks are rescued", ids)
        if servers:
            log.warning("servers that died with their process: %s; others take over", ", ".join(servers))
        return len(sessions) + len(servers)
