"""Last ended: of each job the minute in which tasks of it last ended, and how. From the figures: no history is read.

Minutes are kept for two days; of what ended before that, the hour is known.
Reads   mainspring.figure, mainspring.figure_hour
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.connection import Connection


class LastEnded(msgspec.Struct, frozen=True):
    """How many tasks ended in which state, in the last minute or hour in which any did."""

    at: datetime  # the begin of the minute or hour
    within: float  # seconds: 60 or 3600
    outcomes: dict[str, int]  # tasks by final state


# One step in the primary key for each job.
_LAST = """
    select given.id, last.at, last.within, ended.outcome, sum(ended.count)::bigint as tasks
      from unnest($1::integer[]) as given(id)
     cross join lateral (
         (select f.minute as at, 60 as within from mainspring.figure f
           where f.job_id = given.id and not f.again order by f.minute desc limit 1)
         union all
         (select h.hour, 3600 from mainspring.figure_hour h
           where h.job_id = given.id and not h.again order by h.hour desc limit 1)
         order by within limit 1) last
     cross join lateral (
         select f.outcome, f.count from mainspring.figure f
          where f.job_id = given.id and f.minute = last.at and last.within = 60 and not f.again
         union all
         select h.outcome, h.count from mainspring.figure_hour h
          where h.job_id = given.id and h.hour = last.at and last.within = 3600 and not h.again) ended
     group by given.id, last.at, last.within, ended.outcome
     order by given.id, ended.outcome
"""


async def last_ended(conn: Connection, jobs: Sequence[int]) -> dict[int, LastEnded]:
    """By the id of the job; those of which nothing has ended are left out."""
    found: dict[int, LastEnded] = {}
    for row in await conn.fetch(_LAST, jobs):
        last = found.setdefault(row["id"], LastEnded(row["at"], float(row["within"]), {}))
        last.outcomes[TaskState(row["outcome"]).label] = row["tasks"]
    return found
