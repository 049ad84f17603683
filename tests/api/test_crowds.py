"""As many streams and connections as a server takes, with its own limits, and one more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mainspring.api.access.bounds import Bounds
from mainspring.front.http_server import Limits
from mainspring.model.access.actors import Role
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection
from tests.api.fronted import fronted
from tests.conftest import Eventually

Streams = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@asynccontextmanager
async def opened() -> AsyncIterator[Streams]:
    """Connections that are closed at the end."""
    found: Streams = []
    try:
        yield found
    finally:
        for _, writer in found:
            writer.close()


async def ask(port: int, path: str, secret: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n\r\n".encode())
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, object], bytes]:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return int(head.split()[1]), json.loads(await reader.readexactly(length)), head


async def test_one_stream_more_than_a_server_takes_is_refused(
    dsn: str, conn: Connection, eventually: Eventually
) -> None:
    bounds = Bounds()
    path = "/api/v1/events?topics=alerts"
    secrets = [
        (await tokens.create(conn, f"viewer {number}", role=Role.VIEWER))[1]
        for number in range(bounds.streams // bounds.streams_per_caller + 1)
    ]
    with fronted(dsn) as url:
        port = int(url.rpartition(":")[2])
        async with opened() as streams:
            for number in range(bounds.streams):
                streams.append(await ask(port, path, secrets[number // bounds.streams_per_caller]))
            for reader, _ in streams:
                await asyncio.wait_for(reader.readuntil(b"event: ready"), 30)
            one_more, writer = await ask(port, path, secrets[-1])
            status, told, head = await answer(one_more)
            assert (status, told["code"]) == (429, "rate_limited")
            assert "500 streams are open on this server" in str(told["message"])
            assert b"retry-after: 5" in head
            writer.close()
            other, writer = await ask(port, "/api/v1/session", secrets[-1])
            assert (await answer(other))[0] == 200, "only streams are refused"
            writer.close()
            streams.pop()[1].close()

            async def is_admitted() -> bool:
                reader, writer = await ask(port, path, secrets[-1])
                head = await reader.readuntil(b"\r\n")
                writer.close()
                return b" 200 " in head

            assert await eventually(is_admitted)


async def test_one_connection_more_than_a_server_takes_is_told_that_it_is_busy(
    dsn: str, conn: Connection, eventually: Eventually
) -> None:
    _, secret = await tokens.create(conn, "viewer", role=Role.VIEWER)
    with fronted(dsn) as url:
        port = int(url.rpartition(":")[2])
        async with opened() as connections:
            for _ in range(Limits().connections):
                connections.append(await asyncio.open_connection("127.0.0.1", port))
            last_reader, last_writer = connections[-1]
            request = f"GET /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n\r\n"
            last_writer.write(request.encode())
            assert (await answer(last_reader))[0] == 200, "as many as it takes are served"
            one_more, writer = await ask(port, "/api/v1/session", secret)
            status, told, head = await answer(one_more)
            assert (status, told["code"]) == (503, "busy")
            assert "1000 connections are open" in str(told["message"])
            assert b"retry-after" in head
            assert await one_more.read() == b"", "it is closed"
            writer.close()
            connections.pop()[1].close()

            async def is_served() -> bool:
                reader, writer = await ask(port, "/api/v1/session", secret)
                found = await answer(reader)
                writer.close()
                return found[0] == 200

            assert await eventually(is_served)
