"""Refusals: log connections that are refused; a flood of them must not fill the log.

Next: server/agents/connection.py
"""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger("mainspring")

FIRST = 5  # that are logged one by one
WINDOW = 60.0  # seconds


class Refusals:
    """Logs the first few of a minute, and at its end how many more there were."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, reason: str) -> None:
        if self._count == 0:
            asyncio.get_running_loop().call_later(WINDOW, self._close)
        self._count += 1
        if self._count <= FIRST:
            log.warning("an agent was refused: %.300s", reason)

    def _close(self) -> None:
        if self._count > FIRST:
            log.warning("%d more connections were refused within a minute", self._count - FIRST)
        self._count = 0
