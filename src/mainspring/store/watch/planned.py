"""Planned: all enabled schedules with what decides their plan times, those that are equal together. For forecasts.

Equal ones are put together by the database, part by part: of a hundred thousand schedules a few thousand rows are left.
Next: operations/planning/forecast.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from mainspring.store.postgres.database import Connection

AT_ONCE = 10_000  # schedules that one statement puts together
NAMES = 10  # of schedules that are equal in all but their names


class Planned(NamedTuple):
    last: int  # the last id of its part
    kind: str
    expression: str
    timezone: str
    policies: str  # JSON, without what has nothing to do with plan times: equal schedules have equal text
    job: str | None  # if it was asked for
    labels: str | None  # JSON: those that an agent must have
    runs: int | None  # of one whose runs are limited
    skips: str | None  # JSON: those of one that are not over
    schedules: int
    names: list[str]  # all of those whose names decide: with H or jitter; else the first


_PLANNED = r"""
    select max(max(id)) over (), kind, expression, timezone, policies::text, job, labels::text,
           case when is_limited then max(runs) end,
           case when has_skips then (
               select jsonb_agg(jsonb_build_array(k.start, k.stop, k.actor, k.note, k.made_at) order by k.start)
                 from mainspring.schedule_skip k
                where k.schedule_id = max(part.id) and k.stop > (select mainspring.now()))::text end,
           count(*),
           -- not in order, which takes twice as long
           case when is_named then array_agg(name) else (array_agg(name))[1:$3] end
      from (
          select s.id, s.name, s.kind, s.expression, s.timezone, s.runs,
                 s.policies - array['args', 'description', 'fills', 'calendars', 'provider', 'overlap', 'catch_up',
                                    'window', 'max_per_tick', 'misfire_after', 'expires', 'when_full', 'first',
                                    'after', 'slo', 'ping_url'] as policies,
                 case when $4 then j.name end as job,
                 case when $4 then coalesce(j.definition->'requires', '{}') end as labels,
                 s.policies ? 'jitter' or (s.kind = 'cron' and s.expression ~* '(^|[\s,])h') as is_named,
                 s.policies ? 'max_runs' as is_limited,
                 coalesce(s.skips_until > (select mainspring.now()), false) as has_skips
            from mainspring.schedule s join mainspring.job j on j.id = s.job_id
           where s.namespace = 'default' and s.enabled and s.kind <> 'daemon' and s.id > $1
             and ($5::text[] is null or s.expression = any($5))
           order by s.id limit $2
      ) part
     group by kind, expression, timezone, policies, job, labels, is_named, is_limited, has_skips,
              case when is_limited or has_skips then id end
"""


async def planned(
    conn: Connection, after: int, *, with_jobs: bool, names: int = NAMES, expressions: Sequence[str] | None = None
) -> list[Planned]:
    """The enabled schedules behind an id, AT_ONCE at most; with `expressions`, those that have one of them.

    Of those that are equal, so many `names`.
    """
    rows = await conn.fetch(_PLANNED, after, AT_ONCE, names, with_jobs, expressions)
    return [Planned(*row) for row in rows]


# A change adds one to a version, or to the skips; a new schedule has a higher id, a deletion lowers the count.
# `id > 0`: in the order of ids the table is read page by page, by name it would be read row by row.
_STATE = """
    select (select oid from pg_database where datname = current_database())::bigint, count(*), sum(version + skips),
           max(id), mainspring.now()
      from mainspring.schedule where namespace = 'default' and id > 0
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
