"""Faults of PostgreSQL and of the way to it, as errors of ours.

    AWAY       it does not answer, or not now: StoreUnavailable, and whoever asked tries again
    HARMLESS   of those, the ones after which the connection is as good as before

Next: store/postgres/database.py
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import asyncpg

from mainspring.errors import JobNotFound, MainspringError, StoreUnavailable, ValidationError

HARMLESS = (
    asyncpg.exceptions.InsufficientResourcesError,  # no room on its disk or in its memory: it comes back by itself
    asyncpg.exceptions.TransactionRollbackError,  # a deadlock was broken: repeat
)

AWAY = (
    *HARMLESS,
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that was cut between two statements, at its next use
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.PostgresSystemError,  # its operating system refuses it something, such as a write
    asyncpg.exceptions.IdleInTransactionSessionTimeoutError,  # we were stopped in the middle of one
    asyncpg.exceptions.ReadOnlySQLTransactionError,  # the primary became a standby: the next connection finds another
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
    if not isinstance(error, AWAY) or isinstance(error, asyncpg.exceptions.DataError):
        return None
    match error:
        case asyncpg.exceptions.DiskFullError():
            return StoreUnavailable(f"PostgreSQL's disk is full ({words(error)}); make room, then work goes on")
        case asyncpg.exceptions.ReadOnlySQLTransactionError():
            return StoreUnavailable(f"PostgreSQL is read-only here ({words(error)}); try again, it may fail over")
        case _:
            return StoreUnavailable(f"PostgreSQL does not answer ({told(error)})")


def told(error: BaseException) -> str:
    """The kind of an error and its words."""
    said = words(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def words(error: BaseException) -> str:
    """The message alone."""
    return str(error).partition("\n")[0]  # what follows are details and hints of PostgreSQL's


class Translating:
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


translating = Translating(translate)
