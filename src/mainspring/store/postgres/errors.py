"""Errors: what the driver raises → the errors of this program.

    UNAVAILABLE   PostgreSQL does not answer, or not now: StoreUnavailable, and the caller tries again
    SAME_SESSION  of those, the ones after which the connection is as good as before

The only list of transient errors: a loop (loops.py) retries on StoreUnavailable and ends on any other error.

Next: store/postgres/database.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import asyncpg
import msgspec

from mainspring.errors import (
    AccessDenied,
    BatchEnded,
    BatchNotFound,
    JobNotFound,
    MainspringError,
    QueueFull,
    SchemaMismatch,
    StoreFull,
    StoreUnavailable,
    TaskExists,
    ValidationError,
)

SAME_SESSION = (
    asyncpg.exceptions.InsufficientResourcesError,  # disk or memory is full: it recovers without a new connection
    asyncpg.exceptions.TransactionRollbackError,  # a deadlock was broken, or a serialization failed: repeat
    asyncpg.exceptions.LockNotAvailableError,  # a lock was not free within lock_timeout
    asyncpg.exceptions.ObjectInUseError,  # another session has the object open
    asyncpg.exceptions.InvalidCachedStatementError,  # a migration changed a table; the driver prepares it anew
)

UNAVAILABLE = (
    *SAME_SESSION,
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the connection was cut between two statements; raised at its next use
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.PostgresSystemError,  # the operating system refuses PostgreSQL something, such as a write
    asyncpg.exceptions.IdleInTransactionSessionTimeoutError,  # this process was stopped inside a transaction
    asyncpg.exceptions.TransactionTimeoutError,  # PostgreSQL 17 ended a transaction that took too long, and its session
    asyncpg.exceptions.ReadOnlySQLTransactionError,  # the primary became a standby: reconnecting finds the new one
)

_OURS = ("MSV01", "MSJ01", "MSQ01", "MSE01", "MSB01", "MSB02")  # SQLSTATEs of 0001_schema.sql
_WITH_DETAIL = ("MSQ01", "MSE01", "MSB02")  # JSON


def translate(error: BaseException) -> MainspringError | None:
    """The error of ours for one of the driver's; None if there is none."""
    state = getattr(error, "sqlstate", None)
    if state in _OURS:
        # psycopg appends the position in the SQL; its diagnostics hold the message alone.
        diagnostics = getattr(error, "diag", None)
        message = getattr(diagnostics, "message_primary", None) or first_line(error)
        detail = getattr(error, "detail", None) or getattr(diagnostics, "message_detail", None)
        details = msgspec.json.decode(detail) if state in _WITH_DETAIL and detail else {}
        match state:
            case "MSJ01":
                return JobNotFound(message, field="job")
            case "MSQ01":
                return QueueFull(message, field="job", **details)
            case "MSE01":
                return TaskExists(message, field="key", **details)
            case "MSB01":
                return BatchNotFound(message, field="batch")
            case "MSB02":
                return BatchEnded(message, field="batch", **details)
            case _:
                return ValidationError(message, field=message.partition(":")[0])
    if not isinstance(error, UNAVAILABLE) or isinstance(error, asyncpg.exceptions.DataError):
        return None
    match error:
        case asyncpg.exceptions.DiskFullError():
            return StoreFull(f"PostgreSQL's disk is full ({first_line(error)}); make room, then work continues")
        case asyncpg.exceptions.ReadOnlySQLTransactionError():
            return StoreUnavailable(f"PostgreSQL is read-only here ({first_line(error)}); try again, it may fail over")
        case asyncpg.exceptions.LockNotAvailableError() | asyncpg.exceptions.ObjectInUseError():
            return StoreUnavailable(f"another session of PostgreSQL holds a lock ({first_line(error)}); try again")
        case asyncpg.InternalClientError():  # its words are about the driver's own states
            return StoreUnavailable("PostgreSQL does not answer (the connection was cut)")
        case _:
            return StoreUnavailable(f"PostgreSQL does not answer ({described(error)})")


def translate_for_clients(error: BaseException) -> MainspringError | None:
    """The same, and AccessDenied for what PostgreSQL does not allow the role."""
    return denied(error) if getattr(error, "sqlstate", None) == "42501" else translate(error)


def schema_mismatch(error: BaseException | None) -> SchemaMismatch | None:
    """The error for a statement of ours that names what this database lacks; None for any other error.

    Its message holds nothing of the statement.
    """
    match error:
        case asyncpg.UndefinedColumnError():
            return SchemaMismatch("this database has an older schema; run `mainspring migrate`")
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedFunctionError() | asyncpg.InvalidSchemaNameError():
            return SchemaMismatch("this database lacks (parts of) the schema; run `mainspring migrate`")
        case _:
            return None


def denied(error: BaseException) -> AccessDenied:
    return AccessDenied(
        f"PostgreSQL does not allow it ({first_line(error)}); use a role that may: `mainspring grant` gives a role the "
        "rights of a producer, a viewer or a server"
    )


def described(error: BaseException) -> str:
    """The type of an error and its message."""
    message = first_line(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def first_line(error: BaseException) -> str:
    """The message of an error, without PostgreSQL's details and hints."""
    return str(error).partition("\n")[0]


@contextmanager
def translating(by: Callable[[BaseException], MainspringError | None] = translate) -> Iterator[None]:
    """`with translating():` raises the errors of the driver as ours."""
    try:
        yield
    except MainspringError:
        raise
    except BaseException as error:
        if (ours := by(error)) is None:
            raise
        raise ours from error
