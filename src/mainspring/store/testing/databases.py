"""Databases for tests: each a copy of a template that has the schema.

A migration takes longer than a copy, and a start of PostgreSQL longer than both: the template stays for the next test
run, and the server runs until the process ends. Several processes may do this at once. A user holds an advisory lock
on each database, so that the next process can drop what a killed one has left behind.

Runs    an embedded PostgreSQL for tests alone, without fsync
Writes  databases mainspring_template_…, one for each version of the schema, and mainspring_test_…
"""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg

from mainspring.store.embedded.server import Embedded
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.database import Database
from mainspring.store.postgres.dsn import at_database
from mainspring.store.postgres.errors import translating
from mainspring.store.postgres.migrate import fingerprint, migrate
from mainspring.store.tasks import partitions

_LOCKS = 0x74657374  # "test": the class of our advisory locks
_OF_TEMPLATES = 0
_TRIES = 5  # a test run of another version may drop the template before the copy

_keeping = threading.Lock()
_kept: dict[tuple[int, Path], Embedded] = {}  # by process id: a fork must not use its parent's
_swept: set[str] = set()  # servers on which this process has dropped what others left behind


@asynccontextmanager
async def new_database(server: str) -> AsyncIterator[str]:
    """A new database on this server with an empty schema; yields its DSN, and drops it at the end."""
    name = f"mainspring_test_{secrets.token_hex(6)}"
    conn = await Database(server).connect()
    try:
        with translating():
            await _lock(conn, name)
            if server not in _swept:
                _swept.add(server)
                await _sweep(conn)
            await _copy(conn, server, name)
        try:
            yield at_database(server, name)
        finally:
            with translating():
                await conn.execute(f'drop database if exists "{name}" with (force)')
    finally:
        await conn.close()


def stop_servers() -> None:
    """Release the embedded servers of this process; the last user of each stops it."""
    with _keeping:
        for (process, _), embedded in list(_kept.items()):
            if process == os.getpid():
                with suppress(OSError):  # its directory was removed, and the server ends by itself
                    embedded.stop()
        _kept.clear()


async def embedded_server(directory: Path) -> str:
    """The DSN of an embedded server that runs until the process ends. Its data need not survive a power cut."""
    dsn = await asyncio.to_thread(_keep_embedded, directory)
    if dsn not in _swept:
        async with Database(dsn).brief() as conn:
            for setting in ("fsync", "full_page_writes"):
                if await conn.fetchval("select current_setting($1)", setting) != "off":
                    await conn.execute(f"alter system set {setting} = off")
            await conn.execute("select pg_reload_conf()")
    return dsn


def _keep_embedded(directory: Path) -> str:
    with _keeping:
        if not _kept:
            atexit.register(stop_servers)
        embedded = _kept.get((os.getpid(), directory))
        if embedded is None:
            embedded = _kept[os.getpid(), directory] = Embedded.start(directory)
        else:
            embedded.revive()  # if it was killed
        return embedded.dsn


async def _lock(conn: Connection, name: str) -> None:
    """Held until `conn` is closed, by this process or by its death."""
    await conn.execute("select pg_advisory_lock($1, hashtext($2))", _LOCKS, name)


async def _sweep(conn: Connection) -> None:
    """Drop the databases of tests whose process is gone."""
    for row in await conn.fetch(r"select datname from pg_database where datname like 'mainspring\_test\_%'"):
        key = (_LOCKS, row["datname"])
        if await conn.fetchval("select pg_try_advisory_lock($1, hashtext($2))", *key):
            await conn.execute(f'drop database if exists "{row["datname"]}"')
            await conn.execute("select pg_advisory_unlock($1, hashtext($2))", *key)


async def _copy(conn: Connection, server: str, name: str) -> None:
    # Copying files is quicker for a small database.
    strategy = "strategy file_copy" if conn.get_server_version().major >= 15 else ""
    for left in reversed(range(_TRIES)):
        template = await _template(conn, server)
        try:
            await conn.execute(f'create database "{name}" template "{template}" {strategy}')
            break
        except asyncpg.InvalidCatalogNameError:
            if not left:
                raise
    await conn.execute(f'alter database "{name}" set synchronous_commit = off')


async def _template(conn: Connection, server: str) -> str:
    """The name of the database to copy. The first caller makes it."""
    name = f"mainspring_template_{fingerprint()}"
    if await _exists(conn, name):
        return name
    await conn.execute("select pg_advisory_lock($1, $2)", _LOCKS, _OF_TEMPLATES)
    try:
        if not await _exists(conn, name):
            for row in await conn.fetch(
                r"select datname from pg_database where datname like 'mainspring\_template\_%'"
            ):
                await conn.execute(f'drop database if exists "{row["datname"]}" with (force)')  # of other versions
            draft = f"{name}_draft"
            await conn.execute(f'create database "{draft}"')
            await _fill(at_database(server, draft))
            await conn.execute(f'alter database "{draft}" rename to "{name}"')
    finally:
        await conn.execute("select pg_advisory_unlock($1, $2)", _LOCKS, _OF_TEMPLATES)
    return name


async def _fill(dsn: str) -> None:
    database = Database(dsn)
    await migrate(database)
    async with database.brief() as conn:
        await partitions.make_ahead(conn, days=3)


async def _exists(conn: Connection, name: str) -> bool:
    return bool(await conn.fetchval("select exists (select from pg_database where datname = $1)", name))
