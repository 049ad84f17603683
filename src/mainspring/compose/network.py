"""Network: build a server with an endpoint for agents, or an agent that connects to servers, from settings.

Next: server/agents/endpoint.py
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, closing
from typing import Any
from urllib.parse import urlsplit

from mainspring.agent.connection.connector import Connector, server_urls
from mainspring.agent.connection.session_keeper import SessionKeeper
from mainspring.agent.executors.python import Handler
from mainspring.compose.local import (
    Executors,
    Settings,
    agent_identity_of,
    ended_by,
    identity_of,
    make_agent,
    make_server,
    without_database,
)
from mainspring.errors import ValidationError, shown
from mainspring.server.agents.endpoint import Endpoint
from mainspring.server.agents.keep import BlockedEndpoint
from mainspring.server.agents.lease_keeper import LeaseKeeper
from mainspring.server.planning.scopes import Provider
from mainspring.store.postgres.database import Database
from mainspring.watchdog import Watchdog

LONGEST_TOKEN_LINE = 1000
_TOKEN = re.compile(r"[!-~]{1,500}")


@asynccontextmanager
async def serving(
    settings: Settings, database: Database, app: str | None, providers: Mapping[str, Provider], *, without_tls: bool
) -> AsyncIterator[str]:
    """Run a server with an endpoint; yields its URL. A bug in it ends the block.

    `providers` are those of the application `app`.
    """
    host, port = address(settings.listen)
    tls = server_tls(settings)
    if tls is None and not without_tls and not is_loopback(host):
        raise ValidationError(
            f"listen: {host} is not this machine alone, and tokens would pass in plain text; "
            "give --tls-cert and --tls-key, or --without-tls if the network is yours",
            field="listen",
        )
    with closing(identity_of(settings)) as identity:
        server = make_server(settings, database, identity, app, providers)
        endpoint = Endpoint(
            database,
            server.agent_connections,
            host=host,
            port=port,
            tls=tls,
            why_not_ready=lambda: server.server_lease.why_not,
        )
        await endpoint.bind()  # before it joins: a server that cannot listen must not own segments
        await server.start()
        in_thread = database.for_thread()
        watchdog = Watchdog(
            [
                BlockedEndpoint(endpoint, in_thread, server.clock, settings.lease),
                LeaseKeeper(in_thread, server.membership, server.gateway, settings.lease),
            ],
            lease=lambda: settings.lease,
            limit=settings.block_limit,
            blockages=server.server_lease.tally.blockages,
        )
        watchdog.start()
        try:
            assert server.loops is not None
            url = await endpoint.open()
            await server.membership.announce(url)
            async with ended_by(server.loops):
                yield url
        finally:
            await server.leave()  # before its agents reconnect elsewhere
            await endpoint.close()
            await server.stop(patience=settings.stop_patience)
            await watchdog.stop()


class RemoteAgent:
    """An agent that connects to servers elsewhere. `database` is for its handlers; None without a DSN."""

    def __init__(
        self, settings: Settings, handlers: Mapping[str, Handler], app: str | None, *, without_tls: bool = False
    ) -> None:
        if settings.server is None:
            raise ValidationError(
                "server: which one? Give --server wss://host:7070, or MAINSPRING_SERVER", field="server"
            )
        urls = server_urls(settings.server)
        if not without_tls:
            _check_private(urls)
        token = _token(settings)
        self._settings = settings
        labels = settings.labels if app is None else {**settings.labels, "app": app}
        self.database = None if settings.dsn is None else Database(settings.dsn)
        self._executors = Executors(settings, self.database, handlers)
        connector = Connector(urls, token, agent_tls(settings))
        self._identity = agent_identity_of(settings)
        self.agent = make_agent(settings, self._identity, labels, self._executors, connector)
        self.agent.session_keeper = SessionKeeper(self.agent, connector.beside, blocked=False)
        self._watchdog = Watchdog(
            [SessionKeeper(self.agent, connector.beside)],
            lease=lambda: self.agent.lease.length or settings.lease,  # the servers decide
            limit=settings.block_limit,
            blockages=self.agent.blockages,
            find_blocker=self.agent.find_blocker,
            why_end=self.agent.why_end,
        )
        self._without_database = without_database()
        self._running: asyncio.Task[None]

    async def __aenter__(self) -> RemoteAgent:
        self._without_database.__enter__()
        self._running = asyncio.create_task(self.agent.run(), name="mainspring agent")
        self._watchdog.start()
        return self

    async def joined(self, asked: asyncio.Event) -> int | None:
        """The session, once a server accepts the agent; None if `asked` is set first. AccessDenied if none does."""
        await self._first_of(asked.wait(), self.agent.welcomed.wait())
        return None if asked.is_set() else self.agent.session

    async def until(self, asked: asyncio.Event) -> None:
        """Run until `asked` is set, or no server admits the agent any more."""
        await self._first_of(asked.wait())

    async def _first_of(self, *waits: Coroutine[Any, Any, Any]) -> None:
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait([self._running, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if self._running.done():
            self._running.result()  # raises the reason

    async def __aexit__(self, *_: object) -> None:
        if not self._running.done():
            await self.agent.drain(self._settings.stop_patience)
            await self.agent.close()
        await asyncio.wait([self._running])
        await self._executors.close()
        await self._watchdog.stop()
        if self.database is not None:
            await self.database.close()
        self._identity.close()
        self._without_database.__exit__(None, None, None)


def _check_private(urls: list[str]) -> None:
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme == "ws" and not is_loopback(parts.hostname or ""):
            raise ValidationError(
                f"server: {parts.netloc} is another machine, and the token would pass in plain text; write"
                f" wss://{parts.netloc}, with a server that has --tls-cert, or give --without-tls if the network is"
                " yours",
                field="server",
            )


def _token(settings: Settings) -> str:
    token, field = settings.token, "token"
    if settings.token_file is not None:
        token, field = _read_token(settings.token_file), "token_file"
    if token is None:
        raise ValidationError(
            "token: give --token-file or MAINSPRING_TOKEN; `mainspring token create NAME` makes one", field="token"
        )
    if not _TOKEN.fullmatch(token):
        raise ValidationError(f"{field}: not one of ours; `mainspring token create NAME` makes one", field=field)
    return token


def _read_token(file: str) -> str:
    """The first line of a file, or of the standard input."""
    try:
        if file == "-":
            return sys.stdin.readline(LONGEST_TOKEN_LINE).strip()
        with open(file, encoding="utf-8") as source:
            return source.readline(LONGEST_TOKEN_LINE).strip()
    except (OSError, ValueError) as error:  # also a NUL in its name, or what is not UTF-8
        reason = getattr(error, "strerror", None) or error
        raise ValidationError(f"token_file: {file!r} cannot be read: {reason}", field="token_file") from None


def address(text: str) -> tuple[str, int]:
    """HOST:PORT; the host may be an IPv6 address in brackets."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdecimal()
    if is_number and (len(port) > 5 or int(port) > 65535):
        raise ValidationError(f"listen: there is no port {port}; 0 to 65535", field="listen")
    if not colon or not host or not is_number:
        raise ValidationError(f"listen: {shown(text)}; write HOST:PORT, such as 127.0.0.1:7070", field="listen")
    return host, int(port)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


def agent_tls(settings: Settings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise ValidationError(f"tls_ca: {settings.tls_ca} cannot be used: {error}", field="tls_ca") from None
