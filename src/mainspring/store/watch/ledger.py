"""Ledger audit: the plan times of each schedule by its expression against the ledger, schedule by schedule.

A planner writes fires and cursor in one statement, so nothing is ever passed over, unless rows were lost or the code is
wrong: this does not trust it. One row has the position of the leader; a writer moves it only from
where it read it.
Reads   mainspring.schedule
Writes  mainspring.ledger_audit, mainspring.ledger_hole
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from mainspring.store.postgres.connection import Connection

FARTHEST = timedelta(hours=12)  # back, that a pass goes: what retention drops is older
OVERLAP = timedelta(minutes=1)  # of two passes: a plan time is due in the ledger a while after its instant


class Position(NamedTuple):
    """Schedules up to `last_id` are compared in the current pass, from `since` on."""

    last_id: int
    since: datetime
    began_at: datetime
    now: datetime


_POSITION = "select last_id, since, began_at, mainspring.now() as now from mainspring.ledger_audit"


async def position(conn: Connection) -> Position:
    last_id, since, began_at, now = await conn.fetchrow(_POSITION)
    return Position(last_id, max(since, now - FARTHEST), min(began_at, now), now)


_NEXT = """
    select id from mainspring.schedule
     where id > $1 and kind <> 'daemon' and next_plan_at is not null order by id limit $2
"""


async def following(conn: Connection, last_id: int, limit: int) -> list[int]:
    """The next schedules of the pass."""
    return [row["id"] for row in await conn.fetch(_NEXT, last_id, limit)]


class Hole(NamedTuple):
    schedule_id: int
    plan_time: datetime
    scope: str


_ADVANCE = """
    with moved as (
        update mainspring.ledger_audit set last_id = $2, since = $3, began_at = $4
         where last_id = $1 returning true
    )
    insert into mainspring.ledger_hole (schedule_id, plan_time, scope)
    select hole.id, hole.plan_time, hole.scope
      from moved, unnest($5::integer[], $6::timestamptz[], $7::text[]) as hole(id, plan_time, scope)
      join mainspring.schedule s on s.id = hole.id
    on conflict do nothing
    returning schedule_id
"""


async def advance(conn: Connection, at: Position, last_id: int | None, holes: Sequence[Hole]) -> int:
    """Move on to `last_id` with what was found, or begin the next pass; returns how many holes are new."""
    to = (0, at.began_at - OVERLAP, at.now) if last_id is None else (last_id, at.since, at.began_at)
    columns = [hole.schedule_id for hole in holes], [hole.plan_time for hole in holes], [hole.scope for hole in holes]
    return len(await conn.fetch(_ADVANCE, at.last_id, *to, *columns))


_RECENT = """
    select exists (select from mainspring.ledger_hole where found_at > (select mainspring.now()) - $1::interval)
        or exists (select from mainspring.schedule
                    where look_at <= (select mainspring.now()) - $2::interval
                      and next_plan_at <= (select mainspring.now()) - $2::interval and enabled)
        or exists (select from mainspring.schedule
                    where problem is not null and next_plan_at <= (select mainspring.now()) - $2::interval and enabled)
"""


async def has_hole(conn: Connection, *, found_within: timedelta, overdue_by: timedelta) -> bool:
    """Whether a plan time was passed over of late, or is overdue."""
    return bool(await conn.fetchval(_RECENT, found_within, overdue_by))
