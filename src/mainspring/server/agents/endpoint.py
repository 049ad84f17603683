"""Endpoint: the WebSocket endpoint for agents on other machines; admits those with a valid token.

Answers /healthz and /readyz without a token, for load balancers.
Reads   store.cluster.tokens
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
from mainspring.model.messages import ITEMS, AgentMessage, ServerMessage
from mainspring.server.agents.connection import AgentConnections
from mainspring.store.cluster import tokens
from mainspring.store.postgres.database import Database
from mainspring.wire.websocket import MAX_FRAME, MAX_QUEUE, PATH, WebSocketChannel

log = logging.getLogger("mainspring")

HEALTH, READINESS = "/healthz", "/readyz"
TRY_AGAIN_LATER = 1013
GOING_AWAY = 1001
FRAME_ITEMS = 8 * ITEMS  # a frame has at most one message of each of five kinds, or four that are resent
WRITE_LIMIT = 16 << 20  # bytes buffered for an agent that does not read, before its sender waits


class Endpoint:
    """`why_not_ready` returns why the server may not act, or None if it may."""

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
        self._dedicated = database.dedicated("handshakes")
        self._connections = connections
        self._host = host
        self._port = port
        self._tls = tls
        self._why_not_ready = why_not_ready
        # Tokens of admitted connections until `_talk`. Weak: if the WebSocket handshake fails, `_talk` is never called.
        self._admitted = WeakKeyDictionary[ServerConnection, int]()
        self._server: Server | None = None

    async def bind(self) -> None:
        """Bind the address; accept no connection yet."""
        try:
            self._server = await serve(
                self._talk,
                self._host,
                self._port,
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
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ValidationError(
                f"listen: {self._host}:{self._port}: {reason}; name another address with --listen", field="listen"
            ) from None

    async def open(self) -> str:
        """Accept connections; returns the URL for agents."""
        assert self._server is not None, "bind comes first"
        await self._server.start_serving()
        port = next(iter(self._server.sockets)).getsockname()[1]
        host = socket.gethostname() if self._host in ("0.0.0.0", "::", "") else self._host
        return f"{'ws' if self._tls is None else 'wss'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """None admits the connection; a response refuses it."""
        path = request.path.partition("?")[0]
        if path in (HEALTH, READINESS):
            return self._health(connection, path)
        if path != PATH:
            return connection.respond(http.HTTPStatus.NOT_FOUND, f"agents connect to {PATH}\n")
        given = request.headers.get_all("Authorization")
        scheme, _, secret = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        try:
            async with self._dedicated as conn:
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
        reason = self._why_not_ready()
        good, bad = ("healthy", "degraded") if path == HEALTH else ("ready", "not_ready")
        body = {"status": good} if reason is None else {"status": bad, "reason": reason}
        # /healthz stays 200 in an outage: a restart of the server would not end it.
        is_refused = reason is not None and path == READINESS
        status = http.HTTPStatus.SERVICE_UNAVAILABLE if is_refused else http.HTTPStatus.OK
        response = connection.respond(status, json.dumps(body) + "\n")
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
        if self._server is not None:
            self._server.close(code=GOING_AWAY, reason="the server stops")
            await self._server.wait_closed()
