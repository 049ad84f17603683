"""HttpServer: the HTTP connections of a process, whichever sockets they came from: limits, timer, graceful stop.

uvicorn's own server is not used: it takes over signals and the listening sockets.
Next: front/multiplexer.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from mainspring.front.asgi import App, guarded, health_only
from mainspring.front.http_connection import HttpConnection
from mainspring.front.multiplexer import Undecided

if TYPE_CHECKING:
    from uvicorn._types import ASGIApplication

LONGEST_TICK = 1.0  # seconds between two looks at the deadlines; the Date header is as exact
CANCEL_WITHIN = 1.0  # seconds for requests that were cancelled
FLUSH_WITHIN = 1.0  # seconds for the last bytes of answers


@dataclass(frozen=True)
class Limits:
    """Seconds, unless a name says otherwise."""

    head: float = 10.0  # from the connect, or from the first byte of a later request, to the end of its headers
    body: float = 30.0  # without a byte of the body
    idle: float = 75.0  # between two requests
    unread: float = 30.0  # without a byte of the answer that the client takes
    linger: float = 2.0  # that a client may still send after an answer which came early
    stop: float = 5.0  # for requests that are under way when the process stops
    head_bytes: int = 16 << 10
    connections: int = 1000
    pipelined: int = 32  # requests that wait for the answers to those before them

    @property
    def tick(self) -> float:
        return min(LONGEST_TICK, min(self.head, self.body, self.idle, self.unread, self.linger) / 4)


class HttpServer:
    """`on_stop` is called when the server begins to stop: it ends the streams, which have no end by themselves."""

    def __init__(self, app: App, limits: Limits | None = None, *, on_stop: Callable[[], object] | None = None) -> None:
        self.limits = limits or Limits()
        self.state = ServerState()
        self.logger = logging.getLogger("mainspring.http")
        self.logger.setLevel(logging.ERROR)  # a client's bad request is not worth a line
        self.config = Config(
            cast("ASGIApplication", guarded(app)),
            interface="asgi3",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self.config.load()
        self.undecided: dict[Undecided, None] = {}  # the oldest first
        self._on_stop = on_stop
        self._timer: asyncio.TimerHandle | None = None

    def connect(self, accepted_at: float | None = None) -> HttpConnection:
        """The protocol of a new connection."""
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._tick(loop)
        return HttpConnection(self, loop.time() if accepted_at is None else accepted_at)

    def multiplex(self, path: str, other: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """The protocol of a new connection, which becomes `other()` if its first request is for `path`."""
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._tick(loop)
        return Undecided(self, path.encode(), other)

    def beside(self, why_not_ready: str) -> HttpServer:
        """Another one, for another event loop, that answers every request with the reason."""
        return HttpServer(health_only(lambda: why_not_ready), self.limits)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cut off what took too long. No timer runs while there is no connection."""
        self.state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        now = loop.time()
        for undecided in list(self.undecided):
            undecided.check(now)
        for connection in self._connections():
            connection.check(now)
        is_used = self.undecided or self.state.connections or self._timer is None
        self._timer = loop.call_later(self.limits.tick, self._tick, loop) if is_used else None

    def _connections(self) -> list[HttpConnection]:
        return cast(list[HttpConnection], list(self.state.connections))

    async def stop(self) -> None:
        """End streams, let requests that are under way end, then cut off the rest. No socket listens any more."""
        for undecided in list(self.undecided):
            undecided.abort()
        if self._on_stop is not None:
            self._on_stop()
        for connection in self._connections():
            connection.shutdown()
        await self._until_done(self.limits.stop)
        for connection in self._connections():
            if connection.is_answering:
                connection.transport.abort()
        await asyncio.sleep(0)  # they learn that they are cut off
        for task in self.state.tasks:
            task.cancel()
        await self._until_done(CANCEL_WITHIN)
        await self._until_closed(FLUSH_WITHIN)
        for connection in self._connections():
            connection.transport.abort()
        await self._until_closed(FLUSH_WITHIN)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _until_done(self, patience: float) -> None:
        deadline = asyncio.get_running_loop().time() + patience
        while self.state.tasks and (left := deadline - asyncio.get_running_loop().time()) > 0:
            tasks: set[asyncio.Task[Any]] = set(self.state.tasks)
            await asyncio.wait(tasks, timeout=left)

    async def _until_closed(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                while self.state.connections:
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pass
