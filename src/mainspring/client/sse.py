"""Server-sent events, as a client reads them: lines → events."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import aiohttp


class ServerEvent(NamedTuple):
    name: str
    data: str
    id: str | None  # where to continue after it


async def lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Of any length: aiohttp has a limit of its own, which differs by version, and a piece can take 400 kB in JSON."""
    rest: list[bytes] = []
    async for part in content.iter_any():
        *ended, last = part.split(b"\n")
        for line in ended:
            yield b"".join([*rest, line])
            rest.clear()
        rest.append(last)
    if any(rest):
        yield b"".join(rest)


async def events(lines: AsyncIterable[bytes]) -> AsyncIterator[ServerEvent]:
    """An event ends with an empty line; one that the connection cuts off is dropped. Comments are skipped."""
    name, id = "message", None
    data: list[str] = []
    async for line in lines:
        text = line.decode().rstrip("\r\n")
        if not text:
            if data or name != "message":
                yield ServerEvent(name, "\n".join(data), id)
            name, data = "message", []
            continue
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            id = value
