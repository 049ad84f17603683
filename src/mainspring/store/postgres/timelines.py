"""Timelines: an old primary that comes back after a failover is not written to.

Each promotion of a standby begins a new timeline of the same system. Who has seen one refuses those before it, and
cuts the connections that lead there. What was seen outlives the process in a small file (decision 19).

Reads, writes  the file `memory`, where there is one
Next:          store/postgres/reconnect.py
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from weakref import WeakKeyDictionary

from mainspring.errors import StoreUnavailable
from mainspring.store.postgres.connection import Connection

log = logging.getLogger("mainspring")


class Timelines:
    """The highest timeline seen, by system. `memory` is the file that keeps it."""

    def __init__(self, memory: Path | None = None) -> None:
        self._memory = memory
        self._seen = _read(memory)
        self._connections: WeakKeyDictionary[Connection, tuple[str, int]] = WeakKeyDictionary()

    def admit(self, conn: Connection, where: str, system: str, timeline: int) -> None:
        """Take note of where a new connection leads; StoreUnavailable if that is the past."""
        before = self._seen.get(system, 0)
        if timeline > before:
            self._seen[system] = timeline
            self._remember()
            self._cut_older(system, timeline)
            if before:
                log.warning("PostgreSQL failed over to %s, from timeline %d to %d", where, before, timeline)
        newest = self._seen[system]
        if timeline < newest:
            raise StoreUnavailable(
                f"PostgreSQL at {where} is on timeline {timeline}, and {newest} has been seen: the old primary is "
                f"back; stop it or let it follow the new one{self._way_out()}"
            )
        self._connections[conn] = (system, timeline)

    def _way_out(self) -> str:
        return "" if self._memory is None else f" (was it restored from a copy on purpose? Then remove {self._memory})"

    def _cut_older(self, system: str, timeline: int) -> None:
        """What still talks to the primary before must not go on: there are two of them now."""
        for conn, known in list(self._connections.items()):
            if known[0] == system and known[1] < timeline:
                conn.terminate()

    def _remember(self) -> None:
        """Whole or not at all; without it only a restart of this process forgets."""
        if self._memory is None:
            return
        draft = self._memory.with_name(f"{self._memory.name}.{os.getpid()}.new")
        for system, timeline in _read(self._memory).items():  # others may have the same file, and know more
            self._seen[system] = max(timeline, self._seen.get(system, 0))
        try:
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("w") as file:
                json.dump(self._seen, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._memory)
        except OSError as error:
            log.warning("PostgreSQL's timeline could not be noted (%s); a restart will not know it", error)


def _read(memory: Path | None) -> dict[str, int]:
    if memory is None:
        return {}
    try:
        found = json.loads(memory.read_bytes())
        return {str(system): int(timeline) for system, timeline in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("%s cannot be read (%s); PostgreSQL's timeline is learned anew", memory, error)
        return {}
