"""Connections of the API: why PostgreSQL gives none, or does not work, is for the log, not for callers.

The reason names hosts, users and files, and while PostgreSQL is away no caller can be checked: anybody would read it.
Next: store/postgres/connecting/connect_errors.py
"""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from mainspring.api.access.buckets import Buckets
from mainspring.errors import (
    AccessDenied,
    Busy,
    MainspringError,
    SchemaMismatch,
    StoreFull,
    StoreUnavailable,
    ValidationError,
)
from mainspring.operations import Connections
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.errors import schema_mismatch

log = logging.getLogger("mainspring.api")

LOG_EVERY = 10.0  # seconds


class DiscreetConnections:
    """Those of `connections`. Where there is none, or they are of no use, callers get an error without the reason."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._reasons = Buckets(1 / LOG_EVERY, 1)

    def acquire(self) -> AbstractAsyncContextManager[Connection]:
        return _Acquired(self, self._connections.acquire())

    def withheld(self, error: MainspringError) -> StoreUnavailable:
        if isinstance(error, StoreFull):
            return self.full(error)
        if not self._reasons.take("no connection"):
            log.warning("no connection for a request: %s", error.message)
        return StoreUnavailable("the server has no connection to PostgreSQL, its log says why; try again")

    def full(self, error: StoreFull) -> StoreFull:
        """PostgreSQL's own words name the file that it could not extend."""
        self._log("full", error.message)
        return StoreFull("PostgreSQL's disk is full; make room there, then requests are taken again")

    def mismatch(self, error: BaseException | None) -> SchemaMismatch | None:
        """For a statement that names what the database lacks; PostgreSQL's own words quote the statement."""
        if (mismatch := schema_mismatch(error)) is not None:
            self._log("schema", f"{mismatch.message} ({error})")
        return mismatch

    def _log(self, reason: str, why: str) -> None:
        if not self._reasons.take(reason):
            log.warning("a request failed: %s", why)


class _Acquired(AbstractAsyncContextManager[Connection]):
    def __init__(self, owner: DiscreetConnections, acquired: AbstractAsyncContextManager[Connection]) -> None:
        self._owner, self._acquired = owner, acquired

    async def __aenter__(self) -> Connection:
        try:
            return await self._acquired.__aenter__()
        except Busy:
            raise
        except (StoreUnavailable, AccessDenied, ValidationError) as error:
            raise self._owner.withheld(error) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            handled = await self._acquired.__aexit__(kind, error, traceback)
        except StoreFull as full:
            raise self._owner.full(full) from None
        if isinstance(error, StoreFull):  # the operation has translated it itself
            raise self._owner.full(error) from None
        if (mismatch := self._owner.mismatch(error)) is not None:
            raise mismatch from error
        return handled
