"""Chore log: runs, rows and failures of each maintenance chore, summed over all servers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from mainspring.store.postgres.database import Connection


class Done(NamedTuple):
    """The runs of a chore since its last record."""

    name: str
    runs: int
    rows: int
    failures: int
    seconds: float  # of the last run
    last_rows: int
    error: str | None  # of the last run


_ADD = """
    insert into mainspring.chore as c (
        name, runs, rows, failures, last_at, last_seconds, last_rows, last_error, failing_since)
    select name, runs, rows, failures, (select mainspring.now()), seconds, last_rows, error,
           case when error is not null then (select mainspring.now()) end
      from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::float8[], $6::bigint[], $7::text[])
        as given(name, runs, rows, failures, seconds, last_rows, error)
     order by name                                  -- one order of locks for concurrent callers
    on conflict (name) do update
       set runs = c.runs + excluded.runs, rows = c.rows + excluded.rows, failures = c.failures + excluded.failures,
           last_at = excluded.last_at, last_seconds = excluded.last_seconds, last_rows = excluded.last_rows,
           last_error = excluded.last_error,
           failing_since = case when excluded.last_error is not null
                                then coalesce(c.failing_since, excluded.last_at) end
"""


async def record(conn: Connection, done: Sequence[Done]) -> None:
    """Add these up. A retry after a lost answer counts them twice: nothing depends on these figures."""
    await conn.execute(_ADD, *(list(column) for column in zip(*done, strict=True)))


_LIST = """
    select name, runs, rows, failures, last_at, last_seconds::float8, last_rows, last_error
      from mainspring.chore order by name
"""


class ChoreView(msgspec.Struct, frozen=True):
    """Since the schema was made, and in its last run."""

    name: str
    runs: int
    rows: int
    failures: int
    last_at: datetime
    last_seconds: float
    last_rows: int
    last_error: str | None


async def listing(conn: Connection) -> list[ChoreView]:
    """All chores, by name."""
    return [ChoreView(*row) for row in await conn.fetch(_LIST)]
