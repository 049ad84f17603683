"""Identity: the id and number of a server or an agent, kept in a file, so that they are the same after a restart.

Several may share a directory: each locks a file that no living process has locked, and takes its id and number.

    server-1.id    locked by the process that is this server; the kernel releases the lock when it dies
    agent-1.id     the same for an agent without a name, which is named by the host and this number

Next: server/cluster/membership.py
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal
from uuid import UUID, uuid4

with suppress(ImportError):  # there is none for Windows
    import fcntl

log = logging.getLogger("mainspring")

MOST = 1000  # servers, and as many agents, that share a directory


class Identity:
    """Locked until `close`; `number` counts the processes of one kind and directory from 1."""

    def __init__(self, id: UUID, number: int = 1, lock: int | None = None) -> None:
        self.id = id
        self.number = number
        self._lock = lock

    @classmethod
    def of(cls, directory: Path, kind: Literal["server", "agent"] = "server") -> Identity:
        """The first free id of this directory; a new one for this run only if none can be stored."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for number in range(1, MOST):
                if (taken := cls._take(directory / f"{kind}-{number}.id", number)) is not None:
                    return taken
            log.warning("%d %ss share %s; this one has an id for this run only", MOST, kind, directory)
        except (OSError, NameError) as error:
            log.info("the id of this %s cannot be kept in %s (%s); it is for this run only", kind, directory, error)
        return cls(uuid4())

    @classmethod
    def _take(cls, path: Path, number: int) -> Identity | None:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        except BaseException:
            os.close(lock)
            raise
        try:
            id = UUID(os.pread(lock, 100, 0).decode("ascii", "replace").strip())
        except ValueError:  # new, or its writer died before it was written
            id = uuid4()
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{id}\n".encode(), 0)
            os.fsync(lock)
        return cls(id, number, lock)

    def name_on(self, host: str) -> str:
        """A name for the process on this host: web-1, then web-1-2 and so on."""
        return host if self.number == 1 else f"{host}-{self.number}"

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
