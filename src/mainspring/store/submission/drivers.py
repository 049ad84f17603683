"""Drivers: submit on a connection of asyncpg, psycopg 3 (sync and async) or SQLAlchemy (also a session).

A connection is recognized by the module of its class; none of the drivers is imported here.
Next: store/submission/enqueue.py
"""

from __future__ import annotations

from typing import Any

from mainspring.errors import MainspringError, ValidationError
from mainspring.store.postgres.errors import translate_for_clients, translating
from mainspring.store.submission.submissions import (
    INTERVALS,
    BulkSubmission,
    CloseBatch,
    FlowSubmission,
    OpenBatch,
    Request,
    Submission,
)

_ASYNCPG, _PSYCOPG, _SQLALCHEMY = "${number}::{type}", "%s::{type}", "cast(:p{number} as {type})"
_TYPES = {  # others are text
    **dict.fromkeys(INTERVALS, "interval"),
    "run_at": "timestamptz",
    "after": "bigint[]",
    "tags": "text[]",
    **dict.fromkeys(("batch", "parent"), "bigint"),
    **dict.fromkeys(("on_success", "on_complete", "on_failure", "steps"), "jsonb"),
    "retries": "integer",
}
_FUNCTIONS: dict[type[Request], str] = {
    Submission: "enqueue",
    BulkSubmission: "enqueue_many",
    OpenBatch: "open_batch",
    CloseBatch: "close_batch",
    FlowSubmission: "enqueue_flow",
}


def _call(kind: type[Request], style: str) -> str:
    """SQL with a parameter for each field, which has the name of the function's own."""
    types = {**_TYPES, "args": "jsonb[]" if kind is BulkSubmission else "jsonb"}
    values = {
        name: style.format(number=number, type=types.get(name, "text")) for number, name in enumerate(kind._fields, 1)
    }
    given = ", ".join(
        f"{name} => {_in_seconds(value) if name in INTERVALS else value}" for name, value in values.items()
    )
    return f"select mainspring.{_FUNCTIONS[kind]}({given})"


def _in_seconds(interval: str) -> str:
    """Days of a timedelta have 24 hours, in the time zone of the caller's session too."""
    return f"pg_catalog.make_interval(secs => extract(epoch from {interval})::float8)"


_PLAIN = "select mainspring.enqueue($1, $2::jsonb, $3)"
SQL = {kind: _call(kind, _ASYNCPG) for kind in _FUNCTIONS}  # of our own connections


async def submit(conn: Any, submission: Request) -> Any:
    """Insert within the caller's transaction; returns the id, or the list of ids; whether a batch was open."""
    with translating(our_error):
        match _driver(conn):
            case "asyncpg" if isinstance(submission, Submission) and submission.is_plain:
                return await conn.fetchval(_PLAIN, submission.job, submission.args, submission.priority)
            case "asyncpg":
                return await conn.fetchval(SQL[type(submission)], *submission)
            case "psycopg async":
                async with conn.cursor(row_factory=_first) as cursor:
                    await cursor.execute(_call(type(submission), _PSYCOPG), submission)
                    return await cursor.fetchone()
            case "sqlalchemy async":
                result = await conn.execute(*_for_sqlalchemy(submission))
                return result.scalar_one()
            case _:
                raise ValidationError("conn: this is a sync connection; use enqueue_sync()", field="conn")


def submit_sync(conn: Any, submission: Request) -> Any:
    """The same through a sync connection."""
    with translating(our_error):
        match _driver(conn):
            case "psycopg":
                with conn.cursor(row_factory=_first) as cursor:
                    return cursor.execute(_call(type(submission), _PSYCOPG), submission).fetchone()
            case "sqlalchemy":
                return conn.execute(*_for_sqlalchemy(submission)).scalar_one()
            case _:
                raise ValidationError("conn: this is an async connection; use `await enqueue()`", field="conn")


def _first(_cursor: Any) -> Any:
    """A row factory for psycopg, whichever one the connection has."""
    return lambda values: values[0]


# Classes, or base classes, that give connections → what to write instead.
_NOT_CONNECTIONS = {
    "asyncpg.Pool": "async with pool.acquire() as conn, conn.transaction():",
    "psycopg_pool.ConnectionPool": "with pool.connection() as conn:",
    "psycopg_pool.AsyncConnectionPool": "async with pool.connection() as conn:",
    "psycopg.Cursor": "its connection: conn=cursor.connection",
    "psycopg.AsyncCursor": "its connection: conn=cursor.connection",
    "sqlalchemy.Engine": "with engine.begin() as conn:",
    "sqlalchemy.AsyncEngine": "async with engine.begin() as conn:",
    "sqlalchemy.sessionmaker": "with factory.begin() as session:",
    "sqlalchemy.async_sessionmaker": "async with factory.begin() as session:",
}


def check_connection(conn: Any) -> Any:
    """The connection itself; ValidationError says what to pass in place of a pool, an engine or something else."""
    _driver(conn)
    return conn


def _driver(conn: Any) -> str:
    for kind in type(conn).__mro__:
        root = kind.__module__.partition(".")[0]
        if (instead := _NOT_CONNECTIONS.get(f"{root}.{kind.__name__}")) is not None:
            raise ValidationError(
                f"conn: {type(conn).__name__} is not a connection; pass the one that your transaction is on: {instead}",
                field="conn",
            )
        if root == "asyncpg" and hasattr(conn, "execute"):
            return root
        if root in ("psycopg", "sqlalchemy") and hasattr(conn, "execute"):
            return f"{root} async" if "async" in f"{kind.__module__}.{kind.__name__}".lower() else root
    raise ValidationError(
        f"conn: {type(conn).__name__} is not a connection of asyncpg, psycopg 3 or SQLAlchemy, nor a session",
        field="conn",
    )


def _for_sqlalchemy(submission: Request) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text

    return text(_call(type(submission), _SQLALCHEMY)), {
        f"p{number}": value for number, value in enumerate(submission, 1)
    }


def our_error(error: BaseException) -> MainspringError | None:
    """The error of ours for a driver's, also where SQLAlchemy wraps it."""
    ours: MainspringError | None = None
    cause: BaseException | None = error
    while cause is not None:  # the innermost is the driver's: those around it only add to its message
        ours = translate_for_clients(cause) or ours
        cause = getattr(cause, "orig", None) or cause.__cause__
    return ours
