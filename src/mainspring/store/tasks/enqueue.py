"""Enqueue: submit tasks, open and close batches through the SQL functions for it (0001_schema.sql, 7 and 15).

The drivers are asyncpg, psycopg 3 (sync and async) and SQLAlchemy (sync and async, connections and sessions). They are
recognized by the module of their class; none but asyncpg, our own, is imported here.
Next: server/cluster/listener.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from mainspring.errors import AccessDenied, MainspringError, StaleAttempt, StoreUnavailable, ValidationError
from mainspring.model.flows.options import TaskOptions
from mainspring.model.messages import AttemptId
from mainspring.model.tasks.states import IS_ACTIVE
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.errors import SAME_SESSION, translate_for_clients, translating
from mainspring.store.tasks.claims import BATCH_TOKENS


class Submission(NamedTuple):
    """One task of `job`; `args` is JSON text."""

    job: str
    args: str
    priority: str | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    key: str | None = None
    key_ttl: timedelta = timedelta(days=1)
    after: list[int] | None = None
    concurrency_key: str | None = None
    on_parent_failure: str | None = None
    if_exists: str | None = None
    batch: int | None = None
    expires: timedelta | None = None
    tags: Sequence[str] | None = None
    timeout: timedelta | None = None
    retries: int | None = None
    stalls_after: timedelta | None = None
    submitter: str | None = None

    @property
    def is_plain(self) -> bool:
        """It has a job, arguments, perhaps a priority, and nothing else."""
        return self[_WHEN] == _NOT_GIVEN and self[_AFTER:] == _NO_MORE

    @property
    def can_share(self) -> bool:
        """Whether it may go into one statement with others. The rest may wait for locks, or make a gate."""
        return self[_AFTER:_BATCH] == _ALONE

    @property
    def options(self) -> str | None:
        """The JSON of its TaskOptions; None: it has none."""
        if self[_EXPIRES + 1 :] == _NO_OPTIONS:
            return None
        found = TaskOptions(
            tuple(self.tags or ()),
            None if self.timeout is None else self.timeout.total_seconds(),
            self.retries,
            None if self.stalls_after is None else self.stalls_after.total_seconds(),
            submitter=self.submitter,
        )
        return msgspec.json.encode(found).decode()


class BulkSubmission(NamedTuple):
    """Many tasks of `job` that differ only in their arguments."""

    job: str
    args: list[str]
    priority: str | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    concurrency_key: str | None = None
    batch: int | None = None
    expires: timedelta | None = None
    tags: Sequence[str] | None = None
    timeout: timedelta | None = None
    retries: int | None = None
    stalls_after: timedelta | None = None
    submitter: str | None = None


class OpenBatch(NamedTuple):
    """A new batch. A callback is JSON: job, args, priority."""

    name: str
    on_success: str | None = None
    on_complete: str | None = None
    on_failure: str | None = None
    parent: int | None = None
    created_by: str | None = None


class CloseBatch(NamedTuple):
    batch: int


class FlowSubmission(NamedTuple):
    """Tasks that run after each other. `steps` is JSON: see `flow`."""

    steps: str


Request = Submission | BulkSubmission | OpenBatch | CloseBatch | FlowSubmission


def flow(steps: Iterable[tuple[Submission, Sequence[int]]]) -> FlowSubmission:
    """Each task with the places, from 0, of those before it that it runs after."""
    return FlowSubmission(msgspec.json.encode([_step(task, places) for task, places in steps]).decode())


def _step(task: Submission, places: Sequence[int]) -> dict[str, Any]:
    given = {name: value for name, value in task._asdict().items() if value is not None}
    for name in given.keys() & set(_INTERVALS):
        given[name] = given[name].total_seconds()
    return {**given, "args": msgspec.Raw(task.args.encode()), "steps": places}


# Places in a submission, which is looked at for each task that is submitted.
_WHEN = slice(Submission._fields.index("run_at"), Submission._fields.index("key_ttl"))
_AFTER, _BATCH, _EXPIRES = (Submission._fields.index(name) for name in ("after", "batch", "expires"))
_NOT_GIVEN, _ALONE = (None,) * 3, (None,) * (_BATCH - _AFTER)
_NO_MORE = (None,) * (len(Submission._fields) - _AFTER)
_NO_OPTIONS = (None,) * (len(Submission._fields) - _EXPIRES - 1)

_ASYNCPG, _PSYCOPG, _SQLALCHEMY = "${number}::{type}", "%s::{type}", "cast(:p{number} as {type})"
_INTERVALS = ("delay", "key_ttl", "expires", "timeout", "stalls_after")
_TYPES = {  # others are text
    **dict.fromkeys(_INTERVALS, "interval"),
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
        f"{name} => {_in_seconds(value) if name in _INTERVALS else value}" for name, value in values.items()
    )
    return f"select mainspring.{_FUNCTIONS[kind]}({given})"


def _in_seconds(interval: str) -> str:
    """Days of a timedelta have 24 hours, in the time zone of the caller's session too."""
    return f"pg_catalog.make_interval(secs => extract(epoch from {interval})::float8)"


