"""Missed starts: the plan times that were due in a span of time and have not started, of all schedules.

Each plan time has one instant: when it is due at the latest, with its delay and jitter. So spans that follow each other
find each of them once, whenever they are searched. Three searches find them, in this order, so that one that is decided
meanwhile is found twice rather than never:

    undecided   Its schedule's cursor has not passed it: no server plans, or none can.
    too late    The ledger says misfire or coalesced; a small index has only those.
    waiting     It has a task that no agent has started. Those that wait for their turn by policy are not missed.

And one more has the plan times that were passed over, by the instant at which the leader found out.
Reads   mainspring.schedule, mainspring.fire, mainspring.task, mainspring.ledger_hole
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Literal, NamedTuple

from mainspring.errors import ValidationError
from mainspring.model.schedules.planning import INSTANT
from mainspring.model.schedules.schedules import Policies
from mainspring.model.tasks.pools import PARKED
from mainspring.model.tasks.states import ASSIGNED, PENDING
from mainspring.store.followed import shift
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import fires, missed, schedules
from mainspring.store.schedules.schedules import Stored

Why = Literal["undecided", "misfire", "coalesced", "waiting", "passed_over"]

AT_ONCE = 100  # schedules or fires of one query: reading so many holds the event loop for a few milliseconds
SLICE = 0.002  # seconds of computing after which other tasks on the event loop run
MOST_SCHEDULES = 5000  # with undecided plan times
MOST_FIRES = 20_000  # that were too late, in one search


class MissedStart(NamedTuple):
    plan_time: datetime
    scope: str
    why: Why
    due: datetime  # at the latest
    task: int | None = None


class Missed(NamedTuple):
    starts: dict[int, list[MissedStart]]  # by schedule
    stored: dict[int, Stored]
    until: datetime  # no further was searched
    uncounted: int  # schedules with undecided plan times beyond MOST_SCHEDULES


async def missed_starts(
    conn: Connection, names: Sequence[str] | None, since: datetime, until: datetime, *, found: tuple[datetime, datetime]
) -> Missed:
    """The plan times of schedules that match patterns of LIKE, due after `since` and up to `until`, without a start.

    And those that were found to be passed over between the two instants of `found`.
    """
    search = _Search(conn, names, since, until, await shift.longest(conn))
    uncounted = await search.undecided()
    await search.too_late()
    await search.waiting()
    await search.passed_over(*found)
    return Missed(
        {id: sorted(starts.values()) for id, starts in search.found.items() if starts},
        search.stored,
        search.until,
        uncounted,
    )


class _Search:
    def __init__(
        self, conn: Connection, names: Sequence[str] | None, since: datetime, until: datetime, longest: timedelta
    ) -> None:
        self._conn = conn
        self._names = names
        self._since = since
        self._shift = longest
        self._rested = monotonic()
        self.until = until
        self.found: dict[int, dict[tuple[datetime, str], MissedStart]] = {}
        self.stored: dict[int, Stored] = {}

    def _add(self, id: int, start: MissedStart) -> None:
        self.found.setdefault(id, {}).setdefault((start.plan_time, start.scope), start)

    async def _rest(self) -> None:
        if monotonic() - self._rested > SLICE:
            await asyncio.sleep(0)
            self._rested = monotonic()

    async def _load(self, ids: Iterable[int]) -> None:
        unknown = {*ids} - self.stored.keys()
        if unknown:
            self.stored |= await schedules.by_id(self._conn, sorted(unknown))

    def _has(self, plan_time: datetime, policies: Policies) -> bool:
        """Whether a plan time was due in this span, at the latest."""
        return self._since < plan_time + shift.of(policies) <= self.until

    async def undecided(self) -> int:
        """Returns how many schedules were left out."""
        rows = await self._conn.fetch(_OVERDUE, self.until, self._names, MOST_SCHEDULES + 1)
        ids = [row["id"] for row in rows][:MOST_SCHEDULES]
        for at in range(0, len(ids), AT_ONCE):
            chunk = ids[at : at + AT_ONCE]
            await self._load(chunk)
            for id in chunk:
                if id in self.stored:
                    await self._undecided_of(self.stored[id])
        if len(rows) <= MOST_SCHEDULES:
            return 0
        overdue: int = await self._conn.fetchval(_COUNT_OVERDUE, self.until, self._names, None)
        return max(1, overdue - MOST_SCHEDULES)

    async def _undecided_of(self, stored: Stored) -> None:
        cursor = stored.next_plan_at
        if cursor is None or cursor > self.until:  # planned since
            return
        try:
            since = max(cursor, self._since - self._shift)
            for one in await missed.expected_times(self._conn, stored, since, self.until):
                if self._has(one.plan_time, policies := one.version.policies):
                    for scope in one.gaps(()):
                        due = one.plan_time + shift.of(policies)
                        self._add(stored.id, MissedStart(one.plan_time, scope, "undecided", due))
                await self._rest()
        except ValidationError:  # a timezone that is unknown here: of its plan times only the next one is known
            if stored.enabled and self._has(cursor, policies := stored.schedule.policies):
                self._add(stored.id, MissedStart(cursor, "", "undecided", cursor + shift.of(policies)))

    async def too_late(self) -> None:
        """Stops after MOST_FIRES; then the whole search ends where all of them were read."""
        after = self._since - self._shift, 0, ""
        read = 0
        while rows := await self._conn.fetch(_TOO_LATE, self.until, self._names, *after, AT_ONCE):
            after = rows[-1]["plan_time"], rows[-1]["schedule_id"], rows[-1]["scope"]
            read += len(rows)
            await self._load(row["schedule_id"] for row in rows)
            for id, plan_time, scope, reason in rows:
                policies = await self._policies(id, plan_time)
                if policies is not None and self._has(plan_time, policies):
                    self._add(id, MissedStart(plan_time, scope, reason, plan_time + shift.of(policies)))
            if read >= MOST_FIRES and self._since < (reached := after[0] - INSTANT):
                self.until = reached
                for id, starts in self.found.items():
                    self.found[id] = {key: start for key, start in starts.items() if start.due <= reached}
                return
            await self._rest()

    async def _policies(self, id: int, plan_time: datetime) -> Policies | None:
        """Those that were in force then; None for a schedule that is gone or cannot be read."""
        stored = self.stored.get(id)
        if stored is None or plan_time > stored.since:
            return None if stored is None else stored.schedule.policies
        try:
            versions = await fires.versions(self._conn, stored, plan_time)
        except ValidationError:
            return None
        return versions[0].version.policies

    async def waiting(self) -> None:
        rows = await self._conn.fetch(_WAITING, self._since, self.until, PARKED, MOST_FIRES, self._names)
        await self._load(row["schedule_id"] for row in rows)
        for id, plan_time, scope, due, task in rows:
            if id in self.stored:
                self._add(id, MissedStart(plan_time, scope, "waiting", due, task))

    async def passed_over(self, since: datetime, until: datetime) -> None:
        rows = await self._conn.fetch(_PASSED_OVER, since, until, self._names, MOST_FIRES)
        await self._load(row["schedule_id"] for row in rows)
        for id, plan_time, scope in rows:
            if id in self.stored:
                self._add(id, MissedStart(plan_time, scope, "passed_over", plan_time))


# A schedule that cannot be planned is looked at later, so the index of `look_at` does not find it.
_OVERDUE = """
    select id from mainspring.schedule
     where look_at <= $1::timestamptz and next_plan_at <= $1 and enabled
       and ($2::text[] is null or name like any ($2))
     union
    select id from mainspring.schedule
     where problem is not null and next_plan_at <= $1 and enabled and ($2::text[] is null or name like any ($2))
     order by id limit $3
