"""Calendars: named lists of excluded days. A schedule keeps a copy of the days of its calendars.

So a planner reads no other table, and an older version of a schedule still has the days that it excluded.
Next: store/schedules/schedules.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from mainspring.errors import CalendarNotFound, Conflict
from mainspring.model.schedules.schedules import Schedule
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import Batch, affected


class Calendar(NamedTuple):
    name: str
    days: tuple[str, ...]
    version: int
    app: str | None = None  # the application whose code defines it
    manifest: str | None = None  # the set of manifests that owns it


async def days_of(conn: Connection, schedules: Iterable[Schedule]) -> dict[str, Sequence[str]]:
    """The days of all calendars that these schedules use; locks them until the caller's transaction ends."""
    names = sorted({name for schedule in schedules for name in schedule.policies.calendars})
    if not names:
        return {}
    rows = await conn.fetch(
        """
        select name, days from mainspring.calendar where namespace = 'default' and name = any($1::text[])
         order by name for share
        """,
        names,
    )
    return {row["name"]: row["days"] for row in rows}


def with_days(schedule: Schedule, days: Mapping[str, Sequence[str]]) -> Schedule:
    """The schedule with the days that its calendars exclude."""
    policies = schedule.policies
    if not policies.calendars:
        return schedule if not policies.excluded else replace(schedule, policies=replace(policies, excluded=()))
    for name in policies.calendars:
        if name not in days:
            raise CalendarNotFound(
                f"no calendar named {name!r}; make it with `mainspring schedule calendar set {name} DAY…`",
                field="calendars",
            )
    excluded = tuple(dict.fromkeys(day for name in policies.calendars for day in days[name]))
    return replace(schedule, policies=replace(policies, excluded=excluded))


_PUT = """
    insert into mainspring.calendar as c (name, days) values ($1, $2)
    on conflict (namespace, name) do update
       set days = excluded.days, version = c.version + 1, updated_at = mainspring.now(), is_spread = false
     where c.days <> excluded.days
"""


async def put(conn: Connection, name: str, days: Sequence[str]) -> bool:
    """Create a calendar or change its days; returns whether schedules may still have other days: see `spread`."""
    await conn.execute(_PUT, name, days)
    is_spread = await conn.fetchval(
        "select is_spread from mainspring.calendar where namespace = 'default' and name = $1", name
    )
    return not is_spread


async def spread(conn: Connection, name: str, days: Sequence[str]) -> None:
    """Note that all schedules that use a calendar have these days."""
    await conn.execute(
        "update mainspring.calendar set is_spread = true where namespace = 'default' and name = $1 and days = $2",
        name,
        days,
    )


_USERS = """
    select s.name, j.name as job from mainspring.schedule s join mainspring.job j on j.id = s.job_id
     where s.namespace = 'default' and s.policies->'calendars' ? $1 order by s.name
"""


async def users(conn: Connection, name: str) -> dict[str, str]:
    """The schedules that use a calendar, each with its job."""
    return {row["name"]: row["job"] for row in await conn.fetch(_USERS, name)}


_USING_JOBS = """
    select distinct calendar, j.name as job
      from mainspring.schedule s join mainspring.job j on j.id = s.job_id,
           jsonb_array_elements_text(s.policies->'calendars') calendar
     where s.namespace = 'default' and jsonb_typeof(s.policies->'calendars') = 'array'
"""


async def using_jobs(conn: Connection) -> dict[str, list[str]]:
    """The jobs whose schedules use each calendar."""
    found: dict[str, list[str]] = {}
    for calendar, job in await conn.fetch(_USING_JOBS):
        found.setdefault(calendar, []).append(job)
    return found


_COLUMNS = "select name, days, version, app, manifest from mainspring.calendar"
_LIST = f"""
    {_COLUMNS}
     where namespace = 'default' and ($1::text is null or name > $1) order by name limit $2
"""


async def listing(conn: Connection, *, after: str | None = None, limit: int = 1_000_000) -> Batch[Calendar]:
    """Calendars by name."""
    rows = await conn.fetch(_LIST, after, limit)
    return Batch([_calendar(row) for row in rows], rows[-1]["name"] if len(rows) == limit else None)


_ONE = f"{_COLUMNS} where namespace = 'default' and name = $1"
_NAMED = f"{_COLUMNS} where namespace = 'default' and name = any($1::text[]) order by name"


async def named(conn: Connection, names: Sequence[str], *, lock: bool = False) -> dict[str, Calendar]:
    """Those of these calendars that exist."""
    rows = await conn.fetch(f"{_NAMED} for update" if lock else _NAMED, names)
    return {row["name"]: _calendar(row) for row in rows}


async def find(conn: Connection, name: str, *, lock: bool = False) -> Calendar | None:
    row = await conn.fetchrow(f"{_ONE} for update" if lock else _ONE, name)
    return None if row is None else _calendar(row)


def _calendar(row: Any) -> Calendar:
    return Calendar(row["name"], tuple(row["days"]), row["version"], row["app"], row["manifest"])


async def days(conn: Connection, name: str, *, lock: bool = False) -> list[str] | None:
    """The days of a calendar; None if there is none of this name."""
    query = "select days from mainspring.calendar where namespace = 'default' and name = $1"
    found: list[str] | None = await conn.fetchval(f"{query} for update" if lock else query, name)
    return found


async def delete(conn: Connection, name: str) -> None:
    """Remove a calendar that no schedule uses."""
    async with conn.transaction():
        tag = await conn.execute("delete from mainspring.calendar where namespace = 'default' and name = $1", name)
        if used := list(await users(conn, name)):  # no new one can come: it would wait for our row lock
            raise Conflict(f"calendar {name!r} is used by {', '.join(used[:3])}; change them first", field="calendar")
    if not affected(tag):
        raise CalendarNotFound(f"no calendar named {name!r}; `mainspring schedule calendar list` shows what there is")
