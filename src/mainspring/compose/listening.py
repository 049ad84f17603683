"""Listening: what a process accepts connections for, and where: agents, the HTTP API, or both on one port.

Next: server/agents/endpoint.py (agents), compose/api.py
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from mainspring.config import Settings
from mainspring.errors import ValidationError
from mainspring.front import sockets
from mainspring.model.words.locations import address, is_loopback
from mainspring.server.agents.endpoint import Endpoint, Http
from mainspring.server.agents.keep import BlockedEndpoint
from mainspring.server.server import Server
from mainspring.store.postgres.database import Database
from mainspring.wire.clock import Clock

if TYPE_CHECKING:
    from mainspring.operations.parts.giving_way import Fires

PRELOADED = ("mainspring.front.listener", "mainspring.compose.api")


def _import(*modules: str) -> None:
    for module in modules:
        import_module(module)


class Urls(NamedTuple):
    agents: str | None = None
    api: str | None = None


class Listening:
    """Binds when it is made: a process that cannot listen must not join. Accepts nothing before `open`.

    `without_agents`: the API alone. `last_port`: if the port is taken, the next free one up to this.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        without_tls: bool = False,
        without_agents: bool = False,
        last_port: int | None = None,
    ) -> None:
        self._settings = settings
        self._tls = server_tls(settings)
        self._without_tls = without_tls
        self._host = self._api_host = ""
        self._sockets: list[socket.socket] = []
        self._api_sockets: list[socket.socket] = []
        self._endpoint: Endpoint | None = None
        self._serves_api = False
        self._opens: list[Callable[[], Awaitable[object]]] = []
        self._closes: list[Callable[[], Awaitable[object]]] = []
        try:
            if not without_agents:
                self._host, self._sockets = self._bind("listen", settings.listen, last_port)
                self._api_host = self._host
            if without_agents or (settings.api and settings.api_listen is not None):
                field = "listen" if without_agents else "api_listen"
                where = settings.api_listen or settings.listen
                self._api_host, self._api_sockets = self._bind(field, where, None)
        except BaseException:
            self._close_sockets()
            raise

    def _bind(self, field: str, where: str, last_port: int | None) -> tuple[str, list[socket.socket]]:
        host, port = address(where, field)
        if self._tls is None and not self._without_tls and not is_loopback(host):
            raise ValidationError(
                f"{field}: {host} is not this machine alone, and tokens would pass in plain text; "
                "give --tls-cert and --tls-key, or --without-tls if the network is yours",
                field=field,
            )
        try:
            return host, sockets.bind(host, port, last_port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            ports = f"{port}" if last_port is None else f"{port} to {last_port}"
            advice = "name another address with --listen" if field == "listen" else "name another address"
            raise ValidationError(f"{field}: {host}:{ports}: {reason}; {advice}", field=field) from None

    def preload(self) -> None:
        """Import what HTTP is served with, in a thread, while the caller waits for PostgreSQL."""
        if self._settings.api:
            threading.Thread(target=_import, args=PRELOADED, daemon=True).start()

    async def prepare(self, database: Database, server: Server | None = None, fires: Fires | None = None) -> None:
        """Make what is served on the sockets. A `server` is for agents, and may be without one.

        `fires` are those of an agent on this event loop, to which the API gives way.
        """
        http_server = self._make_http(database, server, fires)
        if server is not None and self._sockets:
            self._endpoint = Endpoint(
                database,
                server.agent_connections,
                host=self._host,
                port=0,
                tls=self._tls,
                why_not_ready=lambda: server.server_lease.why_not,
                http_server=None if self._api_sockets else http_server,
            )
            await self._endpoint.bind(self._sockets)
            self._opens.append(self._endpoint.open)
            self._closes.insert(0, self._endpoint.close)

    def _make_http(self, database: Database, server: Server | None, fires: Fires | None) -> Http | None:
        """The HTTP server, if there is one; it has a listener unless it shares the agents' port."""
        if server is not None and not self._settings.api:
            return None
        from mainspring.compose.api import make_api
        from mainspring.front.http_server import HttpServer, Limits  # imports uvicorn
        from mainspring.front.listener import Listener

        self._serves_api = True
        api = make_api(self._settings, database, server, fires)
        limits = Limits(connections=self._settings.api_connections)
        http_server = HttpServer(api.app, limits, on_stop=api.end_streams)
        self._closes.append(api.close)
        if self._api_sockets:
            listener = Listener(http_server, self._api_sockets, self._tls)
            self._opens.append(listener.open)
            self._closes.insert(0, listener.close)
        return http_server

    def keeper(self, database: Database, clock: Clock, lease: float) -> BlockedEndpoint:
        """For the watchdog: answers agents while this event loop is blocked. `database` is one for its thread."""
        assert self._endpoint is not None, "it listens for agents"
        return BlockedEndpoint(self._endpoint, database, clock, lease)

    async def open(self) -> Urls:
        """Accept connections."""
        for each in self._opens:
            await each()
        agents = api = None
        suffix = "" if self._tls is None else "s"
        if self._endpoint is not None:
            agents = sockets.url_of(f"ws{suffix}", self._host, self._sockets)
        if self._serves_api and self._settings.public_url is not None:
            api = self._settings.public_url.rstrip("/")
        elif self._serves_api:
            api = sockets.url_of(f"http{suffix}", self._api_host, self._api_sockets or self._sockets)
        return Urls(agents, api)

    async def close(self) -> None:
        """Accept nothing more; close what is open, the API after its last request."""
        closes, self._closes = self._closes, []
        for each in closes:
            await each()
        self._close_sockets()

    def _close_sockets(self) -> None:
        sockets.close(self._sockets)
        sockets.close(self._api_sockets)


def server_tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise ValidationError("tls_cert, tls_key: give both, or none", field="tls_cert")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ValidationError(
            f"tls_cert: {settings.tls_cert} with its key cannot be used: {error}", field="tls_cert"
        ) from None
    return context
