"""Plans: the fires and tasks of schedules, written together with their advanced cursors.

`plan` is one statement. It acts only for schedules whose version and cursor are still those that the caller computed
from, and only for plan times that are not in the ledger yet: any number of planners may run it at once, and each plan
time is decided once. A planner reads the segments that its server owns and writes under the epoch in which it read: if
its server lost a segment meanwhile, it writes nothing for it.
Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from mainspring.errors import ValidationError
from mainspring.model.schedules.planning import Version
from mainspring.model.schedules.schedules import Policies, Schedule
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.payload import UNREADABLE, cut
from mainspring.model.tasks.pools import blocked
from mainspring.model.tasks.states import BLOCKED, PENDING
from mainspring.store.cluster.segments import holds, owned
from mainspring.store.flows.checked import CHECKED, CHECKED_COLUMNS, PRIORITY, checking
from mainspring.store.postgres import hints
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import columns

NO_ARGUMENTS = "{}"


class DueSchedule(NamedTuple):
    """A schedule to plan now, as it was when it was read."""

    id: int
    number: int  # of its version
    schedule: Schedule
    cursor: datetime
    since: datetime
    runs: int
    now: datetime
    epoch: int | None  # of its segment; None: planned by any process of its application
    problem: str | None = None  # why it cannot be read: a newer version may have written it
    segment: int = 0
    skips: int = 0  # changes of its skips
    skips_until: datetime | None = None

    @property
    def may_skip(self) -> bool:
        """Whether its skips may cover a plan time that is to be decided."""
        return self.skips_until is not None and self.skips_until >= self.cursor


# The epoch is read by one probe per row: a join might sort all that is due.
_DUE = f"""
    with {owned(server="$4")}
    select s.id, s.version, s.name, s.kind, s.expression, s.timezone, s.policies, s.next_plan_at, s.since, s.runs,
           (select mainspring.now()) as now,
           case when $1::text[] is null then (select g.epoch from mainspring.segment g where g.id = s.segment) end
               as epoch, s.segment, s.skips, s.skips_until
      from mainspring.schedule s
     where s.look_at <= (select mainspring.now() + $5::interval) and s.next_plan_at is not null and s.enabled
       and case when $1::text[] is null then s.provider_app is null and {holds("s.segment")}
                else s.provider_app = any($1) end
     order by s.look_at
     limit $2 offset $3
"""


async def due(
    conn: Connection,
    server: UUID,
    limit: int,
    *,
    behind: int = 0,
    providers: Sequence[str] | None = None,
    early: timedelta = timedelta(0),
) -> list[DueSchedule]:
    """Schedules to plan now, and those to plan within `early`, in segments of `server`, after the first `behind`.

    With `providers` those whose scopes these applications provide, in any segment: its owner may not have their code.
    """
    return [_due(row) for row in await conn.fetch(_DUE, providers, limit, behind, server, early)]


def _due(row: Any) -> DueSchedule:
    id, number, name, kind, expression, timezone, text, cursor, since, runs, now, epoch, segment, *skips = row
    its, problem = Policies(), None
    try:
        its = policies(text)
    except ValidationError as error:
        problem = error.message
    schedule = Schedule(name, "", kind, expression, timezone, its)
    return DueSchedule(id, number, schedule, cursor, since, runs, now, epoch, problem, segment, *skips)


def policies(text: str) -> Policies:
    try:
        return msgspec.json.decode(text, type=Policies)
    except UNREADABLE as error:
        raise ValidationError(f"policies: not known to this version: {str(error)[:200]}", field="policies") from None


_VERSIONS = """
    select version, since, until, enabled, kind, expression, timezone, policies from mainspring.schedule_version
     where schedule_id = $1 and until >= $2
     order by version
