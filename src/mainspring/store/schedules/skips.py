"""Skips: plan times that a person has taken out of a schedule, and takes back as long as they have not passed.

A skip is a row that planners read. Each change of them counts up `schedule.skips`, which `plans.plan` compares: what a
planner decided by the skips of before is not written. A change of skips has locked the schedule's row, as planners
do, so a task that was planned ahead is either there to be withdrawn, or is not made.
Next: store/schedules/plans.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mainspring.model.schedules.skips import Skip
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import columns
from mainspring.store.schedules import revoke
from mainspring.store.schedules.plans import DueSchedule
from mainspring.store.schedules.revoke import Recalled
from mainspring.store.schedules.schedules import Stored
from mainspring.store.tasks import partitions

_OF_DUE = """
    select k.schedule_id, k.start, k.stop, k.actor, k.note, k.made_at
      from unnest($1::integer[], $2::timestamptz[]) as given(id, cursor)
      join mainspring.schedule_skip k on k.schedule_id = any (array[given.id]) and k.stop >= given.cursor
     order by k.start, k.id
"""


async def of_due(conn: Connection, found: Sequence[DueSchedule]) -> dict[int, list[Skip]]:
    """By schedule, the skips that may cover a plan time to be decided. Asks nothing where no schedule has any."""
    wanted = [due for due in found if due.may_skip]
    skips: dict[int, list[Skip]] = {}
    if wanted:
        for id, *skip in await conn.fetch(_OF_DUE, [due.id for due in wanted], [due.cursor for due in wanted]):
            skips.setdefault(id, []).append(Skip(*skip))
    return skips


_BETWEEN = """
    select start, stop, actor, note, made_at from mainspring.schedule_skip
     where schedule_id = $1 and ($3::timestamptz is null or start <= $3) and stop >= $2 order by start, id
"""


async def between(conn: Connection, schedule_id: int, start: datetime, stop: datetime | None = None) -> list[Skip]:
    """The skips that cover any instant from `start` through `stop`, or later; those that are over too."""
    return [Skip(*row) for row in await conn.fetch(_BETWEEN, schedule_id, start, stop)]


_INSERT = """
    insert into mainspring.schedule_skip (schedule_id, start, stop, actor, note, made_at)
    select $1, * from unnest($2::timestamptz[], $3::timestamptz[], $4::text[], $5::text[], $6::timestamptz[])
"""
_CHANGED = """
    update mainspring.schedule s
       set skips = s.skips + 1, updated_at = $2,
           skips_until = (select max(k.stop) from mainspring.schedule_skip k where k.schedule_id = $1)
     where s.id = $1
    returning pg_notify('mainspring', 'schedule')
"""
# Not by the cursor, which goes back when a skip is taken back, while later plan times have tasks already.
_LATEST = "select max(plan_time) from mainspring.task where schedule_id = $1"


async def add(conn: Connection, stored: Stored, skips: Sequence[Skip]) -> Recalled:
    """Add skips and withdraw what they cover of the tasks that were planned ahead. The schedule's row is locked."""
    await conn.execute(_INSERT, stored.id, *columns(Skip, skips))
    await conn.execute(_CHANGED, stored.id, stored.now)
    latest = await conn.fetchval(_LATEST, stored.id)
    taken_back = asked_back = 0
    for skip in skips:
        if latest is not None and skip.start <= latest:
            gone = await revoke.recall_between(conn, stored.id, at=stored.now, start=skip.start, stop=skip.stop)
            taken_back += gone.taken_back
            asked_back += gone.asked_back
    return Recalled(taken_back, asked_back, 0)


# What planners have decided ahead by a skip that is no longer there is undecided again.
_UNDECIDE = """
    with undecided as (
        delete from mainspring.fire f
         where f.schedule_id = $1 and f.reason = 'skipped' and f.plan_time > $2
           and not exists (select from mainspring.schedule_skip k
                            where k.schedule_id = $1 and f.plan_time between k.start and k.stop)
        returning f.plan_time
    )
    update mainspring.schedule s
       set next_plan_at = least(s.next_plan_at, back.first), look_at = case when s.enabled then $2 end
      from (select min(plan_time) as first from undecided) back
     where s.id = $1 and back.first is not null
"""


async def replace(conn: Connection, stored: Stored, left: Sequence[Skip]) -> None:
    """Have these in place of the skips that are not over. The schedule's row is locked."""
    await partitions.go_through_all(conn)
    gone = "delete from mainspring.schedule_skip where schedule_id = $1 and stop > $2"
    await conn.execute(gone, stored.id, stored.now)
    await conn.execute(_INSERT, stored.id, *columns(Skip, left))
    await conn.execute(_UNDECIDE, stored.id, stored.now)
    await conn.execute(_CHANGED, stored.id, stored.now)
