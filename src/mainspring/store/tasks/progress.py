"""Progress: what running attempts report: progress, checkpoints, health and output. Safe to repeat.

Writes  mainspring.task, mainspring.output
Next:   store/tasks/transitions.py
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.messages import Chunk, Note
from mainspring.model.tasks.states import IS_ACTIVE
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import affected

_NOTE = f"""
    with given as (
        select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::boolean[])
                   as given(id, token, progress, checkpoint, healthy)
    )
    update mainspring.task t
       set progress = coalesce(given.progress::jsonb, t.progress),
           checkpoint = coalesce(given.checkpoint::jsonb, t.checkpoint),
           healthy = coalesce(given.healthy, t.healthy)
      from given
     where t.id = any (array[given.id]) and t.token = given.token and t.{IS_ACTIVE}
"""


async def note(conn: Connection, notes: Sequence[Note]) -> None:
    """Record progress, checkpoints and health of attempts that still own their task."""
    await conn.execute(
        _NOTE,
        [n.task for n in notes],
        [n.token for n in notes],
        [n.progress for n in notes],
        [n.checkpoint for n in notes],
        [n.healthy for n in notes],
    )


_OUTPUT = """
    insert into mainspring.output (task_id, token, number, stream, at, recorded_at, data)
    select given.id, given.token, given.number, given.stream, to_timestamp(given.at), (select mainspring.now()),
           given.data
      from unnest($1::bigint[], $2::bigint[], $3::integer[], $4::smallint[], $5::float8[], $6::bytea[])
        as given(id, token, number, stream, at, data)
     where not exists (select from mainspring.output o
                        where o.task_id = given.id and o.token = given.token and o.number = given.number)
"""


async def output(conn: Connection, chunks: Sequence[Chunk]) -> int:
    """Record chunks of output, each once. Returns how many were new."""
    tag = await conn.execute(
        _OUTPUT,
        [c.task for c in chunks],
        [c.token for c in chunks],
        [c.number for c in chunks],
        [c.stream for c in chunks],
        [c.at for c in chunks],
        [c.data for c in chunks],
    )
    return affected(tag)


_OUTPUT_SIZES = """
    select given.token, (select sum(octet_length(o.data)) from mainspring.output o
                          where o.task_id = given.id and o.token = given.token)::bigint as size
      from unnest($1::bigint[], $2::bigint[]) as given(id, token)
"""


async def output_sizes(conn: Connection, attempts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """By token, the bytes of output that are stored of these attempts, given as (task, token)."""
    rows = await conn.fetch(_OUTPUT_SIZES, [task for task, _ in attempts], [token for _, token in attempts])
    return [(row["token"], row["size"] or 0) for row in rows]
