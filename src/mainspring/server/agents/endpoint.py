"""Endpoint: where agents on other machines come in, over WebSockets. Who shows no valid token is not let in.

Whoever asks for /healthz or /readyz is told how the server is, and nothing else: a load balancer has no token.
Reads   store.tokens
Next:   server/agents/connection.py
"""

from __future__ import annotations

import http
import json
import logging
import os
import socket
import ssl
from collections.abc import Callable
from weakref import WeakKeyDictionary

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from mainspring.errors import StoreUnavailable, ValidationError
from mainspring.server.agents.connection import AgentConnections
from mainspring.store.cluster import tokens
from mainspring.store.postgres.database import Database
from mainspring.wire.codec import server_codec
from mainspring.wire.websocket import MAX_FRAME, PATH, WebSocketChannel

log = logging.getLogger("mainspring")

HEALTH, READINESS = "/healthz", "/readyz"
TRY_AGAIN_LATER = 1013
GOING_AWAY = 1001
WRITE_LIMIT = 16 << 20  # bytes that wait for an agent which does not read, before they hold up the others


class Endpoint:
    """`why_not_ready` tells why the server may not act, if it may not."""

    def __init__(
        self,
        database: Database,
        connections: AgentConnections,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        why_not_ready: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._line = database.line("arrivals")
        self._connections = connections
        self._host = host
        self._port = port
        self._tls = tls
        self._why_not_ready = why_not_ready
        # The tokens of those who have not said hello yet. Some never do: their handshake fails, and nobody tells us.
        self._admitted = WeakKeyDictionary[ServerConnection, int]()
        self._server: Server | None = None

    async def bind(self) -> None:
        """Take the address, and let nobody in yet."""
        try:
            self._server = await self._serve()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ValidationError(
                f"listen: {self._host}:{self._port}: {reason}; name another address with --listen", field="listen"
            ) from None

    async def open(self) -> str:
        """Let agents in; returns the URL for them."""
        assert self._server is not None, "bind comes first"
        await self._server.start_serving()
        port = next(iter(self._server.sockets)).getsockname()[1]
        host = socket.gethostname() if self._host in ("0.0.0.0", "::", "") else self._host
        return f"{'ws' if self._tls is None else 'wss'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def _serve(self) -> Server:
        return await serve(
            self._talk,
            self._host,
            self._port,
            ssl=self._tls,
            start_serving=False,
            process_request=self._admit,
            origins=[None],  # a browser says where its page is from, an agent does not
            compression=None,
            max_size=MAX_FRAME,
            write_limit=WRITE_LIMIT,
            ping_interval=None,  # heartbeats are our own
            open_timeout=10,
            close_timeout=2,
            server_header=None,
        )

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """None lets the handshake go on."""
        path = request.path.partition("?")[0]
        if path in (HEALTH, READINESS):
            return self._tell(connection, path)
        if path != PATH:
            return connection.respond(http.HTTPStatus.NOT_FOUND, f"agents connect to {PATH}\n")
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        try:
            async with self._line as conn:
                token = await tokens.check(conn, secret.strip()) if scheme.lower() == "bearer" else None
        except StoreUnavailable:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "PostgreSQL does not answer\n")
        if token is None:
            log.warning("an agent at %s was refused: no valid token", connection.remote_address[0])
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "no valid token; `mainspring token create`\n")
        self._admitted[connection] = token
        return None

    def _tell(self, connection: ServerConnection, path: str) -> Response:
        """Asks nobody: an answer must come while PostgreSQL does not answer."""
        reason = self._why_not_ready()
        good, bad = ("healthy", "degraded") if path == HEALTH else ("ready", "not_ready")
        told = {"status": good} if reason is None else {"status": bad, "reason": reason}
        # Whoever sees no health starts the server again, which would mend nothing: it lives, and waits.
        is_refused = reason is not None and path == READINESS
        status = http.HTTPStatus.SERVICE_UNAVAILABLE if is_refused else http.HTTPStatus.OK
        response = connection.respond(status, json.dumps(told) + "\n")
        del response.headers["Content-Type"]  # a second one would be added to it
        response.headers["Content-Type"] = "application/json"
        response.headers["Cache-Control"] = "no-store"
        return response

    async def _talk(self, connection: ServerConnection) -> None:
        token = self._admitted.pop(connection)
        try:
            await self._connections.serve(WebSocketChannel(connection, server_codec()), process=None, token=token)
        except StoreUnavailable as error:
            log.warning("an agent cannot be served: %s", error)
            await connection.close(TRY_AGAIN_LATER, "PostgreSQL does not answer")

    async def close(self) -> None:
        """Let nobody in, and send all away: agents go on with another server."""
        if self._server is not None:
            self._server.close(code=GOING_AWAY, reason="the server stops")
            await self._server.wait_closed()
        await self._line.close()
