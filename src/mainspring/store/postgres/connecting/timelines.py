"""Timelines: refuse an old primary that comes back after a failover.

Each promotion of a standby begins a new timeline of the same system. A process that has seen one refuses the earlier
ones and cuts its connections to them. A small file keeps the highest timeline for the next process (decision 19).

Reads, writes  `file`, if there is one
Next:          store/postgres/connecting/reconnect.py
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from mainspring.errors import StoreUnavailable
from mainspring.store.postgres.connection import Connection

log = logging.getLogger("mainspring")


class _Origin(NamedTuple):
    system: str
    timeline: int
    loop: asyncio.AbstractEventLoop | None


class Timelines:
    """The highest timeline seen, by system; `file` keeps it across restarts. Threads share it."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._seen = _read(file)
        self._connections: WeakKeyDictionary[Connection, _Origin] = WeakKeyDictionary()

    def admit(self, conn: Connection, where: str, system: str, timeline: int) -> None:
        """Note the timeline of a new connection; StoreUnavailable if a newer one was seen."""
        with self._lock:
            self._admit(conn, where, system, timeline)

    def _admit(self, conn: Connection, where: str, system: str, timeline: int) -> None:
        loop = _running_loop()
        before = self._seen.get(system, 0)
        if timeline > before:
            self._seen[system] = timeline
            self._save()
            for other, known in list(self._connections.items()):
                if known.system == system and known.timeline < timeline:
                    # It is to the old primary: there are two primaries now.
                    if known.loop is None or known.loop is loop:
                        other.terminate()
                    else:
                        with suppress(RuntimeError):  # its loop has ended
                            known.loop.call_soon_threadsafe(other.terminate)
            if before:
                log.warning("PostgreSQL failed over to %s, from timeline %d to %d", where, before, timeline)
        newest = self._seen[system]
        if timeline < newest:
            raise StoreUnavailable(
                f"PostgreSQL at {where} is on timeline {timeline}, and {newest} has been seen: the old primary is "
                f"back; stop it or let it follow the new one{self._way_out()}"
            )
        self._connections[conn] = _Origin(system, timeline, loop)

    def _way_out(self) -> str:
        return "" if self._file is None else f" (was it restored from a copy on purpose? Then remove {self._file})"

    def _save(self) -> None:
        """Write the file atomically. If that fails, only a restart of this process forgets."""
        if self._file is None:
            return
        draft = self._file.with_name(f"{self._file.name}.{os.getpid()}.new")
        for system, timeline in _read(self._file).items():  # processes may share the file
            self._seen[system] = max(timeline, self._seen.get(system, 0))
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("w") as output:
                json.dump(self._seen, output)
                output.flush()
                os.fsync(output.fileno())
            draft.replace(self._file)
        except OSError as error:
            log.warning("PostgreSQL's timeline could not be noted (%s); a restart will not know it", error)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _read(file: Path | None) -> dict[str, int]:
    if file is None:
        return {}
    try:
        found = json.loads(file.read_bytes())
        return {str(system): int(timeline) for system, timeline in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("%s cannot be read (%s); PostgreSQL's timeline is learned anew", file, error)
        return {}
