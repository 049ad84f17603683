"""The ledger read back: what was decided about plan times, and by which versions they were to be expected.

Next: store/explain.py, which tells the story of a plan time; store/missing.py, which compares
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from mainspring.model.planning import Reason, Version
from mainspring.model.story import Origin, Past
from mainspring.model.timing import Timing, timing
from mainspring.store import plans
from mainspring.store.database import Connection
from mainspring.store.schedules import Stored


class FireRow(NamedTuple):
    """A decided plan time of one scope."""

    plan_time: datetime
    scope: str
    task_id: int | None
    reason: Reason | None
    origin: Origin
    decided_at: datetime


_FIRES = """
    select plan_time, scope, task_id, reason, origin, decided_at from mainspring.fire
     where schedule_id = $1 and plan_time >= $2 and plan_time <= $3
     order by plan_time desc, scope limit $4
"""


async def fires(conn: Connection, schedule_id: int, since: datetime, until: datetime, limit: int) -> list[FireRow]:
    """What was decided about the plan times from `since` up to and with `until`, the latest first."""
    return [FireRow(*row) for row in await conn.fetch(_FIRES, schedule_id, since, until, limit)]


async def versions(conn: Connection, stored: Stored, since: datetime) -> list[Past]:
    """All versions that were in force at `since` or later, in order; the last one is in force."""
    told = timing(stored.schedule)
    older: Sequence[Version] = ()
    if since <= stored.since:
        older = await plans.older_versions(conn, stored.id, stored.schedule.name, since)
    current = Version(told, stored.schedule.policies, stored.enabled, stored.since)
    return [_past(version) for version in (*older, current)]


def _past(version: Version) -> Past:
    assert isinstance(version.timing, Timing)  # the store makes no other
    return Past(version, version.timing)


class UsedUp(NamedTuple):
    """Of a version of a schedule: its plan times between these two were not planned, for its runs were used up."""

    max_runs: int
    after: datetime
    before: datetime | None

    def has(self, at: datetime) -> bool:
        return at > self.after and (self.before is None or at < self.before)


_LAST_OF_A_VERSION = """
    select max(plan_time) from mainspring.fire
     where schedule_id = $1 and origin = 'plan'
       and plan_time > $2 and plan_time <= coalesce($3::timestamptz, 'infinity')
"""


async def used_up(conn: Connection, stored: Stored, version: Version) -> UsedUp | None:
    """Which plan times of a version were not planned because of `max_runs`.

    How many runs an older version had made is not kept: what lies between its last decided plan time and the
    cursor was not planned though somebody planned, and that is what `max_runs` does.
    """
    most = stored.schedule.policies.max_runs
    if most is not None and stored.runs >= most:
        last = await conn.fetchval(_LAST_OF_A_VERSION, stored.id, stored.created_at, None)
        return UsedUp(most, last or stored.created_at, None)
    most = version.policies.max_runs
    if most is None or version.until is None:
        return None
    last = await conn.fetchval(_LAST_OF_A_VERSION, stored.id, version.since, version.until)
    return UsedUp(most, last or version.since, stored.next_plan_at)


_LAST = """
    select max(plan_time) from mainspring.fire
     where schedule_id = $1 and plan_time <= $2 and origin <> 'manual'
"""


async def last_decided(conn: Connection, stored: Stored) -> datetime | None:
    """The last plan time up to now about which something was decided."""
    at: datetime | None = await conn.fetchval(_LAST, stored.id, stored.now)
    return at
