"""SLO: the events of schedules with an objective, counted by the minute and the hour in which they were due.

`add` moves a schedule's cursor and adds the counts in one statement, guarded by the cursor that the caller has counted
from: a repetition, or a second counter at the same time, adds nothing.
Writes  mainspring.slo, mainspring.slo_minute, mainspring.slo_hour
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from msgspec import Struct

from mainspring.model.tasks.payload import UNREADABLE
from mainspring.model.watch.slo import BURN_RULES, BurnRate, Count, Slo, budget_left, burn_rates
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import columns

_FOLLOW = """
    insert into mainspring.slo as s (schedule_id, counted_to, look_at) select id, $2, $2 from unnest($1::integer[]) id
    on conflict (schedule_id) do update set look_at = least(s.look_at, excluded.look_at)
"""
_FORGET = """
    with minutes as (delete from mainspring.slo_minute where schedule_id = any($1::integer[])),
         hours as (delete from mainspring.slo_hour where schedule_id = any($1::integer[]))
    delete from mainspring.slo where schedule_id = any($1::integer[])
"""


async def follow(conn: Connection, schedules: Sequence[int], now: datetime) -> None:
    """Count the plan times of these schedules after now."""
    if schedules:
        await conn.execute(_FOLLOW, schedules, now)


async def forget(conn: Connection, schedules: Sequence[int]) -> None:
    """They have no objective any longer: forget what was counted."""
    if schedules:
        await conn.execute(_FORGET, schedules)


class Cursor(NamedTuple):
    schedule_id: int
    counted_to: datetime
    now: datetime


_DUE = """
    select schedule_id, counted_to, (select mainspring.now()) as now from mainspring.slo
     where look_at <= (select mainspring.now()) order by look_at limit $1
"""


async def due(conn: Connection, limit: int) -> list[Cursor]:
    """Schedules with plan times to count."""
    return [Cursor(*row) for row in await conn.fetch(_DUE, limit)]


class Advance(NamedTuple):
    """All plan times of a schedule after `counted_from` and up to `counted_to` are counted."""

    schedule_id: int
    counted_from: datetime
    counted_to: datetime
    look_at: datetime


class Events(NamedTuple):
    """Of one schedule and minute."""

    schedule_id: int
    minute: datetime
    good: int
    bad: int
    missed: int


_ADD = """
    with held as (
        update mainspring.slo s set counted_to = given.counted_to, look_at = given.look_at
          from unnest($1::integer[], $2::timestamptz[], $3::timestamptz[], $4::timestamptz[])
               as given(id, counted_from, counted_to, look_at)
         where s.schedule_id = given.id and s.counted_to = given.counted_from
        returning s.schedule_id
    ), event as (
        select e.* from unnest($5::integer[], $6::timestamptz[], $7::integer[], $8::integer[], $9::integer[])
                     as e(schedule_id, minute, good, bad, missed)
          join held on held.schedule_id = e.schedule_id
    ), minutes as (
        insert into mainspring.slo_minute as m (schedule_id, minute, good, bad, missed) select * from event
        on conflict (schedule_id, minute) do update
           set good = m.good + excluded.good, bad = m.bad + excluded.bad, missed = m.missed + excluded.missed
    ), hours as (
        insert into mainspring.slo_hour as h (schedule_id, hour, good, bad, missed)
        select schedule_id, date_trunc('hour', minute, 'UTC'), sum(good), sum(bad), sum(missed) from event group by 1, 2
        on conflict (schedule_id, hour) do update
           set good = h.good + excluded.good, bad = h.bad + excluded.bad, missed = h.missed + excluded.missed
    )
    select schedule_id from held
