"""The composition root: builds a database, a server and an agent from settings.

Next: server/server.py and agent/session.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from mainspring.agent.attempt import Attempt
from mainspring.agent.current import Transactions
from mainspring.agent.executors.command import CommandExecutor
from mainspring.agent.executors.python import Handler, PythonExecutor
from mainspring.agent.session import Agent
from mainspring.config import Settings, load
from mainspring.errors import StaleAttempt, StoreUnavailable
from mainspring.model.jobs import Command, Definition, Python
from mainspring.model.messages import AgentMessage, Ending, ServerMessage
from mainspring.model.states import TaskState
from mainspring.server.rescuer import process_identity
from mainspring.server.server import Server
from mainspring.store import jobs, outcomes
from mainspring.store.database import Database
from mainspring.store.embedded import Embedded
from mainspring.store.migrate import migrate
from mainspring.wire.channel import Channel, memory_pair

log = logging.getLogger("mainspring")

AgentChannel = Channel[AgentMessage, ServerMessage]

RECONNECT_AFTER = 1.0  # seconds, when the database does not give a session

__all__ = ["Engine", "Settings", "engine", "load", "open_database"]


@asynccontextmanager
async def open_database(settings: Settings, *, prepare: bool = True) -> AsyncIterator[Database]:
    """The database of these settings, the embedded one if there is no DSN; its schema up to date."""
    embedded = None
    dsn = settings.dsn
    if dsn is None:
        directory = Path(settings.data_directory) if settings.data_directory else None
        embedded = await asyncio.to_thread(Embedded.start, directory)
        dsn = embedded.dsn
    database = Database(dsn)
    try:
        if prepare:
            await migrate(database)
        await database.open()
        yield database
    finally:
        await database.close()
        if embedded is not None:
            await asyncio.to_thread(embedded.stop)


async def register(database: Database, definitions: Mapping[str, Definition]) -> None:
    async with database.acquire() as conn:
        await jobs.register(conn, definitions)


class Engine:
    """A server and an agent in this process, joined by a channel in memory."""

    def __init__(self, server: Server, make_agent: Callable[[AgentChannel], Agent]) -> None:
        self.server = server
        self._make_agent = make_agent
        self._stopping = False
        self.joined = asyncio.Event()
        self.agent: Agent

    async def run(self) -> None:
        """One session after another: to lose the lease ends a session, and what it ran, but not the worker."""
        while not self._stopping:
            agent_end, server_end = memory_pair()
            self.agent = self._make_agent(agent_end)
            serving = asyncio.create_task(self.server.gateway.serve(server_end, process=process_identity()))
            running = asyncio.create_task(self.agent.run())
            welcomed = asyncio.create_task(self.agent.welcomed.wait())
            await asyncio.wait([running, welcomed], return_when=asyncio.FIRST_COMPLETED)
            if not welcomed.cancel():
                self.joined.set()
            try:
                await asyncio.gather(serving, running)
            except StoreUnavailable as error:
                log.warning("no session: %s; trying again", error)
                await asyncio.sleep(RECONNECT_AFTER)

    async def stop(self, patience: float) -> None:
        """Running attempts may end within `patience`; then they are stopped, which costs them no attempt."""
        self._stopping = True
        stopping = asyncio.create_task(self.server.stop(patience=patience + 10.0))
        try:
            async with asyncio.timeout(patience):
                await asyncio.sleep(0)
                await self.agent.runner.empty.wait()
        except TimeoutError:
            self.agent.runner.stop_all("shutdown")
        await stopping
        await self.agent.close()

    async def follow_clock(self) -> None:
        """The database's clock was set: follow it now, not at the next measurement."""
        await self.server.follow_clock()
        self.agent.follow(self.server.clock)
        self.server.dispatcher.wake.set()


@asynccontextmanager
async def engine(
    settings: Settings, database: Database, handlers: Mapping[str, Handler], labels: dict[str, str]
) -> AsyncIterator[Engine]:
    """Run a server and an agent until the block ends; then drain, stop and record."""
    server = Server(
        database,
        poll=settings.poll,
        lead=settings.lead,
        lease=settings.lease,
        keep_succeeded=timedelta(seconds=settings.keep_succeeded),
        keep_failed=timedelta(seconds=settings.keep_failed),
    )
    python = PythonExecutor(handlers, _transactions(database, server), settings.threads)
    command = CommandExecutor()

    def make_agent(channel: AgentChannel) -> Agent:
        return Agent(
            channel,
            name=settings.agent_name,
            slots=settings.slots,
            labels=labels,
            executors={Python: python, Command: command},
        )

    engine = Engine(server, make_agent)
    await server.start()
    running = asyncio.create_task(engine.run())
    try:
        await engine.joined.wait()
        yield engine
    finally:
        await engine.stop(settings.stop_patience)
        await asyncio.wait([running])
        python.close()
        await command.close()


def _transactions(database: Database, server: Server) -> Transactions:
    @asynccontextmanager
    async def transaction(attempt: Attempt) -> AsyncIterator[Any]:
        armed = attempt.armed
        async with database.acquire(translated=False) as conn, conn.transaction():
            yield conn  # what the handler raises here stays its own
            ending = Ending(
                armed.task,
                armed.token,
                armed.job,
                armed.attempt,
                TaskState.SUCCEEDED,
                attempt.started_at,
                server.clock.now(),
            )
            if not await outcomes.finish(conn, [ending]):
                raise StaleAttempt(f"task {armed.task} belongs to another attempt now; nothing was committed")

    return transaction