_PLAIN = "select mainspring.enqueue($1, $2::jsonb, $3)"
_SQL = {kind: _call(kind, _ASYNCPG) for kind in _FUNCTIONS}


async def submit(conn: Any, submission: Request) -> Any:
    """Insert within the caller's transaction; returns the id, or the list of ids; whether a batch was open."""
    with translating(_our_error):
        match _driver(conn):
            case "asyncpg" if isinstance(submission, Submission) and submission.is_plain:
                return await conn.fetchval(_PLAIN, submission.job, submission.args, submission.priority)
            case "asyncpg":
                return await conn.fetchval(_SQL[type(submission)], *submission)
            case "psycopg async":
                async with conn.cursor(row_factory=_first) as cursor:
                    await cursor.execute(_call(type(submission), _PSYCOPG), submission)
                    return await cursor.fetchone()
            case "sqlalchemy async":
                result = await conn.execute(*_for_sqlalchemy(submission))
                return result.scalar_one()
            case _:
                raise ValidationError("conn: this is a sync connection; use enqueue_sync()", field="conn")


_NEW = f"select id, mainspring.is_new(id) from ({_SQL[Submission]} as id offset 0) made"


async def submit_new(conn: Connection, submission: Submission) -> tuple[int, bool]:
    """The id, and whether the task was created: else it is the one that has the key."""
    if submission.key is None:
        return await submit(conn, submission), True
    with translating(_our_error):
        id, is_new = await conn.fetchrow(_NEW, *submission)
    return id, is_new


_EACH = """
    select mainspring.enqueue_each($1::text[], $2::jsonb[], $3::text[], $4::timestamptz[], $5::interval[], $6::text[],
                                   $7::interval[], marks_existing => $8, expires => $9::interval[],
                                   options => $10::jsonb[], batches => $11::bigint[])
""".strip()


async def submit_each(conn: Connection, submissions: Sequence[Submission]) -> list[int | None]:
    """Submissions that `can_share`, in one statement; returns the ids. None: not submitted, submit it alone.

    One bad submission may make PostgreSQL refuse the statement; then none was submitted. An error is raised for
    a single one, and where the outcome is unknown.
    """
    if len(submissions) == 1:
        return [await submit(conn, submissions[0])]
    return await _submit_each(conn, submissions, marks_existing=False)


async def submit_each_new(conn: Connection, submissions: Sequence[Submission]) -> list[tuple[int | None, bool]]:
    """The same, with whether each task was created: else it is the one that has the key."""
    ids = await _submit_each(conn, submissions, marks_existing=True)
    return [(None, False) if id is None else (abs(id), id > 0) for id in ids]


async def _submit_each(
    conn: Connection, submissions: Sequence[Submission], *, marks_existing: bool
) -> list[int | None]:
    columns = list(zip(*submissions, strict=True))[: _EXPIRES + 1]
    columns.append(tuple(each.options for each in submissions))
    *given, batches, expires, options = [None if column.count(None) == len(column) else column for column in columns]
    given = given[:_AFTER]
    with suppress(Refused), _refusing():
        async with conn.transaction() if conn.is_in_transaction() else nullcontext():  # what was done before stays
            ids: list[int | None] = await conn.fetchval(_EACH, *given, marks_existing, expires, options, batches)
        return ids
    return [None] * len(submissions)


class Refused(Exception):
    """PostgreSQL answered a statement with an error: it is certain that nothing of it was committed."""


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        with translating(_our_error):
            yield
    except StoreUnavailable as error:
        if isinstance(error.__cause__, SAME_SESSION):
            raise Refused from error
        raise
    except (MainspringError, asyncpg.PostgresError, asyncpg.exceptions.DataError) as error:
        raise Refused from error


class Place(NamedTuple):
    """Where a task is claimed: the session, and what its server knows of the job."""

    job: int
    pool: int
    session: int
    priority: int  # of its tasks, unless their submission names another


