"""The composition root: builds a database, a server and an agent from settings.

Next: server/server.py and agent/session.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
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
from mainspring.errors import StaleAttempt
from mainspring.model.jobs import Command, Definition, Python
from mainspring.model.messages import Ending
from mainspring.model.states import TaskState
from mainspring.server.rescuer import process_identity
from mainspring.server.server import Server
from mainspring.store import jobs, outcomes
from mainspring.store.database import Database
from mainspring.store.embedded import Embedded
from mainspring.store.migrate import migrate
from mainspring.wire.channel import memory_pair

log = logging.getLogger("mainspring")

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

    def __init__(self, server: Server, agent: Agent) -> None:
        self.server = server
        self.agent = agent

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
    agent_end, server_end = memory_pair()
    python = PythonExecutor(handlers, _transactions(database, server), settings.threads)
    command = CommandExecutor()
    agent = Agent(
        agent_end,
        name=settings.agent_name,
        slots=settings.slots,
        labels=labels,
        executors={Python: python, Command: command},
    )
    await server.start()
    serving = asyncio.create_task(server.gateway.serve(server_end, process=process_identity()))
    running = asyncio.create_task(agent.run())
    try:
        await agent.welcomed.wait()
        yield Engine(server, agent)
    finally:
        await _stop(server, agent, settings.stop_patience)
        await asyncio.wait([serving, running])
        python.close()
        await command.close()


async def _stop(server: Server, agent: Agent, patience: float) -> None:
    """Running attempts may end within `patience`; then they are stopped, which costs them no attempt."""
    stopping = asyncio.create_task(server.stop(patience=patience + 10.0))
    try:
        async with asyncio.timeout(patience):
            await asyncio.sleep(0)
            await agent.runner.empty.wait()
    except TimeoutError:
        agent.runner.stop_all("shutdown")
    await stopping
    await agent.close()


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
