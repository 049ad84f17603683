"""LentConnection: takes a connection of a pool for each statement, and none between two of them.

For what computes for long between its statements: a forecast must not keep one of few connections from others. A
transaction holds one until its end.
Next: store/postgres/database.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mainspring.store.postgres.connection import Connection

Acquire = Callable[[], AbstractAsyncContextManager[Connection]]


class LentConnection:
    """The part of a connection that reading needs; `acquire` is that of the pool."""

    def __init__(self, acquire: Acquire) -> None:
        self._acquire = acquire
        self._held: Connection | None = None  # in a transaction

    @asynccontextmanager
    async def _one(self) -> AsyncIterator[Connection]:
        if self._held is not None:
            yield self._held
        else:
            async with self._acquire() as conn:
                yield conn

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        async with self._one() as conn:
            return await conn.execute(query, *args, timeout=timeout)

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]:
        async with self._one() as conn:
            return await conn.fetch(query, *args, timeout=timeout)

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        async with self._one() as conn:
            return await conn.fetchrow(query, *args, timeout=timeout)

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        async with self._one() as conn:
            return await conn.fetchval(query, *args, timeout=timeout)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._one() as conn, conn.transaction() as transaction:
            before, self._held = self._held, conn
            try:
                yield transaction
            finally:
                self._held = before

    def is_in_transaction(self) -> bool:
        return self._held is not None

    async def set_type_codec(self, typename: str, *, schema: str, **codec: Any) -> None:
        await self._in_transaction.set_type_codec(typename, schema=schema, **codec)

    async def reset_type_codec(self, typename: str, *, schema: str) -> None:
        await self._in_transaction.reset_type_codec(typename, schema=schema)

    @property
    def _in_transaction(self) -> Connection:
        assert self._held is not None, "what belongs to one connection needs a transaction, which holds it"
        return self._held
