"""Connections to PostgreSQL: a pool for the many, lines of their own for the few that must never wait.

Every fault of the connection leaves here as StoreUnavailable, so that callers name one error. New connections pass
store/postgres/reconnect.py and are made by store/postgres/connect.py.
Next: store/postgres/connect.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import TracebackType

import asyncpg

from mainspring.errors import EmbeddedUnavailable, StoreUnavailable
from mainspring.store.postgres.connect import Dialer
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.errors import AWAY, HARMLESS, translate, translating
from mainspring.store.postgres.reconnect import Entrance
from mainspring.store.postgres.timelines import Timelines

__all__ = [
    "COMMAND_TIMEOUT",
    "LEASE_TIMEOUT",
    "STATEMENT_TIMEOUT",
    "Connection",
    "Database",
    "Line",
    "close",
    "translate",
    "translating",
]

COMMAND_TIMEOUT = 30.0
STATEMENT_TIMEOUT = 30.0
LEASE_TIMEOUT = 4.0  # on the line of the leases: a silent PostgreSQL is found out before they are over
CLOSE_TIMEOUT = 2.0
POOL_SIZE = 8

# Plans must not depend on fresh statistics: with these, an empty or stale table still gives the index scan.
# The pool goes without them: what clients send must also pass through PgBouncer, which refuses such settings.
_ENGINE = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "enable_partition_pruning": "off",  # see store/tasks/partitions.py
    # What we gave up on must not be committed much later: whoever lost an answer can tell when to stop looking.
    "statement_timeout": f"{STATEMENT_TIMEOUT:.0f}s",
    # When our machine dies without a word, PostgreSQL lets go of our locks within 10 s; unix sockets ignore these.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "8s",
}

# For statements that join what they are given with itself: whatever can be hashed is, for nothing tells PostgreSQL
# how much they are given. A probe of an index is written so that it can only be a nested loop (see
# store/schedules/plans.py).
_HASHING = _ENGINE | {"enable_hashjoin": "on", "enable_nestloop": "off"}


class Database:
    """One PostgreSQL, reached by `dsn`, which may name several hosts: the one that can be written to counts.

    `memory` is a file that keeps the timeline that was seen last (store/postgres/timelines.py) for the next process.
    """

    def __init__(
        self,
        dsn: str,
        *,
        application: str = "mainspring",
        command_timeout: float | None = COMMAND_TIMEOUT,
        revive: Callable[[], None] | None = None,
        memory: Path | None = None,
    ) -> None:
        self.dsn = dsn
        self._command_timeout = command_timeout
        self._revive = revive  # blocking; starts the server again where it is ours to start
        self._reviving = asyncio.Lock()
        self._application = application
        self._closed = False
        self._idle: list[Connection] = []
        self._places = asyncio.Semaphore(POOL_SIZE)
        self._lines: dict[str | Line, Line] = {}  # by name, or by itself
        self._entrance = Entrance()
        self._dialer = Dialer(dsn, Timelines(memory))

    def for_handlers(self) -> Database:
        """The same database with a pool of its own, for handlers, who may take as long as they like."""
        other = Database(self.dsn, application="mainspring handlers", command_timeout=None, revive=self._revive)
        other._entrance, other._dialer = self._entrance, self._dialer  # what one has found out the other knows
        return other

    async def connect(self, *, hash_joins: bool = False, timeout: float | None = None) -> Connection:
        """A new connection of the caller's own, set up for the engine's statements, which may take `timeout` each.

        ValidationError if a pooler answers: what the engine does with a session needs the same backend for all of it.
        """
        return await self._connect(_HASHING if hash_joins else _ENGINE, timeout, direct=True)

    async def _connect(self, settings: dict[str, str], timeout: float | None = None, *, direct: bool) -> Connection:
        settings = {"application_name": self._application, **settings}
        timeout = timeout or self._command_timeout
        return await self._entrance.connect(lambda: self._dial(settings, timeout, direct=direct))

    async def _dial(self, settings: dict[str, str], timeout: float | None, *, direct: bool) -> Connection:
        try:
            return await self._dialer.dial(settings, timeout, direct=direct)
        except StoreUnavailable:
            if self._revive is None:
                raise
        async with self._reviving:
            try:
                await asyncio.to_thread(self._revive)
            except EmbeddedUnavailable as error:
                raise StoreUnavailable(error.message) from error
        return await self._dialer.dial(settings, timeout, direct=direct)

    @property
    def pooled(self) -> bool:
        """Whether a pooler such as PgBouncer has answered. Then there are only connections of the pool."""
        return self._dialer.pooled

    async def open(self) -> None:
        """See that the database answers, and keep the connection for the first who needs one."""
        async with self.acquire():
            pass

    @asynccontextmanager
    async def brief(self) -> AsyncIterator[Connection]:
        """A connection like those of the pool, closed at the end of the block."""
        conn = await self._connect({}, direct=False)
        try:
            with translating:
                yield conn
        finally:
            await close(conn)

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
            except (*AWAY, StoreUnavailable, asyncio.CancelledError) as error:
                if not isinstance(error.__cause__ or error, HARMLESS):
                    conn.terminate()  # what was under way may still be
                raise
            finally:
                self._give_back(conn)

    async def _idle_or_new(self) -> Connection:
        while self._idle:
            conn = self._idle.pop()
            if not conn.is_closed():
                return conn
        return await self._connect({}, direct=False)

    def _give_back(self, conn: Connection) -> None:
        if conn.is_closed() or conn.is_in_transaction() or self._closed:
            conn.terminate()
        else:
            self._idle.append(conn)

    def line(self, name: str | None = None, *, hash_joins: bool = False, timeout: float | None = None) -> Line:
        """A connection of its own; those who give the same name share one, and wait for each other.

        With `hash_joins` it is for statements that join what they are given with itself; `timeout` bounds each of them.
        """
        line = Line(self, hash_joins, timeout)
        return self._lines.setdefault(name or line, line)

    def lease_line(self) -> Line:
        """Where leases are renewed: whatever else is done on it ends in time for whoever waits to renew one."""
        return self.line("leases", timeout=LEASE_TIMEOUT)

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        # Silent ones take their time: all of them together.
        await asyncio.gather(*(close(conn) for conn in idle), *(line.close() for line in self._lines.values()))


async def close(conn: Connection) -> None:
    """Close it in bounded time, whether it answers or not."""
    try:
        await conn.close(timeout=CLOSE_TIMEOUT)
    except AWAY:
        conn.terminate()


class Line:
    """A dedicated connection, opened when first used and opened again after a loss.

    `async with line as conn:` is for one user at a time; others wait. Several parts may share one: each of them may
    close it, and whoever uses it after that opens it again.
    """

    def __init__(self, database: Database, hash_joins: bool = False, timeout: float | None = None) -> None:
        self._database = database
        self._hash_joins = hash_joins
        self._timeout = timeout
        self._conn: Connection | None = None
        self._busy = asyncio.Lock()

    async def __aenter__(self) -> Connection:
        await self._busy.acquire()
        try:
            if self._conn is None or self._conn.is_closed():
                self._conn = await self._database.connect(hash_joins=self._hash_joins, timeout=self._timeout)
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
        if not isinstance(error, asyncpg.PostgresError) or (
            isinstance(error, AWAY) and not isinstance(error, HARMLESS)
        ):
            self._drop()  # the outcome of what ran is unknown; do not go on in the middle of it
        with translating:
            raise error

    def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.terminate()

    async def close(self) -> None:
        """Whoever uses it now has a moment to end."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT), self._busy:
                conn, self._conn = self._conn, None
                if conn is not None and not conn.is_closed():
                    await close(conn)
        except TimeoutError:
            self._drop()
