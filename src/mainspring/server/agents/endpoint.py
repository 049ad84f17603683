"""Endpoint: the WebSocket endpoint for agents on other machines; admits those with a valid token.

Hands connections that are not for agents to an HTTP server, if it has one. Without one it answers /healthz and /readyz,
for load balancers, and nothing else.
Reads   store.access.tokens
Next:   server/agents/connection.py
"""

from __future__ import annotations

import asyncio
import http
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from mainspring.errors import StoreUnavailable, ValidationError
from mainspring.model.messages import ITEMS, AgentMessage, ServerMessage
from mainspring.server.agents.refusals import Refusals
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Database
from mainspring.wire.channel import Channel
from mainspring.wire.health import HEALTH, READINESS, health
from mainspring.wire.websocket import KEEP, MAX_FRAME, MAX_QUEUE, PATH, WebSocketChannel

log = logging.getLogger("mainspring")

TRY_AGAIN_LATER = 1013
GOING_AWAY = 1001
FRAME_ITEMS = 8 * ITEMS  # a frame has at most one message of each of five kinds, or four that are resent
WRITE_LIMIT = 16 << 20  # bytes buffered for an agent that does not read, before its sender waits


class Connections(Protocol):
    @property
    def refusals(self) -> Refusals: ...

    async def serve(
        self, channel: Channel[ServerMessage, AgentMessage], *, process: str | None, token: int | None = None
    ) -> None:
        """Serve one connection until it closes."""


class Http(Protocol):
    """Serves what is asked for on the same port and is not for agents."""

    def multiplex(self, path: str, other: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """A protocol for a new connection, which becomes `other()` if its first request is for `path`."""

    def beside(self, why_not_ready: str) -> Http:
        """Another one, for another event loop, that answers every request with the reason."""

    async def stop(self) -> None:
        """Close all connections, once requests that are under way have ended."""


class Endpoint:
    """`why_not_ready` returns why the server may not act, or None if it may. `keeps_only`: it takes no hello."""

    def __init__(
        self,
        database: Database,
        connections: Connections,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        why_not_ready: Callable[[], str | None] = lambda: None,
        keeps_only: bool = False,
        http_server: Http | None = None,
    ) -> None:
        self._handshakes = database.for_handshakes()
        self._connections = connections
        self._host = host
        self._port = port
        self._tls = tls
        self._why_not_ready = why_not_ready
        self._keeps_only = keeps_only
        self._http_server = http_server
        # Tokens of admitted connections until `_talk`. Weak: if the WebSocket handshake fails, `_talk` is never called.
        self._admitted = WeakKeyDictionary[ServerConnection, int]()
        self._servers: list[Server] = []

    def beside(self, database: Database, connections: Connections, why_not_ready: str) -> Endpoint:
        """Another one with the same address, for another event loop, which takes no hello."""
        return Endpoint(
            database,
            connections,
            host=self._host,
            port=self._port,
            tls=self._tls,
            why_not_ready=lambda: why_not_ready,
            keeps_only=True,
            http_server=None if self._http_server is None else self._http_server.beside(why_not_ready),
        )

    async def bind(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Bind the address, or take sockets that listen on it; accept no connection yet."""
        try:
            for each in sockets:
                self._servers.append(await self._listen(sock=each))
            if not sockets:
                self._servers.append(await self._listen(host=self._host, port=self._port))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ValidationError(
                f"listen: {self._host}:{self._port}: {reason}; name another address with --listen", field="listen"
            ) from None

    async def _listen(self, **place: Any) -> Server:
        if self._http_server is not None:
            place["create_connection"] = self._connect
        return await serve(
            self._talk,
            **place,
            ssl=self._tls,
            start_serving=False,
            process_request=self._admit,
            origins=[None],  # refuses browsers, which send an Origin header
            compression=None,
            max_size=MAX_FRAME,
            max_queue=MAX_QUEUE,
            write_limit=WRITE_LIMIT,
            ping_interval=None,  # the protocol has its own heartbeats
            open_timeout=10,
            close_timeout=2,
            server_header=None,
        )

    def _connect(self, *protocol: Any, **limits: Any) -> asyncio.Protocol:
        """In place of the class of connections: whether this one is for agents, its first line will say."""
        assert self._http_server is not None
        return self._http_server.multiplex(PATH, partial(ServerConnection, *protocol, **limits))

    @property
    def listening(self) -> list[int]:
        """The descriptors of its sockets."""
        return [each.fileno() for server in self._servers for each in server.sockets]

    async def open(self) -> str:
        """Accept connections; returns the URL for agents."""
        assert self._servers, "bind comes first"
        for server in self._servers:
            await server.start_serving()
        port = next(iter(self._servers[0].sockets)).getsockname()[1]
        host = socket.gethostname() if self._host in ("0.0.0.0", "::", "") else self._host
        return f"{'ws' if self._tls is None else 'wss'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """None admits the connection; a response refuses it."""
        path, _, query = request.path.partition("?")
        if path in (HEALTH, READINESS):
            return self._health(connection, path)
        if path != PATH:
            return connection.respond(http.HTTPStatus.NOT_FOUND, f"agents connect to {PATH}\n")
        if self._keeps_only and query != KEEP:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{self._why_not_ready()}\n")
        given = request.headers.get_all("Authorization")
        scheme, _, secret = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        try:
            async with self._handshakes.acquire() as conn:
                token = await tokens.check(conn, secret.strip()) if scheme.lower() == "bearer" else None
        except StoreUnavailable:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "PostgreSQL does not answer\n")
        if token is None:
            address = connection.remote_address or ("an unknown address",)  # it may have hung up
            self._connections.refusals.add(f"no valid token, from {address[0]}")
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "no valid token; `mainspring token create`\n")
        self._admitted[connection] = token
        return None

    def _health(self, connection: ServerConnection, path: str) -> Response:
        """Queries nothing: the answer must come while PostgreSQL is down."""
        response = connection.respond(*health(path, self._why_not_ready()))
        del response.headers["Content-Type"]  # assignment adds a second header
        response.headers["Content-Type"] = "application/json"
        response.headers["Cache-Control"] = "no-store"
        return response

    async def _talk(self, connection: ServerConnection) -> None:
        token = self._admitted.pop(connection)
        try:
            channel = WebSocketChannel[ServerMessage, AgentMessage](connection, AgentMessage, most_items=FRAME_ITEMS)
            await self._connections.serve(channel, process=None, token=token)
        except StoreUnavailable as error:
            log.warning("an agent cannot be served: %s", error)
            await connection.close(TRY_AGAIN_LATER, "PostgreSQL does not answer")

    async def close(self) -> None:
        """Accept no connection and close all: agents reconnect to another server."""
        for server in self._servers:
            server.close(code=GOING_AWAY, reason="the server stops")
        if self._servers and self._http_server is not None:
            await asyncio.sleep(0)  # the servers stop listening
            await self._http_server.stop()
        for server in self._servers:
            await server.wait_closed()
