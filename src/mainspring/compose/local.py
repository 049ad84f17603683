"""Local: build a server and an agent in one process, from settings.

Next: server/server.py
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from mainspring.agent.agent import Agent, Connect
from mainspring.agent.attempt import Attempt, Executor, Transactions
from mainspring.agent.executors.command import CommandExecutor
from mainspring.agent.executors.http import HttpExecutor
from mainspring.agent.executors.python import Handler, PythonExecutor
from mainspring.compose.secret_keys import SecretKeys
from mainspring.compose.stores import data_directory
from mainspring.config import Settings, load
from mainspring.errors import StaleAttempt, StoreUnavailable
from mainspring.model.messages import AgentMessage, Ending, Hello, ServerMessage
from mainspring.model.placement.lead import Lead
from mainspring.model.tasks.jobs import Command, Http, Python, Run
from mainspring.model.tasks.states import TaskState
from mainspring.server.agents.lease_keeper import LeaseKeeper
from mainspring.server.cluster.dead_processes import process_identity
from mainspring.server.cluster.identity import Identity
from mainspring.server.planning.scopes import Provider
from mainspring.server.server import Server
from mainspring.store.cluster.servers import ServerInfo
from mainspring.store.postgres.database import Database
from mainspring.store.tasks import transitions
from mainspring.version import VERSION
from mainspring.watchdog import Watchdog
from mainspring.wire.channel import Channel, memory_pair
from mainspring.wire.clock import Clock

log = logging.getLogger("mainspring")

REPORTS_WITHIN = 10.0  # seconds beyond the patience, in which stopped attempts end and report

__all__ = ["Engine", "Settings", "load"]


def identity_of(settings: Settings) -> Identity:
    return Identity.of(data_directory(settings))


def make_server(
    settings: Settings, database: Database, identity: Identity, app: str | None, providers: Mapping[str, Provider]
) -> Server:
    host = socket.gethostname() or "unknown"
    name = settings.server_name or identity.name_on(host)
    return Server(
        database,
        ServerInfo(identity.id, name, VERSION, host, None, app, process_identity()),
        poll=settings.poll,
        lead=Lead(
            settings.lead,
            settings.lead_min,
            settings.lead_max,
            settings.lead_latency_factor,
            settings.lead_load_factor,
        ),
        lease=settings.lease,
        keep_succeeded=timedelta(seconds=settings.keep_succeeded),
        keep_failed=timedelta(seconds=settings.keep_failed),
        skew_limit=settings.skew_limit,
        placement=settings.placement,
        providers=providers,
        http_allow=settings.http_allow,
        read_keys=SecretKeys(settings).read,
        wall=_wall(settings),
    )


def agent_identity_of(settings: Settings) -> Identity:
    """Tells agents of one host apart that have no name. An agent with a name takes no number."""
    return Identity(uuid4()) if settings.agent_name else Identity.of(data_directory(settings), "agent")


def make_agent(
    settings: Settings,
    identity: Identity,
    labels: dict[str, str],
    executors: Executors,
    connect: Connect,
    clock: Clock | None = None,
) -> Agent:
    """`clock` is that of a server in the same process."""
    host = socket.gethostname() or "unknown"
    name = settings.agent_name or identity.name_on(host)
    hello = Hello(name, settings.slots, labels, offers=settings.offers, version=VERSION, host=host)
    return Agent(
        connect,
        hello=hello,
        executors=executors.by_kind,
        hold_until=executors.hold_until,
        wall=_wall(settings),
        clock=clock,
    )


def _wall(settings: Settings) -> Callable[[], float]:
    """This machine's clock."""
    return (lambda: time.time() + settings.clock_offset) if settings.clock_offset else time.time


class Executors:
    """How an agent runs each kind of job. With a database, handlers can use transactions."""

    def __init__(self, settings: Settings, database: Database | None, handlers: Mapping[str, Handler]) -> None:
        self._database = None if database is None else database.for_handlers()
        transactions = None if self._database is None else _transactions(self._database)
        self._python = PythonExecutor(handlers, transactions, settings.threads)
        self._command = CommandExecutor(
            run_as=settings.run_as, allow_commands=settings.allow_commands, allow_env=settings.allow_env
        )
        self.hold_until = self._command.hold_until
        self._http = HttpExecutor(allow=settings.http_allow)
        self.by_kind: dict[type[Run], Executor] = {Python: self._python, Command: self._command, Http: self._http}

    async def close(self) -> None:
        self._python.close()
        await self._command.close()
        await self._http.close()
        if self._database is not None:
            await self._database.close()


