"""Identity: a server's id, kept in a file, so that it is the same server after a restart.

Several servers may share a directory: each locks a file that no living process has locked, and takes its id.

    server-1.id    locked by the process that is this server; the kernel releases the lock when it dies

Next: server/cluster/membership.py
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

with suppress(ImportError):  # there is none for Windows
    import fcntl

log = logging.getLogger("mainspring")

MOST = 1000  # servers that share a directory


class Identity:
    """Locked until `close`; `number` counts the servers of one directory from 1."""

    def __init__(self, id: UUID, number: int = 1, lock: int | None = None) -> None:
        self.id = id
        self.number = number
        self._lock = lock

    @classmethod
    def of(cls, directory: Path) -> Identity:
        """The first free id of this directory; a new one for this run only if none can be stored."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for number in range(1, MOST):
                if (taken := cls._take(directory, number)) is not None:
                    return taken
            log.warning("%d servers share %s; this one has an id for this run only", MOST, directory)
        except (OSError, NameError) as error:
            log.info("the server's id cannot be kept in %s (%s); it has one for this run only", directory, error)
        return cls(uuid4())

    @classmethod
    def _take(cls, directory: Path, number: int) -> Identity | None:
        lock = os.open(directory / f"server-{number}.id", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
