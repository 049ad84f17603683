"""Client connections: what a connection of ours does beside the driver's.

    KnownTypes                  learns the built-in types once in a process
    TimedConnection             counts its statements, for the metrics
    _PooledConnection           pins the search path of each transaction, behind a pooler
    _ProducerConnection         reads only the tasks that its role submitted

A connection pins its search path to pg_catalog: an operator that another role has defined in `public` may fit the
types in a statement better than the built-in one. Connections of handlers keep the path of their role: they are the
driver's own.
Next:  store/postgres/migrate.py
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from time import monotonic
from typing import Any, NamedTuple

import asyncpg

from mainspring.errors import AccessDenied, QueueFull
from mainspring.model.metrics.statements import code_of, name_of
from mainspring.model.metrics.tallies import StoreTally
from mainspring.store.postgres.connection import SEARCH_PATH
from mainspring.store.postgres.errors import translate

FIRST_OWN = 10_000  # the numbers below are assigned by hand, and the same everywhere
# Arrays of boolean, bytea, smallint, integer, bigint, real, float8, timestamptz, interval, uuid and jsonb: the first
# statement that has one asks for all of them.
ARRAYS = frozenset({1000, 1001, 1005, 1007, 1016, 1021, 1022, 1185, 1187, 2951, 3807})

_known: dict[int, Any] = {}  # by its number, what the catalogue says of a type; elements come before their arrays


class _NotAsked(NamedTuple):
    name: str = "not asked"  # only a statement without a name would undo one that is prepared


class KnownTypes(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """Reads what built-in types are once in a process: they have the same numbers everywhere.

    asyncpg knows no arrays but those of text. When a statement has another one it reads the catalogue, and switches jit
    off and on around that: three round trips and a query that costs as much as a thousand claimed tasks, for every
    connection of a server, while it starts.
    Takes the place of a method of the driver's own: a driver that does not have it asks for itself."""

    __slots__ = ()

    async def _introspect_types(self, typeoids: set[int], timeout: float | None) -> Any:
        if max(typeoids) >= FIRST_OWN:
            return await super()._introspect_types(typeoids, timeout)
        if not typeoids <= _known.keys():
            found, statement = await super()._introspect_types(typeoids | ARRAYS, timeout)
            _known.update((row["oid"], row) for row in found)
            return found, statement
        return list(_known.values()), _NotAsked()


class TimedConnection(KnownTypes):
    """Counts its statements in a tally, once it is given one. A query logger of the driver costs ten times as much."""

    __slots__ = ("give_way", "tally")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tally: StoreTally | None = None
        self.give_way: Callable[[], Awaitable[None]] | None = None  # before the caller works on what was found

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._timed(super().execute, query, args, timeout)

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._timed(super().fetch, query, args, timeout)

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._timed(super().fetchrow, query, args, timeout)

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._timed(super().fetchval, query, args, timeout)

    async def _timed(self, run: Callable[..., Any], query: str, args: tuple[Any, ...], timeout: float | None) -> Any:
        began = monotonic()
        try:
            found = await run(query, *args, timeout=timeout)
        except Exception as error:  # a cancelled caller is no fault of the store
            if self.tally is not None:
                self.tally.failed(code_of(error))
                if isinstance(full := translate(error), QueueFull):
                    self.tally.refused_by_queue(str(full.details.get("job")))
            raise
        if self.tally is not None:
            self.tally.ran(name_of(query), monotonic() - began)
        if self.give_way is not None and not self.is_in_transaction():  # which may hold locks
            await self.give_way()
        return found


class _Wrapped(TimedConnection):
    """Passes every statement to `_run`."""

    __slots__ = ()

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._run(super().execute, query, *args, timeout=timeout)

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._run(super().fetch, query, *args, timeout=timeout)

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._run(super().fetchrow, query, *args, timeout=timeout)

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._run(super().fetchval, query, *args, timeout=timeout)

    async def _run(self, run: Callable[..., Any], query: str, *args: Any, timeout: float | None) -> Any:
        return await run(query, *args, timeout=timeout)


# Statements that depend on no search path: a function of ours, called with parameters whose types are built in.
_SAFE = re.compile(r"select mainspring\.(enqueue(_many|_each)?|(open|close)_batch)\(")


class _PooledConnection(_Wrapped):
    """Pins the search path of each transaction, for a setting of the session would reach other clients.

    A statement outside of a transaction gets one.
    """

    __slots__ = ()

    async def _run(self, run: Callable[..., Any], query: str, *args: Any, timeout: float | None) -> Any:
        if query.startswith("BEGIN"):  # of transaction()
            return await super()._run(run, f"{query} set local search_path = {SEARCH_PATH}", timeout=timeout)
        if self.is_in_transaction() or _SAFE.match(query):
            return await super()._run(run, query, *args, timeout=timeout)
        async with self.transaction():
            return await super()._run(run, query, *args, timeout=timeout)


class _ProducerConnection(_Wrapped):
    """Reads the views `own_…` (0001_schema.sql, What a producer sees) in place of the tables. The rest is denied."""

    __slots__ = ()
    reads_own_tasks = True

    async def _run(self, run: Callable[..., Any], query: str, *args: Any, timeout: float | None) -> Any:
        try:
            return await super()._run(run, _through_views(query), *args, timeout=timeout)
        except (asyncpg.UndefinedColumnError, asyncpg.InsufficientPrivilegeError) as error:
            raise AccessDenied(
                "this role is a producer, which submits tasks and looks at its own; it may not do this: "
                "use another role; `mainspring grant --help` says what each kind may do"
            ) from error


class _PooledProducerConnection(_PooledConnection, _ProducerConnection):
    __slots__ = ()


_TABLE = re.compile(
    r"\bmainspring\.(task|task_history|attempt|output|dependency|dependent|job|schedule|agent|server"
    r"|batch|batch_count|batch_change|batch_callback)\b"
    r"(?P<alias>\s+(?!(?:on|using|where|left|join|cross|order|limit|union|group|for)\b)\w+)?"
)


@lru_cache(256)
def _through_views(query: str) -> str:
    return _TABLE.sub(lambda found: f"mainspring.own_{found[1]}{found['alias'] or f' as {found[1]}'}", query)


def connection_class(*, pooled: bool, producer: bool, timed: bool) -> type[Any]:
    """The kind of connection for a client."""
    if pooled:
        return _PooledProducerConnection if producer else _PooledConnection
    if producer:
        return _ProducerConnection
    return TimedConnection if timed else asyncpg.Connection
