"""Stores: open the database that settings name, and write what an application defines to it.

It imports neither the server nor the agent: a command that asks the database starts in half the time.
Next: compose/local.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

from mainspring.config import Settings
from mainspring.errors import ValidationError
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.jobs import Definition
from mainspring.store.embedded.server import Embedded, default_directory
from mainspring.store.manifests import owners
from mainspring.store.postgres.database import Database
from mainspring.store.postgres.migrate import migrate
from mainspring.store.schedules import synchronise
from mainspring.store.tasks import jobs

log = logging.getLogger("mainspring")


def data_directory(settings: Settings) -> Path:
    return Path(settings.data_directory) if settings.data_directory else default_directory()


_is_agent = False


@contextmanager
def without_database() -> Iterator[None]:
    """While this process is an agent: it opens no database without a DSN."""
    global _is_agent
    was, _is_agent = _is_agent, True
    try:
        yield
    finally:
        _is_agent = was


def lacks_database() -> bool:
    """Whether this process may open only a database that is named by a DSN."""
    return _is_agent


def no_database() -> ValidationError:
    return ValidationError(
        "this process is an agent, which has no database: start it with --dsn. Without one, a handler can submit "
        "tasks, through the agent's server; their result(), status() and the like need a database",
        field="dsn",
    )


@asynccontextmanager
async def open_database(settings: Settings, *, prepare: bool = True) -> AsyncIterator[Database]:
    """The database of these settings, the embedded one if there is no DSN.

    A server prepares it: it migrates the schema, and remembers across restarts where PostgreSQL failed over to.
    """
    directory = data_directory(settings)
    if settings.dsn is None and _is_agent:
        raise no_database()
    if settings.dsn is None:
        embedded = await asyncio.to_thread(Embedded.start, directory)
        database = Database(embedded.dsn, revive=embedded.revive)
    else:
        embedded = None
        database = Database(settings.dsn, timeline_file=directory / "timelines.json" if prepare else None)
    try:
        if prepare:
            await migrate(database)
        await database.open()
        yield database
    finally:
        await database.close()
        if embedded is not None:
            await _in_thread(embedded.stop)


async def _in_thread(call: Callable[[], None]) -> None:
    try:
        await asyncio.to_thread(call)
    except RuntimeError:  # the interpreter is shutting down and starts no threads
        call()


class Timetable(Protocol):
    """The schedules and calendars of an application."""

    all: dict[str, Schedule]
    calendars: dict[str, tuple[str, ...]]


async def register(
    database: Database, definitions: Mapping[str, Definition], app: str, version: int, timetable: Timetable
) -> None:
    """Write what an application defines to the database: jobs, calendars, schedules; as they are at the call.

    A role that may not, such as a producer's, uses what is there: another process of the application has defined it.
    """
    definitions, calendars, schedules = dict(definitions), dict(timetable.calendars), list(timetable.all.values())
    async with database.acquire() as conn:
        if not await jobs.may_register(conn):
            log.info("this role of PostgreSQL may not define jobs and schedules; it uses those that are there")
            return
        await owners.check_free(conn, "calendar", calendars)
        await synchronise.put_calendars(conn, calendars)
        await owners.note_app(conn, app, "calendar", calendars)
        async with conn.transaction():
            await owners.check_free(conn, "job", definitions)
            await jobs.register(conn, definitions)
            await owners.note_app(conn, app, "job", definitions)
            await synchronise.synchronise(conn, app, version, schedules)
