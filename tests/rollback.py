"""A connection whose writes are rolled back at the end of the test, instead of a database of the test's own.

A statement that fails must not end the outer transaction, so each one outside a transaction of the test runs in a
savepoint. NOTIFY is not delivered and sequences do not go back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mainspring.store.postgres.database import Connection


class RolledBack:
    """An asyncpg connection in a transaction that nothing commits; closing it rolls back."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self._depth = 0

    @classmethod
    async def begin(cls, conn: Connection) -> Connection:
        wrapped = cls(conn)
        await wrapped._conn.transaction().start()
        return wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    async def execute(self, *args: Any, **options: Any) -> Any:
        return await self._apart(self._conn.execute, *args, **options)

    async def executemany(self, *args: Any, **options: Any) -> None:
        await self._apart(self._conn.executemany, *args, **options)

    async def fetch(self, *args: Any, **options: Any) -> Any:
        return await self._apart(self._conn.fetch, *args, **options)

    async def fetchrow(self, *args: Any, **options: Any) -> Any:
        return await self._apart(self._conn.fetchrow, *args, **options)

    async def fetchval(self, *args: Any, **options: Any) -> Any:
        return await self._apart(self._conn.fetchval, *args, **options)

    async def _apart(self, call: Any, *args: Any, **options: Any) -> Any:
        if self._depth:
            return await call(*args, **options)
        async with self._conn.transaction():
            return await call(*args, **options)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        async with self._conn.transaction() as transaction:
            self._depth += 1
            try:
                yield transaction
            finally:
                self._depth -= 1

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return self._transaction()

    def is_in_transaction(self) -> bool:
        return self._depth > 0


RolledBack.__module__ = "asyncpg"  # by which store/submission/enqueue.py recognizes the driver
