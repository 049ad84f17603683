"""Network: build a server that listens, the API alone, or an agent that connects to servers, from settings.

Next: compose/listening.py
"""

from __future__ import annotations

import asyncio
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
from mainspring.compose.listening import Listening, Urls, server_tls
from mainspring.compose.local import (
    Engine,
    Executors,
    Settings,
    agent_identity_of,
    ended_by,
    identity_of,
    make_agent,
    make_server,
)
from mainspring.compose.stores import without_database
from mainspring.errors import ValidationError
from mainspring.model.words.locations import address, is_loopback
from mainspring.server.agents.lease_keeper import LeaseKeeper
from mainspring.server.planning.scopes import Provider
from mainspring.store.postgres.database import Database
from mainspring.watchdog import Watchdog

__all__ = ["RemoteAgent", "address", "is_loopback", "running_server", "server_tls", "serving", "serving_api"]

LONGEST_TOKEN_LINE = 1000
_TOKEN = re.compile(r"[!-~]{1,500}")


@asynccontextmanager
async def serving(
    settings: Settings, database: Database, app: str | None, providers: Mapping[str, Provider], *, without_tls: bool
) -> AsyncIterator[str]:
    """`running_server`, for callers that need only the URL for agents."""
    async with running_server(settings, database, app, providers, without_tls=without_tls) as urls:
        assert urls.agents is not None
        yield urls.agents


@asynccontextmanager
async def running_server(
    settings: Settings, database: Database, app: str | None, providers: Mapping[str, Provider], *, without_tls: bool
) -> AsyncIterator[Urls]:
    """Run a server that listens for agents and serves the API; yields where. A bug in it ends the block.

    `providers` are those of the application `app`.
    """
    listening = Listening(settings, without_tls=without_tls)  # before it joins: one that cannot listen owns no segments
    with closing(identity_of(settings)) as identity:
        server = make_server(settings, database, identity, app, providers)
        try:
            await listening.prepare(database, server)
            await server.start()
        except BaseException:
            await listening.close()
            raise
        in_thread = database.for_thread()
        watchdog = Watchdog(
            [
                listening.keeper(in_thread, server.clock, settings.lease),
                LeaseKeeper(in_thread, server.membership, server.gateway, settings.lease),
            ],
            lease=lambda: settings.lease,
            limit=settings.block_limit,
            blockages=server.server_lease.tally.blockages,
        )
        watchdog.start()
        try:
            assert server.loops is not None
            urls = await listening.open()
            await server.membership.announce(urls.agents, urls.api)
            async with ended_by(server.loops):
                yield urls
        finally:
            await server.leave()  # before its agents reconnect elsewhere
            await listening.close()
            await server.stop(patience=settings.stop_patience)
            await watchdog.stop()


@asynccontextmanager
async def serving_api(settings: Settings, database: Database, *, without_tls: bool) -> AsyncIterator[str]:
    """Serve the API and nothing else; yields its URL."""
    listening = Listening(settings, without_tls=without_tls, without_agents=True)
    try:
        await listening.prepare(database)
        urls = await listening.open()
        assert urls.api is not None
        yield urls.api
    finally:
        await listening.close()


@asynccontextmanager
async def listening_for(engine: Engine, database: Database, listening: Listening) -> AsyncIterator[Urls]:
    """Let the server of an engine accept agents and requests; yields where."""
    try:
        await listening.prepare(database, engine.server, engine.agent.timers)
        engine.watchdog.add(listening.keeper(database.for_thread(), engine.server.clock, engine.lease))
        urls = await listening.open()
        await engine.server.membership.announce(urls.agents, urls.api)
        yield urls
    finally:
        await engine.server.leave()  # before its agents reconnect elsewhere
        await listening.close()


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
        """Run until `asked` is set, it has been idle for as long as the settings say, or no server admits it."""
        idle = self._settings.exit_when_idle
        await self._first_of(asked.wait(), *([] if idle is None else [self.agent.idle(idle)]))

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


def agent_tls(settings: Settings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise ValidationError(f"tls_ca: {settings.tls_ca} cannot be used: {error}", field="tls_ca") from None
