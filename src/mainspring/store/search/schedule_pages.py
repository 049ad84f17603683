"""Schedule pages: schedules by any filter, in the order of their names or of what they plan next, and counts.

Reads   mainspring.schedule
Next:   store/schedules/fires.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import Batch, readable
from mainspring.store.schedules.schedules import STORED, Stored, all_stored

_WANTED = """
       and ($1::text[] is null or s.name like any ($1))
       and ($2::text[] is null or j.name like any ($2)) and ($3::text[] is null or s.app like any ($3))
       and ($4::text[] is null or s.kind = any ($4)) and ($5::boolean is null or s.enabled = $5)
       and (not $6 or s.next_plan_at is null) and ($7::integer is null or s.id <= $7)
"""
_FILTERED = f"{STORED} {_WANTED} and ($8::text is null or s.name > $8) order by s.name limit $9"
# Along the index of `look_at`.
_BY_NEXT = f"""
    {STORED} {_WANTED} and s.look_at is not null and s.next_plan_at is not null
       and ($8::timestamptz is null or (s.look_at, s.id) > ($8, $9)) order by s.look_at, s.id limit $10
"""
_AMONG = f"{STORED} {_WANTED} and s.id = any ($8::integer[]) and s.look_at is not null"
# A plan time to decide, or replicas: else it has ended. One with a problem is shown as such, ended or not.
_COUNT = f"""
    select name, count(*) from (
        select j.name from mainspring.schedule s join mainspring.job j on j.id = s.job_id
         where s.namespace = 'default' {_WANTED}
           and ($8::text[] is null or
                case when not s.enabled then 'disabled' when s.problem is not null then 'problem'
                     when s.next_plan_at is null and s.kind <> 'daemon' then 'ended' else 'enabled' end = any ($8))
         limit $9
    ) found group by name
"""


class Filter(NamedTuple):
    """Which schedules; None: whatever they have."""

    name: Sequence[str] | None = None  # patterns of LIKE
    job: Sequence[str] | None = None
    app: Sequence[str] | None = None  # patterns as well
    kind: Sequence[str] | None = None
    enabled: bool | None = None
    is_over: bool = False  # only those without a plan time to decide
    highest_id: int | None = None


async def page(conn: Connection, wanted: Filter, *, after: str | None, limit: int) -> Batch[Stored]:
    """Schedules by name, those behind a name. One that cannot be read is left out, with a warning."""
    rows = await readable(conn, _FILTERED, *wanted, after, limit)
    return Batch(all_stored(rows), rows[-1]["name"] if len(rows) == limit else None)


ByNext = tuple[datetime, int]  # the position of a schedule in the order of plan times


async def page_by_next(conn: Connection, wanted: Filter, *, after: ByNext | None, limit: int) -> Batch[Stored]:
    """Schedules by the plan time that is to be decided next; those that have one."""
    rows = await readable(conn, _BY_NEXT, *wanted, *(after or (None, None)), limit)
    last = (rows[-1]["look_at"], rows[-1]["id"]) if len(rows) == limit else None
    return Batch(all_stored(rows), last)


def place_by_next(stored: Stored) -> ByNext:
    assert stored.look_at is not None  # the order has no others
    return stored.look_at, stored.id


async def among(conn: Connection, wanted: Filter, ids: Sequence[int]) -> list[Stored]:
    """Those of these schedules that match and have a plan time to come, in the order of `ids`."""
    found = {stored.id: stored for stored in all_stored(await readable(conn, _AMONG, *wanted, ids))}
    return [found[id] for id in ids if id in found]


async def count(conn: Connection, wanted: Filter, states: Sequence[str], most: int) -> dict[str, int]:
    """How many match, by job; `most` of them are counted."""
    rows = await conn.fetch(_COUNT, *wanted, list(states) or None, most)
    return {row["name"]: row["count"] for row in rows}


_HAS_APP = """
    select exists (select from mainspring.schedule s join mainspring.job j on j.id = s.job_id
                    where s.namespace = 'default' and s.app = $1 and ($2::text[] is null or j.name like any ($2)))
"""


async def has_app(conn: Connection, app: str, job: Sequence[str] | None) -> bool:
    """Whether a schedule of these jobs, or of any, belongs to this application."""
    return bool(await conn.fetchval(_HAS_APP, app, job))


async def highest_id(conn: Connection) -> int:
    """The id of the newest schedule; 0 if there is none."""
    found: int = await conn.fetchval("select coalesce(max(id), 0) from mainspring.schedule")
    return found
