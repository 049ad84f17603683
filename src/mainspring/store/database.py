"""Connections to PostgreSQL: a pool for the many, lines of their own for the few that must never wait.

Every fault of the connection leaves here as StoreUnavailable, so that callers name one error.
Next: store/migrate.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from types import TracebackType
from typing import Any, Protocol

import asyncpg

from mainspring.errors import (
    AccessDenied,
    EmbeddedUnavailable,
    JobNotFound,
    MainspringError,
    StoreUnavailable,
    ValidationError,
)


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
    def is_in_transaction(self) -> bool: ...
    def terminate(self) -> None: ...
    def get_server_version(self) -> Any: ...


OLDEST_SERVER = 14
CONNECT_TIMEOUT = 10.0
COMMAND_TIMEOUT = 30.0
STATEMENT_TIMEOUT = 30.0
POOL_SIZE = 8

# Plans must not depend on fresh statistics: with these, an empty or stale table still gives the index scan.
# The pool goes without them: submissions must also pass through PgBouncer, which refuses such settings.
_ENGINE = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    # What we gave up on must not be committed much later: whoever lost an answer can tell when to stop looking.
    "statement_timeout": f"{STATEMENT_TIMEOUT:.0f}s",
}

# For statements that join what they are given with itself: whatever can be hashed is, for nothing tells PostgreSQL
# how much they are given. A probe of an index is written so that it can only be a nested loop (see store/plans.py).
_HASHING = _ENGINE | {"enable_hashjoin": "on", "enable_nestloop": "off"}

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
    if isinstance(error, _GONE) and not isinstance(error, asyncpg.exceptions.DataError):
        return StoreUnavailable(f"PostgreSQL does not answer ({type(error).__name__}: {error})")
    return None


def _not_connected(error: BaseException) -> MainspringError | None:
    """Our error for a connection that could not be made."""
    state = getattr(error, "sqlstate", None) or ""
    if state.startswith("28") or state == "42501":
        return AccessDenied(f"PostgreSQL refuses the connection ({error}); check user and password of the DSN")
    if state == "3D000":
        return StoreUnavailable(f"{error}; create it, or correct the DSN")
    if isinstance(error, (ValueError, OverflowError)):
        reason = f" ({error})" if isinstance(error, asyncpg.InterfaceError) else ""  # others repeat parts of it
        return ValidationError(
            f"dsn: cannot be read{reason}; write postgresql://user:password@host:5432/database", field="dsn"
        )
    return translate(error)


class _Translating:
    """`with translating:` lets errors out as ours."""

    def __init__(self, translate: Callable[[BaseException], MainspringError | None]) -> None:
        self._translate = translate

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ours = None if error is None or isinstance(error, MainspringError) else self._translate(error)
        if ours is not None:
            raise ours from error


translating = _Translating(translate)
_connecting = _Translating(_not_connected)


class Database:
    """One PostgreSQL, reached by `dsn`."""

    def __init__(
        self,
        dsn: str,
        *,
        application: str = "mainspring",
        command_timeout: float | None = COMMAND_TIMEOUT,
        revive: Callable[[], None] | None = None,
    ) -> None:
        self.dsn = dsn
        self._command_timeout = command_timeout
        self._revive = revive  # blocking; starts the server again where it is ours to start
        self._reviving = asyncio.Lock()
        self._application = application
        self._closed = False
        self._idle: list[Connection] = []
        self._places = asyncio.Semaphore(POOL_SIZE)

    def for_handlers(self) -> Database:
        """The same database with a pool of its own, for handlers, who may take as long as they like."""
        return Database(self.dsn, application="mainspring handlers", command_timeout=None, revive=self._revive)

    async def connect(self, *, hash_joins: bool = False) -> Connection:
        """A new connection of the caller's own, set up for the engine's statements."""
        return await self._connect(_HASHING if hash_joins else _ENGINE)

    async def _connect(self, settings: dict[str, str]) -> Connection:
        try:
            return await self._connect_once(settings)
        except StoreUnavailable:
            if self._revive is None:
                raise
        async with self._reviving:
            try:
                await asyncio.to_thread(self._revive)
            except EmbeddedUnavailable as error:
                raise StoreUnavailable(error.message) from error
        return await self._connect_once(settings)

    async def _connect_once(self, settings: dict[str, str]) -> Connection:
        with _connecting:
            conn: Connection = await asyncpg.connect(
                self.dsn,
                timeout=CONNECT_TIMEOUT,
                command_timeout=self._command_timeout,
                server_settings={"application_name": self._application, **settings},
            )
        version = conn.get_server_version().major
        if version < OLDEST_SERVER:
            await _close(conn)
            raise StoreUnavailable(f"PostgreSQL {version} is too old; Mainspring needs {OLDEST_SERVER} or newer")
        return conn

    async def open(self) -> None:
        """See that the database answers, and keep the connection for the first who needs one."""
        async with self.acquire():
            pass

    @asynccontextmanager
    async def acquire(self, *, translated: bool = True) -> AsyncIterator[Connection]:
        """A connection of the pool, the one used last first. Leave it without an open transaction.

        With `translated=False` the caller's own errors come out as they are, whatever they look like.
        """
        async with self._places:
            conn = await self._idle_or_new()
            try:
                with translating if translated else nullcontext():
                    yield conn
            except (*_GONE, StoreUnavailable, asyncio.CancelledError):
                conn.terminate()  # what was under way may still be
                raise
            finally:
                self._give_back(conn)

    async def _idle_or_new(self) -> Connection:
        while self._idle:
            conn = self._idle.pop()
            if not conn.is_closed():
                return conn
        return await self._connect({})

    def _give_back(self, conn: Connection) -> None:
        if conn.is_closed() or conn.is_in_transaction() or self._closed:
            conn.terminate()
        else:
            self._idle.append(conn)

    def line(self, *, hash_joins: bool = False) -> Line:
        """A connection of its own; with `hash_joins` for statements that join what they are given with itself."""
        return Line(self, hash_joins)

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for conn in idle:
            await _close(conn)


async def _close(conn: Connection) -> None:
    try:
        await conn.close(timeout=2.0)
    except (TimeoutError, *_GONE):
        conn.terminate()


class Line:
    """A dedicated connection, opened when first used and opened again after a loss.

    `async with line as conn:` is for one user at a time; others wait.
    """

    def __init__(self, database: Database, hash_joins: bool = False) -> None:
        self._database = database
        self._hash_joins = hash_joins
        self._conn: Connection | None = None
        self._busy = asyncio.Lock()

    async def __aenter__(self) -> Connection:
        await self._busy.acquire()
        try:
            if self._conn is None or self._conn.is_closed():
                self._conn = await self._database.connect(hash_joins=self._hash_joins)
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
            await _close(conn)
