"""Client: how commands call operations on the database that the shared options name.

Next: operations/tasks.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from mainspring.cli.base import shared

if TYPE_CHECKING:
    from mainspring.config import Settings
    from mainspring.store.postgres.database import Connection, Database

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
        """`await client.call(operations.jobs.show, "backup")`"""
        async with self.acquire() as conn:
            return await operation(conn, *args, **kwargs)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        import asyncpg

        from mainspring.errors import AccessDenied, SchemaMismatch

        database = await self._open()
        try:
            async with database.acquire() as conn:
                yield conn
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError) as error:
            raise SchemaMismatch("this database lacks (parts of) the schema; run `mainspring migrate`") from error
        except asyncpg.UndefinedColumnError as error:
            raise SchemaMismatch("this database has an older schema; run `mainspring migrate`") from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise AccessDenied(f"PostgreSQL does not allow it ({error}); use a role that may") from error

    async def _open(self) -> Database:
        """Migrates the embedded PostgreSQL; a shared one is left to servers and `mainspring migrate`."""
        from mainspring.compose.local import open_database

        if self._database is None:
            opening = open_database(self.settings, prepare=self.settings.dsn is None)
            self._database = await self._stack.enter_async_context(opening)
        return self._database

    async def close(self) -> None:
        await self._stack.aclose()


def run_async(command: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async command on an event loop."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        import asyncio

        asyncio.run(command(*args, **kwargs))

    return run


def with_client(command: Callable[Concatenate[Client, P], Awaitable[None]]) -> Callable[P, None]:
    """Run an async command with a client for the database that the shared options name."""

    @wraps(command)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from mainspring.compose.local import load

        client = Client(load(shared().overrides()))
        try:
            await command(client, *args, **kwargs)
        finally:
            await client.close()

    return run_async(run)
