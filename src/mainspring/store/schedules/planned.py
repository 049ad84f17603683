"""Planned: all enabled schedules with what decides their plan times, read in parts. For forecasts.

Next: operations/planning/forecast.py
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from mainspring.store.postgres.database import Connection

AT_ONCE = 250  # rows: decoding so many holds the event loop for about a millisecond


class Planned(NamedTuple):
    id: int
    name: str
    job: str
    labels: str  # JSON: those that an agent must have
    kind: str
    expression: str
    timezone: str
    policies: str  # JSON, without what has nothing to do with plan times: equal schedules have equal text
    runs: int


_PLANNED = """
    select s.id, s.name, j.name, coalesce(j.definition->'requires', '{}')::text, s.kind, s.expression, s.timezone,
           (s.policies - array['args', 'description', 'fills', 'calendars', 'provider', 'overlap', 'catch_up',
                               'window', 'max_per_tick', 'misfire_after'])::text,
           s.runs
      from mainspring.schedule s join mainspring.job j on j.id = s.job_id
     where s.namespace = 'default' and s.enabled and s.kind <> 'daemon' and s.id > $1
     order by s.id limit $2
"""


async def planned(conn: Connection, after: int) -> list[Planned]:
    """The enabled schedules behind an id, AT_ONCE at most."""
    return [Planned(*row) for row in await conn.fetch(_PLANNED, after, AT_ONCE)]


# A change adds one to a version, a new schedule has a higher id, a deletion lowers the count.
_STATE = """
    select (select oid from pg_database where datname = current_database())::bigint, count(*), sum(version), max(id),
           mainspring.now()
      from mainspring.schedule where namespace = 'default'
"""


class State(NamedTuple):
    """What all schedules are, in a few numbers: equal ones mean that none has changed."""

    database: int
    schedules: int
    versions: int | None
    newest: int | None


async def state(conn: Connection) -> tuple[State, datetime]:
    """The state of all schedules, and the time."""
    *numbers, now = await conn.fetchrow(_STATE)
    return State(*numbers), now
