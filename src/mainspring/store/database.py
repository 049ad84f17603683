"""Connections to PostgreSQL: a pool for the many, lines of their own for the few that must never wait.

Every fault of the connection leaves here as StoreUnavailable, so that callers name one error.
Next: store/migrate.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any, Protocol

import asyncpg

from mainspring.errors import JobNotFound, MainspringError, StoreUnavailable, ValidationError


class Connection(Protocol):
    """What we use of asyncpg's connection."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str: ...
    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]: ...
    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...
    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...
    async def add_listener(self, channel: str, callback: Callable[[Any, int, str, object], None]) -> None: ...
    async def close(self, *, timeout: float | None = None) -> None: ...
    def transaction(self) -> AbstractAsyncContextManager[Any]: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...
    def get_server_version(self) -> Any: ...


OLDEST_SERVER = 14
CONNECT_TIMEOUT = 10.0
COMMAND_TIMEOUT = 30.0

# Plans must not depend on fresh statistics: with these, an empty or stale table still gives the index scan.
# The pool goes without them: submissions must also pass through PgBouncer, which refuses such settings.
_PLANNER = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}

_GONE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that was cut between two statements, at its next use
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.TransactionRollbackError,  # a deadlock was broken: repeat
    asyncpg.exceptions.ReadOnlySQLTransactionError,
)


def translate(error: BaseException) -> MainspringError | None:
    """Our error for one of the driver's, where we have one."""
    state = getattr(error, "sqlstate", None)
    if state in ("MSV01", "MSJ01"):
        # psycopg adds where in the SQL it was raised; its diagnosis has the message alone.
        message = getattr(getattr(error, "diag", None), "message_primary", None) or str(error)
        if state == "MSJ01":
            return JobNotFound(message, field="job")
        return ValidationError(message, field=message.partition(":")[0])
    if isinstance(error, _GONE):
        return StoreUnavailable(f"PostgreSQL does not answer ({type(error).__name__}: {error})")
    return None


class _Translating:
    """`with translating:` lets errors out as ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ours = None if error is None or isinstance(error, MainspringError) else translate(error)
        if ours is not None:
            raise ours from error


translating = _Translating()


class Database:
    """One PostgreSQL, reached by `dsn`."""

    def __init__(self, dsn: str, *, application: str = "mainspring") -> None:
        self.dsn = dsn
        self._application = application
        self._pool: Any = None

    async def connect(self) -> Connection:
        """A new connection of the caller's own."""
        with translating:
            conn: Connection = await asyncpg.connect(
                self.dsn,
                timeout=CONNECT_TIMEOUT,
                command_timeout=COMMAND_TIMEOUT,
                server_settings={"application_name": self._application, **_PLANNER},
            )
        if conn.get_server_version().major < OLDEST_SERVER:
            version = conn.get_server_version()
            await conn.close()
            raise StoreUnavailable(f"PostgreSQL {version.major} is too old; Mainspring needs {OLDEST_SERVER} or newer")
        return conn

    async def open(self, *, size: int = 8) -> None:
        with translating:
            self._pool = await asyncpg.create_pool(
                self.dsn,
                min_size=1,
                max_size=size,
                timeout=CONNECT_TIMEOUT,
                command_timeout=COMMAND_TIMEOUT,
                reset=_keep,
                server_settings={"application_name": self._application},
            )

    @asynccontextmanager
    async def acquire(self, *, translated: bool = True) -> AsyncIterator[Connection]:
        """A connection of the pool. Leave it without an open transaction."""
        if self._pool is None:
            raise StoreUnavailable("the database is not open; use `async with app:` or `async with app.running():`")
        with translating if translated else nullcontext():
            async with self._pool.acquire(timeout=CONNECT_TIMEOUT) as conn:
                yield conn

    def line(self) -> Line:
        return Line(self)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await asyncio.wait_for(pool.close(), timeout=2.0)
        except (TimeoutError, *_GONE):
            pool.terminate()


async def _keep(_conn: Connection) -> None:
    """Nothing of ours leaves state on a connection, so returning it needs no round trip."""


class Line:
    """A dedicated connection, opened when first used and opened again after a loss.

    `async with line as conn:` is for one user at a time; others wait.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._conn: Connection | None = None
        self._busy = asyncio.Lock()

    async def __aenter__(self) -> Connection:
        await self._busy.acquire()
        try:
            if self._conn is None or self._conn.is_closed():
                self._conn = await self._database.connect()
            return self._conn
        except BaseException:
            self._busy.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._busy.release()
        if error is None:
            return
        if not isinstance(error, asyncpg.PostgresError) or isinstance(error, _GONE):
            self._drop()  # the outcome of what ran is unknown; do not go on in the middle of it
        with translating:
            raise error

    def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.terminate()

    async def close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None and not conn.is_closed():
            with suppress(TimeoutError, *_GONE):
                await conn.close(timeout=2.0)