"""
_COUNT_OVERDUE = f"select count(*) from ({_OVERDUE}) found"
_TOO_LATE = """
    select f.schedule_id, f.plan_time, f.scope, f.reason from mainspring.fire f
     where f.reason in ('misfire', 'coalesced') and f.plan_time >= $3 and f.plan_time <= $1
       and (f.plan_time, f.schedule_id, f.scope) > ($3, $4, $5)
       and ($2::text[] is null or exists (select from mainspring.schedule s
                                           where s.id = f.schedule_id and s.name like any ($2)))
     order by f.plan_time, f.schedule_id, f.scope limit $6
"""
# By pool and priority, as claims read them: each is a short range of the index, however long the queues are. `coalesce`
# keeps PostgreSQL from another index, which has all tasks of schedules.
_WAITING = f"""
    select found.* from (select id from mainspring.pool union all select $3::integer) p
     cross join generate_series(0, 9) as level(priority)
     cross join lateral (
         select t.schedule_id, t.plan_time, t.scope, t.run_at, t.id from mainspring.task t
          where t.pool = p.id and t.priority = level.priority and t.run_at > $1 and t.run_at <= $2
            and coalesce(t.schedule_id, 0) <> 0 and t.origin = 'plan' and t.started_at is null
            and (t.state = {PENDING:d} and t.attempt = 0 or t.state = {ASSIGNED:d} and t.attempt <= 1)
            and ($5::text[] is null or exists (select from mainspring.schedule s
                                                where s.id = t.schedule_id and s.name like any ($5)))
         offset 0                                      -- for each of them
     ) found
     limit $4
"""
_PASSED_OVER = """
    select h.schedule_id, h.plan_time, h.scope from mainspring.ledger_hole h
     where h.found_at > $1 and h.found_at <= $2
       and ($3::text[] is null or exists (select from mainspring.schedule s
                                           where s.id = h.schedule_id and s.name like any ($3)))
     order by h.found_at limit $4
"""
