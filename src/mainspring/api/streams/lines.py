"""Lists as NDJSON: all pages of an operation, one item a line, for who asks for application/x-ndjson."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from mainspring.api.answers import Answer
from mainspring.api.call import Call
from mainspring.api.streams.bulk import NDJSON
from mainspring.api.streams.sse import stream


class _Lines:
    cursor = None

    def __init__(self, call: Call, given: dict[str, Any]) -> None:
        self._pages = _pages(call, given)

    async def next(self) -> bytes | None:
        async for page in self._pages:
            if page:
                return page
        return None

    async def close(self) -> None:
        await self._pages.aclose()  # type: ignore[attr-defined]


async def _pages(call: Call, given: dict[str, Any]) -> AsyncIterator[bytes]:
    """Each page by a connection of its own: a reader that takes its time holds none."""
    while True:
        async with call.connection() as conn:
            page = await call.operate(conn, given)
        yield b"".join(msgspec.json.encode(item) + b"\n" for item in page.items)
        if page.next is None:
            return
        given["cursor"] = page.next


async def handle(call: Call) -> Answer | None:
    """A page, or all of them as lines."""
    given = await call.api.parameters_of(call)
    if NDJSON not in call.headers.get("accept", ""):
        return await call.api.carry_out(call, given)
    await stream(call, lambda: _Lines(call, given), media_type=NDJSON)
    return None
