"""Listener: NOTIFY hints wake the loops. A hint may be lost: polling finds what it announced.

Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from mainspring.store.postgres.database import Connection, Database

CHANNEL = "mainspring"


class Listener:
    """`wakes` maps the payload of a hint to the events it sets."""

    def __init__(self, database: Database, wakes: Mapping[str, Sequence[asyncio.Event]]) -> None:
        self._dedicated = database.dedicated("hints")  # the clock loop queries it every second, and so notices its loss
        self._wakes = wakes
        self._listening: Connection | None = None

    async def step(self) -> int:
        """Listen on the current connection."""
        async with self._dedicated as conn:
            if conn is not self._listening:
                await conn.add_listener(CHANNEL, self._hint)
                self._listening = conn
                for payload in self._wakes:
                    self._wake(payload)  # hints may have been missed
        return 0

    def _hint(self, _conn: object, _pid: int, _channel: str, payload: object) -> None:
        self._wake(str(payload))

    def _wake(self, payload: str) -> None:
        for event in self._wakes.get(payload, ()):
            event.set()
