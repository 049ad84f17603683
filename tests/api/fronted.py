"""Fronted: the API as `mainspring api` serves it, on a loopback port, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mainspring.api.make import make_api
from mainspring.front import sockets
from mainspring.front.http_server import HttpServer, Limits
from mainspring.front.listener import Listener
from mainspring.store.postgres.database import Database

START_WITHIN = 10.0


@contextmanager
def fronted(dsn: str, limits: Limits | None = None, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Yields the URL. The pool and the front are those of production."""
    bound = sockets.bind("127.0.0.1", 0)
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        database = Database(dsn).for_api()
        api = make_api(database)
        listener = Listener(HttpServer(api, limits, on_stop=api.stopping.set), bound, tls)
        await listener.open()
        started.set()
        await stop.wait()
        await listener.close()
        await api.close()
        await database.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="fronted", daemon=True)
    thread.start()
    assert started.wait(START_WITHIN)
    try:
        yield sockets.url_of("http" if tls is None else "https", "127.0.0.1", bound)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(START_WITHIN)
