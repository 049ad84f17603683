"""Timeline: the decided plan times of schedules between two instants, each with what became of its task.

Reads the ledger by its primary key, then each task by its id: the cost is that of what is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mainspring.store.postgres.connection import Connection

# Of the history it reads only the days since the decision, and one more in case the clock was set back.
_MARKS = """
    select given.id as schedule_id, f.plan_time, f.scope, f.reason, f.origin, f.task_id,
           coalesce(h.state, t.state) as state, coalesce(h.started_at, t.started_at) as started_at, h.finished_at,
           coalesce(h.run_at, t.run_at) as run_at
      from unnest($1::integer[]) as given(id)
     cross join lateral (
         select plan_time, scope, task_id, reason, origin, decided_at from mainspring.fire
          where schedule_id = given.id and plan_time >= $2 and plan_time < $3
          order by plan_time desc, scope limit $4
     ) f
      left join lateral (
          select state, run_at, case when session is not null then started_at end as started_at
            from mainspring.task where id = f.task_id limit 1
      ) t on true
      left join lateral (
          select state, run_at, started_at, finished_at from mainspring.task_history
           where id = f.task_id and recorded_at > f.decided_at - interval '1 day' limit 1
      ) h on true
"""
_BINS = """
    select given.id as schedule_id, date_bin($4::interval, f.plan_time, $2) as at,
           count(*) as plan_times, count(f.task_id) as tasks
      from unnest($1::integer[]) as given(id)
      join mainspring.fire f on f.schedule_id = given.id and f.plan_time >= $2 and f.plan_time < $3
     group by 1, 2 order by 1, 2
"""
_COUNTS = """
    select given.id, (select count(*) from (
               select from mainspring.fire where schedule_id = given.id and plan_time >= $2 and plan_time < $3 limit $4
           ) found) as decided
      from unnest($1::integer[]) as given(id)
"""


async def counts(
    conn: Connection, schedules: Sequence[int], start: datetime, end: datetime, most: int
) -> dict[int, int]:
    """How many plan times of each were decided; counted up to `most`."""
    rows = await conn.fetch(_COUNTS, schedules, start, end, most)
    return {row["id"]: row["decided"] for row in rows}


async def marks(conn: Connection, schedules: Sequence[int], start: datetime, end: datetime, most: int) -> list[Any]:
    """The latest first, at most so many of each schedule. Begins a transaction."""
    async with conn.transaction():
        # It only reads: the crash that store/tasks/partitions.py avoids cannot happen.
        await conn.execute("set local enable_partition_pruning = on; set local enable_seqscan = off")
        return await conn.fetch(_MARKS, schedules, start, end, most)


async def bins(conn: Connection, schedules: Sequence[int], start: datetime, end: datetime, width: Any) -> list[Any]:
    """Counts of plan times in bins of one width, in order."""
    return await conn.fetch(_BINS, schedules, start, end, width)
