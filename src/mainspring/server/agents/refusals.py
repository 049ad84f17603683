"""Refusals: log connections that are refused; a flood of them must not fill the log.

`Recent` decides for other warnings whether a name had one lately.

Next: server/agents/connection.py
"""

from __future__ import annotations

import asyncio
import logging

from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

FIRST = 5  # that are logged one by one
WINDOW = 60.0  # seconds
REMEMBERED = 1000  # names that agents chose


class Refusals:
    """Logs the first few of a minute, and at its end how many more there were."""

    def __init__(self) -> None:
        self._count = 0
        self.total = 0  # since the start

    def add(self, reason: str) -> None:
        if self._count == 0:
            asyncio.get_running_loop().call_later(WINDOW, self._close)
        self._count += 1
        self.total += 1
        if self._count <= FIRST:
            log.warning("an agent was refused: %.300s", reason)

    def _close(self) -> None:
        if self._count > FIRST:
            log.warning("%d more connections were refused within a minute", self._count - FIRST)
        self._count = 0


class Recent:
    """Which names came within the last `window` seconds; it forgets the oldest of many."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._seen_at: dict[str, float] = {}  # oldest first

    def is_first(self, name: str) -> bool:
        """Whether the name comes for the first time in a window; then a window begins for it."""
        now = boottime()
        if now - self._seen_at.get(name, -self._window) < self._window:
            return False
        self._seen_at.pop(name, None)
        self._seen_at[name] = now
        if len(self._seen_at) > REMEMBERED:
            del self._seen_at[next(iter(self._seen_at))]
        return True
