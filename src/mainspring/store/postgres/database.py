"""Database: a pool of connections, and dedicated connections for users that must not wait for the pool.

Every fault of a connection is raised as StoreUnavailable, so that callers expect one error. New connections pass the
circuit breaker of store/postgres/connecting/reconnect.py and are opened by store/postgres/connecting/connect.py.
Next: store/postgres/connecting/connect.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import cast

import asyncpg

from mainspring.errors import AccessDenied, Busy, EmbeddedUnavailable, StoreUnavailable
from mainspring.model.metrics.tallies import StoreTally
from mainspring.store.postgres.connecting.client_connections import TimedConnection
from mainspring.store.postgres.connecting.connect import PrimaryConnector
from mainspring.store.postgres.connecting.reconnect import CircuitBreaker
from mainspring.store.postgres.connecting.timelines import Timelines
from mainspring.store.postgres.connection import SEARCH_PATH, Connection
from mainspring.store.postgres.errors import (
    SAME_SESSION,
    UNAVAILABLE,
    translate,
    translate_for_clients,
    translating,
)

__all__ = ["Connection", "Database", "DedicatedConnection", "DedicatedGroup", "close", "translate"]

COMMAND_TIMEOUT = 30.0
STATEMENT_TIMEOUT = 30.0
LEASE_TIMEOUT = 4.0  # where leases are renewed: a silent PostgreSQL is noticed before they expire
CLOSE_TIMEOUT = 2.0
POOL_SIZE = 8
HANDSHAKES = 4  # agents that are admitted or welcomed at once
# For the HTTP API: few connections and short statements, so that it can starve neither leases nor dispatch.
API_POOL_SIZE = 4
API_STATEMENT_TIMEOUT = 5.0
API_WAIT = 1.0  # seconds for one of its connections to be free
API_CONNECT_TIMEOUT = 3.0

# Plans must not depend on fresh statistics: with these, an empty or stale table still gives the index scan.
# The pool goes without them: it must also work through PgBouncer, which refuses such settings.
_ENGINE = {
    "search_path": SEARCH_PATH,  # see store/postgres/connecting/client_connections.py
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "enable_indexscan": "on",  # a role may have turned these off
    "enable_indexonlyscan": "on",
    "enable_nestloop": "on",
    "plan_cache_mode": "auto",
    "jit": "off",
    "enable_partition_pruning": "off",  # see store/tasks/partitions.py
    # If this machine dies, PostgreSQL releases its locks within 10 s. Unix sockets ignore these.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "8s",
}

# For statements that join their own input: they always hash, because PostgreSQL cannot know how large the input is.
# Index probes in them are written so that only a nested loop is possible (see store/schedules/plans.py).
_HASHING = _ENGINE | {"enable_hashjoin": "on", "enable_nestloop": "off"}

# What our statements depend on, whatever the role or the database has set. For engine and pool; not for handlers, whose
# transactions are the user's, nor behind a pooler, whose backends serve others too: there errors.py covers it.
_SESSION = {
    "lock_timeout": "0",  # each statement has its statement_timeout
    # A statement that was given up must not commit much later: this bounds how long its outcome stays unknown.
    "statement_timeout": f"{STATEMENT_TIMEOUT:.0f}s",
    "transaction_timeout": "0",
    # A frozen process inside a transaction must not keep its locks. It repeats the transaction.
    "idle_in_transaction_session_timeout": f"{STATEMENT_TIMEOUT:.0f}s",
    "idle_session_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "TimeZone": "UTC",  # a day has 24 hours: deadlines and delays follow no change of clocks
}


class Database:
    """One PostgreSQL, reached by `dsn`. If that names several hosts, the one that accepts writes is used.

    `timeline_file` keeps the newest timeline seen (store/postgres/connecting/timelines.py) for the next process.
    """

    def __init__(
        self,
        dsn: str,
        *,
        application: str = "mainspring",
        command_timeout: float | None = COMMAND_TIMEOUT,
        revive: Callable[[], None] | None = None,
        timeline_file: Path | None = None,
    ) -> None:
        self.dsn = dsn
        self._command_timeout = command_timeout
        self._revive = revive  # blocking; restarts an embedded server
        self._reviving = asyncio.Lock()
        self._application = application
        self._closed = False
        self._idle: list[Connection] = []
        self._pool_places = asyncio.Semaphore(POOL_SIZE)
        self._pool_wait: float | None = None  # seconds for a place; None: as long as it takes
        self._connect_timeout: float | None = None  # of the pool, in place of that of connect.py
        self._dedicated: dict[str | DedicatedConnection, DedicatedConnection] = {}  # by name, or by itself
        self._handshakes: DedicatedGroup | None = None
        self._breaker = CircuitBreaker()
        self._connector = PrimaryConnector(dsn, Timelines(timeline_file))
        self._pinned = True
        self._session = _SESSION
        self._was_admitted = False  # PostgreSQL has accepted a connection
        self.tally = StoreTally()  # the statements of its connections, and what failed
        self.give_way: Callable[[], Awaitable[None]] | None = None  # awaited after statements outside of transactions

    def for_handlers(self) -> Database:
        """The same database with a second pool, for handlers, which may hold a connection as long as they like."""
        other = Database(self.dsn, application="mainspring handlers", command_timeout=None, revive=self._revive)
        other._breaker, other._connector = self._breaker, self._connector  # one knowledge of what is up
        other._pinned = False  # their statements find the tables of the application by the search path of their role
        other._session = {}
        return other

    def for_api(self) -> Database:
        """The same database with a small pool for the HTTP API. `acquire` raises Busy if none is free soon."""
        other = Database(
            self.dsn,
            application="mainspring api",
            command_timeout=API_STATEMENT_TIMEOUT + 1,  # PostgreSQL ends the statement first
            revive=self._revive,
        )
        other._breaker, other._connector = self._breaker, self._connector
        other._was_admitted = self._was_admitted
        other.tally = self.tally  # a scrape of the process tells of all its statements
        other._session = _SESSION | {
            "statement_timeout": f"{API_STATEMENT_TIMEOUT:.0f}s",
            "idle_in_transaction_session_timeout": f"{API_STATEMENT_TIMEOUT:.0f}s",
            # A statement over the history opens the partitions that it needs (store/views/recent.py); to plan it for
            # its values takes longer than to run it.
            "plan_cache_mode": "force_generic_plan",
            "enable_partition_pruning": "on",
            "jit": "off",
        }
        other._pool_places = asyncio.Semaphore(API_POOL_SIZE)
        other._pool_wait = API_WAIT
        other._connect_timeout = API_CONNECT_TIMEOUT
        return other

    def for_thread(self) -> Database:
        """The same database for the event loop of another thread. It does not restart an embedded server."""
        other = Database(self.dsn, application=f"{self._application} watchdog", command_timeout=self._command_timeout)
        other._connector = self._connector.for_thread()
        other._was_admitted = True
        return other

    async def connect(self, *, hash_joins: bool = False, timeout: float | None = None) -> Connection:
        """A new connection for the engine's statements, which the caller closes. `timeout` bounds each statement.

        ValidationError if a pooler answers: the engine uses session state, which needs one backend throughout.
        """
        return await self._connect(_HASHING if hash_joins else _ENGINE, timeout, direct=True)

    async def _connect(self, settings: dict[str, str], timeout: float | None = None, *, direct: bool) -> Connection:
        settings = {"application_name": self._application, **settings}
        timeout = timeout or self._command_timeout
        return await self._breaker.connect(lambda: self._connect_or_revive(settings, timeout, direct=direct))

    async def _connect_or_revive(self, settings: dict[str, str], timeout: float | None, *, direct: bool) -> Connection:
        try:
            return await self._open(settings, timeout, direct=direct)
        except StoreUnavailable:
            if self._revive is None:
                raise
        async with self._reviving:
            try:
                await asyncio.to_thread(self._revive)
            except EmbeddedUnavailable as error:
                raise StoreUnavailable(error.message) from error
        return await self._open(settings, timeout, direct=direct)

    async def _open(self, settings: dict[str, str], timeout: float | None, *, direct: bool) -> Connection:
        try:
            conn = await self._connector.connect(settings, self._session, timeout, direct=direct, pinned=self._pinned)
        except AccessDenied as error:
            if not self._was_admitted:
                raise
            # It was accepted before. While passwords or pg_hba.conf change, a running server waits.
            raise StoreUnavailable(error.message) from error
        except StoreUnavailable:
            self.tally.failed("connect")
            raise
        self._was_admitted = True
        if self._pinned:  # else its statements are the user's
            cast(TimedConnection, conn).tally = self.tally
            cast(TimedConnection, conn).give_way = self.give_way
        return conn

    @property
    def behind_pooler(self) -> bool:
        """Whether a pooler such as PgBouncer has answered. Then `connect` and dedicated connections are refused."""
        return self._connector.behind_pooler

    async def open(self) -> None:
        """Check that the database answers, and keep the connection in the pool."""
        async with self.acquire():
            pass

    @asynccontextmanager
    async def brief(self) -> AsyncIterator[Connection]:
        """A connection as in the pool, closed at the end of the block."""
        conn = await self._connect({}, direct=False)
        try:
            with translating(translate_for_clients):
                yield conn
        finally:
            await close(conn)

    @asynccontextmanager
    async def acquire(self, *, translated: bool = True) -> AsyncIterator[Connection]:
        """A connection of the pool, the most recently used first. Leave no transaction open on it.

        With `translated=False` errors are raised as they are: handlers see their own.
        """
        await self._take_place()
        try:
            conn = await self._idle_or_new()
            try:
                with translating(translate_for_clients) if translated else nullcontext():
                    yield conn
            except (*UNAVAILABLE, StoreUnavailable, asyncio.CancelledError) as error:
                if not isinstance(error.__cause__ or error, SAME_SESSION):
                    conn.terminate()  # its statement may still run
                raise
            finally:
                self._give_back(conn)
        finally:
            self._pool_places.release()

    async def _take_place(self) -> None:
        if self._pool_wait is None or not self._pool_places.locked():
            await self._pool_places.acquire()
            return
        try:
            async with asyncio.timeout(self._pool_wait):
                await self._pool_places.acquire()
        except TimeoutError:
            if (why := self._breaker.why_down) is not None:  # the callers that have the places wait for it too
                raise StoreUnavailable(why) from None
            raise Busy(f"no connection to PostgreSQL was free within {self._pool_wait:g} s; try again") from None

    async def _idle_or_new(self) -> Connection:
        while self._idle:
            conn = self._idle.pop()
            if not conn.is_closed():
                return conn
        if self._connect_timeout is None:
            return await self._connect({}, direct=False)
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._connect({}, direct=False)
        except TimeoutError:
            raise StoreUnavailable(f"PostgreSQL does not answer within {self._connect_timeout:g} s") from None

    def _give_back(self, conn: Connection) -> None:
        if conn.is_closed() or conn.is_in_transaction() or self._closed:
            conn.terminate()
        else:
            self._idle.append(conn)

    def dedicated(
        self, name: str | None = None, *, hash_joins: bool = False, timeout: float | None = None
    ) -> DedicatedConnection:
        """A connection outside the pool. Callers that give the same name share one, and wait for each other.

        `hash_joins` is for statements that join their own input; `timeout` bounds each statement.
        """
        dedicated = DedicatedConnection(self, hash_joins, timeout)
        return self._dedicated.setdefault(name or dedicated, dedicated)

    def for_leases(self) -> DedicatedConnection:
        """The one for leases: its statements end early enough that a renewal behind them comes in time."""
        return self.dedicated("leases", timeout=LEASE_TIMEOUT)

    def for_handshakes(self) -> DedicatedGroup:
        """Those for agents that connect. A dead server's agents all come at once, and must have a session before their
        leases end: they do not wait for one whose hello takes long."""
        if self._handshakes is None:
            self._handshakes = DedicatedGroup([self.dedicated(f"handshakes {turn}") for turn in range(HANDSHAKES)])
        return self._handshakes

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        # At once: a silent connection takes CLOSE_TIMEOUT.
        await asyncio.gather(
            *(close(conn) for conn in idle), *(dedicated.close() for dedicated in self._dedicated.values())
        )


async def close(conn: Connection) -> None:
    """Close it within CLOSE_TIMEOUT, whether it answers or not."""
    try:
        await conn.close(timeout=CLOSE_TIMEOUT)
    except UNAVAILABLE:
        conn.terminate()


class DedicatedConnection:
    """A connection outside the pool, opened at its first use and reopened after a loss.

    `async with dedicated as conn:` admits one user at a time. Users that share one may each close it; the next use
    reopens it.
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
            isinstance(error, UNAVAILABLE) and not isinstance(error, SAME_SESSION)
        ):
            self._drop()  # the outcome of its statement is unknown, and the session may be in the middle of it
        with translating():
            raise error

    def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.terminate()

    async def close(self) -> None:
        """Wait CLOSE_TIMEOUT for its current user, then close it."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT), self._busy:
                conn, self._conn = self._conn, None
                if conn is not None and not conn.is_closed():
                    await close(conn)
        except TimeoutError:
            self._drop()


class DedicatedGroup:
    """A few dedicated connections for many users; `async with group.acquire() as conn:` takes a free one.

    The one used last comes first: the others are opened only where several are in use.
    """

    def __init__(self, members: list[DedicatedConnection]) -> None:
        self._free = members
        self._places = asyncio.Semaphore(len(members))

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        """A connection of its own. Users wait in the order in which they came."""
        async with self._places:
            member = self._free.pop()
            try:
                async with member as conn:
                    yield conn
            finally:
                self._free.append(member)