"""


async def versions(conn: Connection, due: DueSchedule) -> list[Version]:
    """The versions in force at the cursor and since, the current one last. ValidationError if one cannot be read."""
    if due.problem is not None:
        raise ValidationError(due.problem)
    current = Version(timing(due.schedule), due.schedule.policies, True, due.since)
    return await with_older(conn, due.id, due.schedule.name, current, due.cursor)


async def with_older(conn: Connection, id: int, name: str, current: Version, at: datetime) -> list[Version]:
    """The versions in force at an instant and since, in order; the current one is the last."""
    rows = await conn.fetch(_VERSIONS, id, at) if at <= current.since else ()
    return [*(_version(name, row) for row in rows), current]


def _version(name: str, row: Any) -> Version:
    its = policies(row["policies"])
    told = timing(Schedule(name, "", row["kind"], row["expression"], row["timezone"], its))
    return Version(told, its, row["enabled"], row["since"], row["until"], row["version"])


class Advance(NamedTuple):
    """The cursor of a schedule advances from `cursor`, which must still be its value, to `next`."""

    schedule_id: int
    version: int
    cursor: datetime
    next: datetime | None
    look_at: datetime | None
    epoch: int | None = None  # of its segment, which must not have changed; None: planned by its application
    skips: int = 0  # changes of its skips, whose number must still be the same


class Fire(NamedTuple):
    """A decided plan time of one scope: with a task that runs at `run_at`, or a reason why there is none."""

    schedule_id: int
    plan_time: datetime
    scope: str
    run_at: datetime
    reason: str | None
    args: str = NO_ARGUMENTS  # JSON


# Arrays that are shorter than the first are padded with nulls: see `_fire_columns`.
# A task of a schedule that must not overlap is created blocked (store/schedules/overlap.py), unless no other task of
# its schedule and scope lives. Only planners create such tasks, and they have locked the schedule's row. A task of a
# schedule that waits for another one is created blocked as well (store/followed/after.py). `= any (array[…])` is one
# index probe per row; a plain `=` may become a hash join (see store/postgres/database.py).
_PLAN = f"""
    with given as materialized (
        select * from unnest($1::integer[], $2::integer[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[],
                             $12::bigint[], $14::integer[])
            as given(id, version, cursor, next, look_at, epoch, skips)
    ), held as materialized (
        select s.id, s.job_id, s.policies, given.next, given.look_at,
               coalesce(s.policies->>'overlap', 'allow') <> 'allow' as takes_turns,
               s.policies ? 'after' as follows,
               s.policies ?| array['scopes', 'provider'] as has_scopes, s.policies->>'when_full' = 'skip' as skips_full
          from given join mainspring.schedule s on s.id = any (array[given.id])
         where s.version = any (array[given.version]) and s.next_plan_at = any (array[given.cursor]) and s.enabled
           and s.skips = any (array[coalesce(given.skips, 0)])
           and (given.epoch is null
                or (select g.owner = $13 and g.epoch = given.epoch from mainspring.segment g where g.id = s.segment))
         order by given.id                               -- by s.id PostgreSQL might scan all schedules in that order
           for update of s skip locked
    ), skips as materialized (                              -- holds of jobs, or of everything, that skip plan times
        select array_agg(coalesce(job_id, 0)) as jobs from mainspring.hold where skips and released_at is null
    ), fire as materialized (
        select f.*, why.reason, case when why.reason is null then nextval('mainspring.task_id') end as task_id
          from (select held.*, f.schedule_id, f.plan_time, coalesce(f.scope, '') as scope,
                       coalesce(f.run_at, f.plan_time) as run_at, coalesce(f.args, '{{}}') as args,
                       f.reason as decision,
                       -- of those that get a task, if there is room
                       row_number() over (partition by held.job_id, f.reason is null order by f.number) as of_its_job
                  from unnest($6::integer[], $7::timestamptz[], $8::text[], $9::timestamptz[], $10::text[], $11::text[])
                       with ordinality as f(schedule_id, plan_time, scope, run_at, reason, args, number)
                  join held on held.id = f.schedule_id) f
         cross join lateral (
             select case when f.decision is not null then f.decision
                         when array[0, f.job_id] && (select jobs from skips) then 'paused'
                         when f.skips_full and mainspring.is_full(f.job_id, f.of_its_job) then 'queue_full' end
         ) why(reason)
    ), decided as (
        insert into mainspring.fire as f (schedule_id, plan_time, scope, task_id, reason, decided_at)
        select schedule_id, plan_time, scope, task_id, reason, (select mainspring.now()) from fire
        on conflict do nothing
        returning f.schedule_id, f.plan_time, f.task_id
    ), queued as (
        select fire.*, takes_turns and (
                   row_number() over (partition by fire.schedule_id, scope order by fire.plan_time) > 1
                   or (select true from mainspring.task t         -- one probe per row: EXISTS might scan all tasks
                        where t.schedule_id = fire.schedule_id and t.schedule_id is not null and t.scope = fire.scope
                          and t.origin is distinct from 'backfill'
                        limit 1) is not null) as waits
          from decided join fire on fire.task_id = decided.task_id
    ), tasks as (
        insert into mainspring.task
            (id, run_at, created_at, job_id, waiting_for, pool, state, priority, args, schedule_id, plan_time, scope,
             origin, {CHECKED_COLUMNS})
        select q.task_id, q.run_at, (select mainspring.now()), j.id, q.follows::integer,
               case when q.waits or q.follows then {blocked("j.pool")} else j.pool end,
               case when q.waits or q.follows then {BLOCKED:d} else {PENDING:d} end, {PRIORITY}, q.args::jsonb,
               q.schedule_id, q.plan_time, q.scope, 'plan', {CHECKED}
          from queued q join mainspring.job j on j.id = any (array[q.job_id])
               {checking("q.args::jsonb", "q.run_at", "q.policies")}
        returning pool, priority, run_at, id
    ), made as (
        select schedule_id, count(*) as runs
          from (select distinct d.schedule_id, d.plan_time, held.has_scopes
                  from decided d join held on held.id = d.schedule_id where d.task_id is not null) new
         where not (has_scopes and exists (                      -- another scope may have got a task before
                   select from mainspring.fire f
                    where f.schedule_id = new.schedule_id and f.plan_time = new.plan_time
                      and f.task_id is not null offset 0))
         group by schedule_id
    )
    update mainspring.schedule s
       set next_plan_at = held.next, look_at = held.look_at, problem = null, runs = s.runs + coalesce(made.runs, 0)
      from held left join made on made.schedule_id = held.id
     where s.id = any (array[held.id])
    returning s.id, ({hints.due("tasks")}) as hints      -- of late tasks: the others lie above all floors
"""


async def plan(conn: Connection, server: UUID, advances: Sequence[Advance], fires: Sequence[Fire]) -> set[int]:
    """Write what was decided; returns the schedules that advanced.

    The others changed, or belong to another server now, or another planner was faster.
    """
    rows = await conn.fetch(_PLAN, *_parameters(server, advances, fires))
    return {id for id, _ in rows}


def _parameters(server: UUID, advances: Sequence[Advance], fires: Sequence[Fire]) -> list[Any]:
    *cursors, epochs, skips = columns(Advance, advances)
    return [*cursors, *_fire_columns(fires), epochs, server, skips if any(skips) else []]


def _fire_columns(fires: Sequence[Fire]) -> list[list[Any]]:
    """A column in which all fires have what most have is sent empty: the driver's encoding costs more than the rest."""
    ids, plan_times, scopes, due, reasons, args = columns(Fire, fires)
    return [
        ids,
        plan_times,
        scopes if any(scopes) else [],
        due if due != plan_times else [],
        reasons if any(reasons) else [],
        args if any(text != NO_ARGUMENTS for text in args) else [],
    ]


_OVERDUE = """
    select name, next_plan_at, provider_app from mainspring.schedule
     where look_at < mainspring.now() - make_interval(secs => $1) and next_plan_at is not null
     order by look_at limit $2
"""


class Overdue(NamedTuple):
    """A schedule that no planner has read though it is due."""

    name: str
    since: datetime
    provider_app: str | None


async def overdue(conn: Connection, *, by: float, limit: int) -> list[Overdue]:
    return [Overdue(*row) for row in await conn.fetch(_OVERDUE, by, limit)]


_TAKE = """
    update mainspring.schedule set look_at = mainspring.now() + $4::interval + $5::interval
     where id = $1 and version = $2 and next_plan_at = $3 and enabled and look_at <= mainspring.now() + $4::interval
    returning id
"""


async def take(conn: Connection, due: DueSchedule, lease: timedelta, *, early: timedelta = timedelta(0)) -> bool:
    """Take a schedule from other planners for the time of `lease`, to ask its provider; False if one has taken it.

    `plan` and `trouble` end the lease. If the planner dies, the schedule is due again when the lease has expired.
    """
    return await conn.fetchval(_TAKE, due.id, due.number, due.cursor, early, lease) is not None


_TROUBLE = """
    update mainspring.schedule
       set problem = $4, look_at = mainspring.now() + $5::interval
     where id = $1 and version = $2 and next_plan_at = $3 and enabled
"""


async def trouble(conn: Connection, due: DueSchedule, problem: str, *, again_in: timedelta) -> None:
    """Record why a schedule cannot be planned now, and try again later. Its cursor stays."""
    await conn.execute(_TROUBLE, due.id, due.number, due.cursor, cut(problem), again_in)