"""


async def add(conn: Connection, advances: Sequence[Advance], events: Sequence[Events]) -> set[int]:
    """Add what was counted; returns the schedules that moved. The others were counted by another leader."""
    rows = await conn.fetch(_ADD, *columns(Advance, advances), *columns(Events, events))
    return {row["schedule_id"] for row in rows}


# ── what was counted ────────────────────────────────────────────────────────────────────────────


class SloState(Struct, frozen=True):
    """How a schedule does by its objective. Windows end now, and are counted in whole hours, or minutes."""

    lateness: float  # seconds
    target: float
    window: float  # seconds
    counted_to: datetime | None  # plan times up to this one are counted
    good: int
    bad: int
    missed: int  # of the bad ones, those that had not started
    compliance: float | None  # the share of good events in the window; null: there was none
    budget_left: float | None  # the share of the error budget; negative: overdrawn
    burn_rates: list[BurnRate]


_WINDOW = """
    select s.counted_to, mainspring.now() as now, coalesce(sum(h.good), 0)::bigint as good,
           coalesce(sum(h.bad), 0)::bigint as bad, coalesce(sum(h.missed), 0)::bigint as missed
      from mainspring.slo s
      left join mainspring.slo_hour h
        on h.schedule_id = s.schedule_id and h.hour > (select mainspring.now()) - make_interval(secs => $2)
     where s.schedule_id = $1
     group by s.counted_to
"""
WINDOWS = tuple(sorted({window for rule in BURN_RULES for window in (rule.long, rule.short)}))
_MINUTES = """
    select minute, good, bad, missed from mainspring.slo_minute where schedule_id = $1 and minute > $2::timestamptz
"""


async def state(conn: Connection, schedule: int, objective: Slo) -> SloState:
    """What was counted of one schedule."""
    row = await conn.fetchrow(_WINDOW, schedule, objective.window)
    count, rates, counted_to = Count(), [], None
    if row is not None:
        counted_to, now, *numbers = row
        count = Count(*numbers)
        found = await conn.fetch(_MINUTES, schedule, now - timedelta(seconds=WINDOWS[-1]))
        rates = burn_rates({window: _within(found, now, window) for window in WINDOWS}, objective.target)
    return SloState(
        objective.lateness,
        objective.target,
        objective.window,
        counted_to,
        count.good,
        count.bad,
        count.missed,
        count.good / count.events if count.events else None,
        budget_left(count, objective.target),
        rates,
    )


def _within(minutes: Sequence[tuple[datetime, int, int, int]], now: datetime, window: float) -> Count:
    since = now - timedelta(seconds=window)
    recent = [row for row in minutes if row[0] > since]
    return Count(sum(row[1] for row in recent), sum(row[2] for row in recent), sum(row[3] for row in recent))


class Budget(NamedTuple):
    """A schedule with bad events of late, and what was counted in each of WINDOWS."""

    name: str
    job: str
    objective: Slo
    counts: dict[float, Count]
    since: datetime  # the first bad minute in the longest window


_SUMS = ", ".join(
    f"coalesce(sum(m.{column}) filter (where m.minute > $2 - interval '{window:g} s'), 0)::integer"
    for window in WINDOWS
    for column in Count.__struct_fields__
)
# Only minutes with bad events make a schedule a candidate: one that does well costs nothing beyond this index.
_SPENDING = f"""
    select s.name, j.name as job, s.policies->'slo' as slo, min(m.minute) filter (where m.bad > 0) as since,
           {_SUMS}
      from (select schedule_id from mainspring.slo_minute
             where minute > $2::timestamptz - interval '{WINDOWS[-2]:g} s' and minute <= $2 and bad > 0
             group by schedule_id) recent
      join mainspring.schedule s on s.id = any (array[recent.schedule_id])
      join mainspring.job j on j.id = s.job_id
     cross join lateral (
         select minute, good, bad, missed from mainspring.slo_minute
          where schedule_id = s.id and minute > $2::timestamptz - interval '{WINDOWS[-1]:g} s' and minute <= $2
     ) m
     where s.policies ? 'slo' and ($1::text[] is null or s.name like any ($1))
     group by s.id, j.name
     order by s.name limit $3
"""


async def spending(conn: Connection, names: Sequence[str] | None, now: datetime, *, limit: int) -> list[Budget]:
    """Schedules with bad events in the last hour, of those that match patterns of LIKE."""
    found = []
    for name, job, text, since, *numbers in await conn.fetch(_SPENDING, names, now, limit):
        try:
            objective = msgspec.json.decode(text, type=Slo)
        except UNREADABLE:  # written by SQL
            continue
        counts = {window: Count(*numbers[3 * i : 3 * i + 3]) for i, window in enumerate(WINDOWS)}
        found.append(Budget(name, job, objective, counts, since))
    return found
