"""Output: the chunks of a task's attempts, in order and each once.

Two servers may record the same chunk, if an agent reconnects to the second before the first has acknowledged it.
Next: cli/tasks/logs.py
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from mainspring.store.postgres.database import Connection


class Piece(NamedTuple):
    token: int
    number: int  # within its attempt, from 1 without gaps
    stream: int
    at: datetime
    data: bytes


_READ = """
    select distinct on (token, number) token, number, stream, at, data from mainspring.output
     where task_id = $1 and (token, number) > ($2, $3) order by token, number limit 200
"""


async def read(conn: Connection, task: int, *, after: tuple[int, int] = (0, 0)) -> list[Piece]:
    """Output of all attempts in order, from behind the piece `after` = (token, number)."""
    return [Piece(*row) for row in await conn.fetch(_READ, task, *after)]