def _transactions(database: Database) -> Transactions:
    @asynccontextmanager
    async def transaction(attempts: Sequence[Attempt]) -> AsyncIterator[Any]:
        async with database.acquire(translated=False) as conn, conn.transaction():
            yield conn  # errors of the handler pass through untranslated
            endings = [_completion(attempt) for attempt in attempts]
            completed = {ending.task for ending in await transitions.complete(conn, endings)}
            if stale := [ending.task for ending in endings if ending.task not in completed]:
                tasks = f"task {stale[0]} belongs" if len(stale) == 1 else f"tasks {stale} belong"
                raise StaleAttempt(f"{tasks} to another attempt now; nothing was committed")
        for attempt in attempts:
            attempt.committed = True

    return transaction


def _completion(attempt: Attempt) -> Ending:
    """Without an end: the database sets it to the time of the commit."""
    armed = attempt.armed
    return Ending(armed.task, armed.token, armed.job, armed.attempt, TaskState.SUCCEEDED, attempt.started_at, 0.0)


class Engine:
    """A server and an agent in this process, connected by a channel in memory."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        handlers: Mapping[str, Handler],
        labels: dict[str, str],
        providers: Mapping[str, Provider],
    ) -> None:
        self._identity = identity_of(settings)
        self.server = make_server(settings, database, self._identity, labels.get("app"), providers)
        self._settings = settings
        self.lease = settings.lease
        self._executors = Executors(settings, database, handlers)
        self._agent_identity = agent_identity_of(settings)
        self.agent = make_agent(settings, self._agent_identity, labels, self._executors, self._dial, self.server.clock)
        self.server.server_lease.tally.blockages = self.agent.blockages  # one loop
        self.watchdog = Watchdog(
            [
                LeaseKeeper(
                    database.for_thread(),
                    self.server.membership,
                    self.server.gateway,
                    settings.lease,
                    self.agent.kept,
                )
            ],
            lease=lambda: settings.lease,
            limit=settings.block_limit,
            blockages=self.agent.blockages,
            find_blocker=self.agent.find_blocker,
            why_end=self.agent.why_end,
        )
        self._group = asyncio.TaskGroup()
        self._sessions: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Engine]:
        """Run both until the block ends; then drain, stop and record. A bug in them ends the block."""
        try:
            await self.server.start()
            self.watchdog.start()
            self._sessions = asyncio.create_task(self._run_agent(), name="mainspring agent")
            while not (self.agent.welcomed.is_set() or self._sessions.done()):
                await asyncio.sleep(0.002)
            assert self.server.loops is not None
            async with ended_by(self.server.loops, self._sessions):
                yield self
        finally:
            await self._stop()

    async def _run_agent(self) -> None:
        async with self._group as group:
            group.create_task(self.agent.run())

    async def _dial(self, _credential: str | None) -> Channel[AgentMessage, ServerMessage]:
        """Connect to the server in this process. A bug in either end ends both."""
        agent_end, server_end = memory_pair()
        self._group.create_task(self._serve(server_end))
        return agent_end

    async def _serve(self, channel: Channel[ServerMessage, AgentMessage]) -> None:
        try:
            await self.server.agent_connections.serve(channel, process=process_identity())
        except StoreUnavailable as error:
            log.warning("no session: %s; retrying", error)

    async def follow_clock(self) -> None:
        """A test has set the database's clock: measure it now, and wake the loops that depend on it."""
        await self.server.clock_loop.step()
        server = self.server
        for part in (server.planner, server.overlap, server.limits, server.dispatcher, server.broadcaster):
            part.wake.set()

    async def _stop(self) -> None:
        """Wait for running attempts for the patience, then stop them, which costs them no attempt."""
        self.agent.stay_away()
        patience = self._settings.stop_patience
        stopping = asyncio.create_task(self.server.stop(patience=patience + REPORTS_WITHIN))
        try:
            async with asyncio.timeout(patience):
                await asyncio.sleep(0)  # the server drains the agent first
                await self.agent.runner.empty.wait()
        except TimeoutError:
            self.agent.runner.stop_all("shutdown")
        await stopping
        await self.agent.close()
        await self.agent.failures.close()
        if self._sessions is not None:
            self._sessions.cancel()  # it has ended by now, unless a handler does not stop
            await asyncio.wait([self._sessions])
        await self._executors.close()
        await self.watchdog.stop()
        self._agent_identity.close()
        self._identity.close()


@asynccontextmanager
async def ended_by(*parts: asyncio.Task[None]) -> AsyncIterator[None]:
    """The block ends when one of `parts` fails, with its error."""
    owner = asyncio.current_task()
    assert owner is not None
    errors: list[BaseException] = []

    def ended(part: asyncio.Task[None]) -> None:
        if not part.cancelled() and (error := part.exception()) is not None:
            errors.append(error)
            owner.cancel()

    for part in parts:
        part.add_done_callback(ended)
    try:
        yield
    except asyncio.CancelledError:
        if errors:
            raise errors[0] from None
        raise
    finally:
        for part in parts:
            part.remove_done_callback(ended)