_AND_CLAIM = "select task, batch from mainspring.enqueue_claimed($1, $2::jsonb, $3, $4, $5, $6, $7)"
_EACH_AND_CLAIM = """
    select tasks, tokens from mainspring.enqueue_each_claimed($1::text[], $2::jsonb[], $3::text[], $4, $5, $6, $7)
"""
_NOWHERE = (None, None, None)


async def submit_and_claim(
    conn: Connection, submissions: Sequence[Submission], places: Sequence[Place | None], server: UUID
) -> list[tuple[int | None, int | None]]:
    """Create plain tasks, each already assigned to the session of its place; returns their ids and tokens.

    No id: not submitted, as with `submit_each`. No token: it is pending, because it has no place, its job is no longer
    the one with the pool of its place, or `server` owns no segment.
    """
    assert all(submission.is_plain for submission in submissions)
    given = [(each.job, each.args, each.priority) for each in submissions]
    known = [_NOWHERE if place is None else place[:3] for place in places]
    with suppress(Refused), _refusing():
        if len(submissions) == 1:
            task, batch = await conn.fetchrow(_AND_CLAIM, *given[0], *known[0], server)
            return [(task, None if batch is None else batch * BATCH_TOKENS)]
        columns = (*zip(*given, strict=True), *zip(*known, strict=True))
        tasks, tokens = await conn.fetchrow(_EACH_AND_CLAIM, *columns, server)
        return list(zip(tasks, tokens, strict=True))
    return [(None, None)] * len(submissions)


# The guard: an agent submits on behalf of a handler that it runs, for jobs of the same application or of none.
_ACCEPT = f"""
    insert into mainspring.submission (id)
    select $1
      from mainspring.task t
      join mainspring.job own on own.id = t.job_id and own.definition->'run'->>'type' = 'python'
     where t.id = $2 and t.token = $3 and t.session = $4 and t.{IS_ACTIVE}
       and not exists (select from mainspring.job other
                        where other.namespace = own.namespace and other.name = $5
                          and other.definition->'requires'->>'app' <> own.definition->'requires'->>'app')
    on conflict (id) do nothing
    returning id
"""
_ANSWERED = "select tasks from mainspring.submission where id = $1"
# Through a server a handler adds to the batch of its own task only.
_IS_ITS_BATCH = "select exists (select from mainspring.task where id = $1 and batch_id = $2)"
_HOLDS = f"""
    select exists (select from mainspring.task where id = $1 and token = $2 and session = $3 and {IS_ACTIVE})
"""


async def submit_for_attempt(
    conn: Connection, request: UUID, attempt: AttemptId, session: int, submission: Submission | BulkSubmission
) -> list[int]:
    """Submit for a handler that `session` runs; returns the ids. A repeated request returns the ids of the first time.

    StaleAttempt if the session does not hold the attempt, AccessDenied if the job is of another application, or the
    batch is not that of its task.
    """
    async with conn.transaction():
        accepted = await conn.fetchval(_ACCEPT, request, attempt.task, attempt.token, session, submission.job)
        if accepted is None:
            ids: list[int] | None = await conn.fetchval(_ANSWERED, request)
            if ids is not None:
                return ids
            if not await conn.fetchval(_HOLDS, attempt.task, attempt.token, session):
                raise StaleAttempt(f"task {attempt.task} belongs to another attempt now; nothing was submitted")
            raise AccessDenied(
                f"a handler on an agent submits jobs of its own application; {submission.job!r} is of another one",
                field="job",
            )
        if submission.batch is not None and not await conn.fetchval(_IS_ITS_BATCH, attempt.task, submission.batch):
            raise AccessDenied(
                f"a handler on an agent adds to the batch of its own task; task {attempt.task} is not in batch "
                f"{submission.batch}",
                field="batch",
            )
        found = await submit(conn, submission)
        ids = found if isinstance(submission, BulkSubmission) else [found]
        await conn.execute("update mainspring.submission set tasks = $2 where id = $1", request, ids)
    return ids


def submit_sync(conn: Any, submission: Request) -> Any:
    """The same through a sync connection."""
    with translating(_our_error):
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


def _our_error(error: BaseException) -> MainspringError | None:
    """The error of ours for a driver's, also where SQLAlchemy wraps it."""
    ours: MainspringError | None = None
    cause: BaseException | None = error
    while cause is not None:  # the innermost is the driver's: those around it only add to its message
        ours = translate_for_clients(cause) or ours
        cause = getattr(cause, "orig", None) or cause.__cause__
    return ours
