"""A proxy between agents and servers that delays, loses, repeats, reorders and holds back what passes.

`Proxy` knows WebSocket messages: it relays path, headers and binary messages as they are, and its two `Way`s say
what goes wrong, each for its own direction; they may be changed at any time. Pings end at the proxy. `StreamProxy`
knows only bytes, for what happens below: a slow line, or one on which nothing passes and nobody is told.

    async with Proxy("ws://127.0.0.1:7800") as proxy:
        proxy.up.drop = 1.0      # the server hears nothing any more, the agent still does
        await proxy.cut()        # all connections, now
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

Message = str | bytes

_OWN_HEADERS = {"host", "upgrade", "connection", "content-length"}  # each of the two handshakes has its own


class Way:
    """What goes wrong in one direction. Probabilities are 0 to 1; without a fault all passes at once and in order."""

    def __init__(self, seed: int = 7) -> None:
        self.delay = 0.0  # seconds that each message takes
        self.jitter = 0.0  # up to so many more; the order is kept
        self.drop = 0.0  # 1 is a partition in this direction
        self.duplicate = 0.0
        self.reorder = 0.0  # held back until the next message has passed
        self.bytes_per_second: float | None = None
        self.recording = False
        self.recorded: list[Message] = []
        self.passed = 0  # messages that were sent on, repeated ones included
        self.dropped = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.chance = random.Random(seed)

    def stall(self) -> None:
        """Read nothing any more: the sender's buffers fill up, nothing is lost."""
        self._flowing.clear()

    def heal(self) -> None:
        """No fault any more. A message that was held back passes with the next one."""
        self.delay = self.jitter = self.drop = self.duplicate = self.reorder = 0.0
        self.bytes_per_second = None
        self._flowing.set()

    async def flowing(self) -> None:
        await self._flowing.wait()

    async def lets_closing_through(self) -> None:
        """Where nothing passes, the end of a connection is not seen either."""
        while self.drop >= 1.0 or not self._flowing.is_set():
            await asyncio.sleep(0.01)

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.chance.random() < probability


class _Pump:
    """Carries the messages of one connection in one direction."""

    def __init__(self, way: Way, source: Connection, target: Connection) -> None:
        self._way = way
        self._source = source
        self._target = target
        self._due: asyncio.Queue[tuple[float, Message] | None] = asyncio.Queue()
        self._last_due = 0.0
        self._held: list[Message] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write())
            await self._read()
            self._due.put_nowait(None)
            await writing
        await self._way.lets_closing_through()
        await self._target.close(_code(self._source.close_code), self._source.close_reason or "")

    async def _read(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                await self._way.flowing()
                message = await self._source.recv()
                await self._way.flowing()  # it may have been stalled while we waited
                self._take(message)

    def _take(self, message: Message) -> None:
        way = self._way
        if way.recording:
            way.recorded.append(message)
        if way.happens(way.drop):
            way.dropped += 1
            return
        if way.happens(way.reorder) and not self._held:
            self._held.append(message)
            return
        for _ in range(2 if way.happens(way.duplicate) else 1):
            self._schedule(message)
        while self._held:
            self._schedule(self._held.pop())

    def _schedule(self, message: Message) -> None:
        way = self._way
        due = asyncio.get_running_loop().time() + way.delay + way.chance.random() * way.jitter
        if way.bytes_per_second:
            due = max(due, self._last_due) + len(message) / way.bytes_per_second
        self._last_due = max(due, self._last_due)
        self._due.put_nowait((self._last_due, message))

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(ConnectionClosed):
            while (item := await self._due.get()) is not None:
                due, message = item
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                await self._way.flowing()
                await self._target.send(message)
                self._way.passed += 1


def _code(code: int | None) -> int:
    """A code that may be sent: 1005 and 1006 only say that none came."""
    return code if code is not None and code not in (1005, 1006, 1015) else 1000


class Proxy:
    """Listens on loopback and connects each client to `target`. `refuse` turns new connections away."""

    def __init__(self, target: str) -> None:
        self.target = target.rstrip("/")
        self.up = Way(seed=7)  # from the agent to the server
        self.down = Way(seed=8)
        self.refuse = False
        self.accepted = 0
        self.requests: list[Request] = []
        self._pairs: dict[ServerConnection, ClientConnection] = {}
        self._server: Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None, "the proxy is used inside `async with`"
        return f"ws://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._relay,
            "127.0.0.1",
            0,
            process_request=self._open,
            select_subprotocol=lambda client, _: self._pairs[client].subprotocol,
            max_size=None,
            compression=None,
            ping_interval=None,
            close_timeout=1,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self.heal()
        await self.cut()
        self._server.close()
        await self._server.wait_closed()

    @property
    def connections(self) -> int:
        return len(self._pairs)

    def heal(self) -> None:
        self.refuse = False
        self.up.heal()
        self.down.heal()

    def partition(self) -> None:
        """Nothing passes in either direction, and the connections stay open."""
        self.up.drop = self.down.drop = 1.0

    async def cut(self) -> None:
        """End all connections at once, without a closing handshake; both sides see it."""
        for client, server in list(self._pairs.items()):
            client.transport.abort()
            server.transport.abort()
        await asyncio.gather(*(end.wait_closed() for pair in list(self._pairs.items()) for end in pair))

    async def replay(self, way: Way, messages: list[Message]) -> None:
        """Send old messages once more, into each connection that is open now."""
        for client, server in list(self._pairs.items()):
            for message in messages:
                await (server if way is self.up else client).send(message)

    async def _open(self, client: ServerConnection, request: Request) -> Response | None:
        """Connect to the target first, so that the client is told what the target says to the handshake."""
        self.requests.append(request)
        if self.refuse:
            return Response(HTTPStatus.SERVICE_UNAVAILABLE, "Service Unavailable", Headers(), b"refused by the proxy\n")
        headers = [
            (name, value)
            for name, value in request.headers.raw_items()
            if name.lower() not in _OWN_HEADERS and not name.lower().startswith("sec-websocket-")
        ]
        offered = request.headers.get_all("Sec-WebSocket-Protocol")
        try:
            self._pairs[client] = await connect(
                self.target + request.path,
                additional_headers=headers,
                subprotocols=[Subprotocol(name.strip()) for line in offered for name in line.split(",")] or None,
                user_agent_header=None,
                max_size=None,
                compression=None,
                ping_interval=None,
                close_timeout=1,
                proxy=None,
            )
        except InvalidStatus as error:
            return error.response
        except (OSError, WebSocketException) as error:
            text = f"the target cannot be reached: {error}\n".encode()
            return Response(HTTPStatus.BAD_GATEWAY, "Bad Gateway", Headers(), text)
        return None

    async def _relay(self, client: ServerConnection) -> None:
        server = self._pairs[client]
        self.accepted += 1
        pumps = [_Pump(self.up, client, server), _Pump(self.down, server, client)]
        running = [asyncio.create_task(pump.run()) for pump in pumps]
        try:
            await asyncio.wait(running)
        finally:
            for pump in running:
                pump.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            server.transport.abort()
            del self._pairs[client]
