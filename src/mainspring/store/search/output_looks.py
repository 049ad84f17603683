"""Looks at output: the next pieces of many tasks, and whether more may come, in one statement.

What is recorded of a task is recorded before its end. Both are seen by one snapshot, so a look that finds the end has
seen all the output there is.
Reads   mainspring.task, mainspring.output
Next:   operations/parts/output_readers.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from mainspring.model.tasks.states import IS_ACTIVE
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import columns
from mainspring.store.tasks.tasks import Piece

EVER = datetime(1970, 1, 1, tzinfo=UTC)


class Wanted(NamedTuple):
    """The output of a task behind a piece; `only` is the token of the one attempt that is wanted, or 0."""

    task: int
    token: int
    number: int
    only: int = 0


class Look(NamedTuple):
    pieces: list[Piece]
    has_ended: bool  # no more is recorded: the task has ended, or the attempt that alone is wanted
    at: datetime  # by the database's clock


# Two servers may record the same piece, if an agent reconnects before the first server has acknowledged it.
_LOOK = f"""
    select given.place, live.yes is null as has_ended, (select mainspring.now()) as at,
           piece.token, piece.number, piece.stream, piece.at, piece.data
      from unnest($1::bigint[], $2::bigint[], $3::integer[], $4::bigint[])
           with ordinality as given(task, token, number, only_token, place)
      left join lateral (
          select true as yes from mainspring.task t
           where t.id = given.task
             and (given.only_token = 0 or (t.token = given.only_token and t.session is not null and t.{IS_ACTIVE}))
           limit 1) live on true
      left join lateral (
          select distinct on (o.token, o.number) o.token, o.number, o.stream, o.at, o.data
            from mainspring.output o
           where o.task_id = given.task and (o.token, o.number) > (given.token, given.number)
             and (given.only_token = 0 or o.token <= given.only_token) and o.recorded_at >= $5
           order by o.token, o.number limit $6) piece on true
     order by given.place, piece.token, piece.number
"""


async def look(conn: Connection, wanted: Sequence[Wanted], *, limit: int, since: datetime = EVER) -> list[Look]:
    """One look for each, with `limit` pieces at most; those that were recorded before `since` are left out."""
    found: list[Look] = []
    for row in await conn.fetch(_LOOK, *columns(Wanted, wanted), since, limit):
        if row["place"] > len(found):
            found.append(Look([], row["has_ended"], row[2]))
        if row["number"] is not None:
            found[-1].pieces.append(Piece(*row[3:]))
    return found
