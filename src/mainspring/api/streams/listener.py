"""Listener: what one stream is yet to be sent. A slow reader is not buffered for.

Beyond MOST_PENDING bytes all that is pending becomes one `resync`: the reader asks again for what it shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mainspring.api.streams.sse import event

MOST_PENDING = 256 * 1024  # bytes


class Pending:
    """Events in order; of those with a `key` only the newest."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = list(topics)
        self._events: list[tuple[str | None, bytes]] = []
        self._bytes = 0
        self._there = asyncio.Event()
        self._ended = False

    def put(self, data: bytes, *, key: str | None = None, id: str | None = None) -> None:
        """`id` is where the reader is, once it has this."""
        if key is not None:
            self._drop(key)
        self._events.append((key, data))
        self._bytes += len(data)
        if self._bytes > MOST_PENDING:
            data = event("resync", {"topics": self._topics}, id)
            self._events, self._bytes = [(None, data)], len(data)
        self._there.set()

    def end(self) -> None:
        """After what is pending."""
        self._ended = True
        self._there.set()

    async def next(self) -> bytes | None:
        """All that is pending, in one piece."""
        while not self._events:
            if self._ended:
                return None
            self._there.clear()
            await self._there.wait()
        events, self._events, self._bytes = self._events, [], 0
        return b"".join(data for _, data in events)

    def _drop(self, key: str) -> None:
        kept = [(other, data) for other, data in self._events if other != key]
        self._bytes -= sum(len(data) for other, data in self._events if other == key)
        self._events = kept
