"""Listener: an HTTP server on loopback that keeps the paths it was asked for, and answers what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Listener:
    def __init__(self) -> None:
        self.paths: list[str] = []
        self.requests: list[str] = []  # with their headers
        self.status = 200
        self.silent = False  # it never answers
        self.open = 0  # requests under way
        self.most_open = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            self.paths.append(head.split(" ")[1])
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            try:
                if self.silent:
                    await reader.read()  # until the client gives up
                writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
            finally:
                self.open -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    listener.url = f"http://127.0.0.1:{port}"
    try:
        yield listener
    finally:
        server.close()
