"""Listener: NOTIFY hints wake the loops. A hint may be lost: polling finds what it announced.

Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.hints import CHANNEL

Hear = Callable[[str], object]  # gets what follows the word: nothing, where hints may have been missed


class Listener:
    """`hears` has the callback for each hint, by its first word."""

    def __init__(self, database: Database, hears: Mapping[str, Hear]) -> None:
        self._dedicated = database.dedicated("hints")  # the clock loop queries it every second, and so notices its loss
        self._hears = hears
        self._listening: Connection | None = None

    async def step(self) -> int:
        """Listen on the current connection."""
        async with self._dedicated as conn:
            if conn is not self._listening:
                await conn.add_listener(CHANNEL, self._hint)
                self._listening = conn
                for hear in self._hears.values():
                    hear("")  # hints may have been missed
        return 0

    def _hint(self, _conn: object, _pid: int, _channel: str, payload: object) -> None:
        word, _, rest = str(payload).partition(" ")
        if (hear := self._hears.get(word)) is not None:
            hear(rest)
