"""Served: an ASGI application on a loopback port, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import uvicorn

from mainspring.api.make import make_api
from mainspring.store.postgres.database import Database
from tests.secret_keys import Ring

START_WITHIN = 10.0


@contextmanager
def served_in_thread(dsn: str) -> Iterator[str]:
    """The API over this database; yields its URL. For tests of sync code, and of code that blocks its loop."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    started, loops = threading.Event(), list[asyncio.AbstractEventLoop]()
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        database = Database(dsn)
        api = make_api(database, keys=Ring())
        server = uvicorn.Server(uvicorn.Config(api, log_level="error", lifespan="off"))
        loops.append(asyncio.get_running_loop())
        stop.append(lambda: setattr(server, "should_exit", True))
        serving = asyncio.create_task(server._serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        started.set()
        await serving
        await api.close()
        await database.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="served", daemon=True)
    thread.start()
    assert started.wait(START_WITHIN)
    try:
        yield url
    finally:
        loops[0].call_soon_threadsafe(stop[0])
        thread.join(START_WITHIN)
        listener.close()


@asynccontextmanager
async def served(app: Any) -> Any:
    """An application on this loop; yields its URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server._serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listener.close()


class LostAnswers:
    """A line to a server that is cut when an answer comes: what was asked for has been done. `left` cuts remain."""

    def __init__(self, url: str, left: int) -> None:
        self._port = int(url.rpartition(":")[2])
        self.left = left
        self.cut = 0

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", self._port)
        asking = asyncio.create_task(_copy(reader, requests))
        try:
            while data := await answers.read(65536):
                if self.left:
                    self.left -= 1
                    self.cut += 1
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
        finally:
            asking.cancel()
            requests.close()
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def losing_answers(url: str, left: int) -> AsyncIterator[tuple[str, LostAnswers]]:
    """`async with losing_answers(url, 1) as (line, lost):` a URL by which the first answer never comes."""
    lost = LostAnswers(url, left)
    server = await asyncio.start_server(lost.relay, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", lost
    finally:
        server.close()
