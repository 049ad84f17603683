"""Client: how commands call operations on the database that the shared options name.

Next: operations/tasks.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import asyncpg

from mainspring.compose.local import Settings, load, open_database
from mainspring.errors import AccessDenied, SchemaMismatch
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.database import Database

P = ParamSpec("P")
R = TypeVar("R")


class Client:
    """Connects on the first call: what is wrong with a request is reported before that."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._stack = AsyncExitStack()
        self._database: Database | None = None

    async def call(
        self, operation: Callable[Concatenate[Connection, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`await client.call(jobs.show, "backup")`"""
        async with self.acquire() as conn:
            return await operation(conn, *args, **kwargs)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        if self._database is None:
            # The embedded PostgreSQL is migrated by its first user. A shared one is migrated by servers and
            # `mainspring migrate` only.
            opening = open_database(self.settings, prepare=self.settings.dsn is None)
            self._database = await self._stack.enter_async_context(opening)
        try:
            async with self._database.acquire() as conn:
                yield conn
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError) as error:
            raise SchemaMismatch("this database lacks (parts of) the schema; run `mainspring migrate`") from error
        except asyncpg.UndefinedColumnError as error:
            raise SchemaMismatch("this database has an older schema; run `mainspring migrate`") from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise AccessDenied(f"PostgreSQL does not allow it ({error}); use a role that may") from error

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def open_client(overrides: Mapping[str, Any]) -> AsyncIterator[Client]:
    client = Client(load(overrides))
    try:
        yield client
    finally:
        await client.close()
