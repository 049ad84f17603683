"""Enqueue: submissions on our own connections: several in one statement, and claimed as they are created.

Through the SQL functions of 0001_schema.sql (Submission, Batches).
Next: server/cluster/listener.py (in the process of a server: server/dispatch/submissions.py)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple
from uuid import UUID

import asyncpg

from mainspring.errors import MainspringError, StoreUnavailable
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.errors import SAME_SESSION, translating
from mainspring.store.submission.drivers import SQL, our_error, submit
from mainspring.store.submission.submissions import AFTER, EXPIRES, Submission
from mainspring.store.tasks.claims import BATCH_TOKENS

_NEW = f"select id, mainspring.is_new(id) from ({SQL[Submission]} as id offset 0) made"


async def submit_new(conn: Connection, submission: Submission) -> tuple[int, bool]:
    """The id, and whether the task was created: else it is the one that has the key."""
    if submission.key is None:
        return await submit(conn, submission), True
    with translating(our_error):
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
    columns = list(zip(*submissions, strict=True))[: EXPIRES + 1]
    columns.append(tuple(each.options for each in submissions))
    *given, batches, expires, options = [None if column.count(None) == len(column) else column for column in columns]
    given = given[:AFTER]
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
        with translating(our_error):
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
