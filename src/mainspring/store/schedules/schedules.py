"""Schedules: create, change, pause, delete, run now.

Every change locks the schedule's row, moves it to a new version that is in force from now on, and revokes the tasks of
the old version that have not started. Plan times that have passed are still decided by the old version.
Next: store/schedules/revoke.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import asyncpg
import msgspec
from msgspec.structs import replace

from mainspring.errors import Conflict, InvalidTransition, JobNotFound, ScheduleNotFound, ValidationError
from mainspring.model.daemons.daemons import check_can_stay_up
from mainspring.model.schedules.define_schedule import check_fires
from mainspring.model.schedules.planning import INSTANT, LOOK_BEFORE, arguments
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.skips import Skip
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.payload import UNREADABLE
from mainspring.store.followed import after, runs
from mainspring.store.followed.follow import follow
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import is_far, readable
from mainspring.store.schedules import calendars, revoke
from mainspring.store.schedules.plans import policies
from mainspring.store.schedules.revoke import Recalled

log = logging.getLogger("mainspring")


class Stored(NamedTuple):
    """A schedule with its columns in the database."""

    id: int
    schedule: Schedule
    enabled: bool
    version: int
    since: datetime
    next_plan_at: datetime | None
    runs: int
    problem: str | None
    app: str | None
    app_version: int
    code: Schedule | None  # as the application's code defines it
    is_orphan: bool  # its application no longer defines it
    created_at: datetime
    updated_at: datetime
    now: datetime
    skips: tuple[Skip, ...] = ()  # those that are not over
    look_at: datetime | None = None  # when a planner looks at it

    @property
    def is_edited(self) -> bool:
        """Whether it differs from the code: edited by hand."""
        return self.code is not None and _as_written(self.schedule) != self.code

    @property
    def defined(self) -> dict[str, Any]:
        """What a person changes of it, for the audit."""
        return {**msgspec.to_builtins(_as_written(self.schedule)), "enabled": self.enabled}


STORED = """
    select s.id, s.name, j.name as job, s.kind, s.expression, s.timezone, s.policies, s.enabled, s.version, s.since,
           s.next_plan_at, s.look_at, s.runs, s.problem, s.app, s.app_version, s.code, s.created_at, s.updated_at,
           coalesce(s.synced_at < app.synced_at, false) as is_orphan, mainspring.now() as now,
           case when s.skips_until > mainspring.now() then (
               select jsonb_agg(jsonb_build_array(k.start, k.stop, k.actor, k.note, k.made_at) order by k.start, k.id)
                 from mainspring.schedule_skip k where k.schedule_id = s.id and k.stop > mainspring.now()
           ) end as skips
      from mainspring.schedule s
      join mainspring.job j on j.id = s.job_id
      left join mainspring.app on app.name = s.app
     where s.namespace = 'default'
"""


_HOLD = "select from mainspring.schedule where namespace = 'default' and name = $1 for update"


def _stored(row: Any) -> Stored:
    kind, expression, zone = row["kind"], row["expression"], row["timezone"]
    schedule = Schedule(row["name"], row["job"], kind, expression, zone, policies(row["policies"]))
    if far := [name for name, value in row.items() if is_far(value)]:
        raise ValidationError(f"{far[0]}: no time that a schedule can have", field=far[0])
    try:
        code = None if row["code"] is None else msgspec.json.decode(row["code"], type=Schedule)
    except UNREADABLE as error:
        raise ValidationError(f"code: not known to this version: {str(error)[:200]}", field="code") from None
    return Stored(
        id=row["id"],
        schedule=schedule,
        code=code,
        skips=() if row["skips"] is None else msgspec.json.decode(row["skips"], type=tuple[Skip, ...]),
        **{name: row[name] for name in Stored._fields if name not in ("id", "schedule", "code", "skips")},
    )


def _as_written(schedule: Schedule) -> Schedule:
    """Without what it copies from calendars and from its job."""
    return replace(schedule, policies=replace(schedule.policies, excluded=(), fills=()))


def not_found(name: str) -> ScheduleNotFound:
    """There is no such schedule, for this caller."""
    return ScheduleNotFound(
        f"no schedule named {name!r}; `mainspring schedule list` shows what there is", field="schedule"
    )


async def find(conn: Connection, name: str, *, lock: bool = False) -> Stored:
    if lock:  # before the query: rows that it joins may change while it waits for the lock
        await conn.execute(_HOLD, name)
    rows = await readable(conn, f"{STORED} and s.name = $1", name)
    if not rows:
        raise not_found(name)
    try:
        return _stored(rows[0])
    except ValidationError as error:
        raise ValidationError(f"schedule {name!r} cannot be read: {error.message}", field=error.field) from None


async def listing(conn: Connection, *, job: str | None = None, names: Sequence[str] | None = None) -> list[Stored]:
    """All schedules by name, or those of a job, or those named. One that cannot be read is left out, with a warning."""
    rows = await readable(
        conn,
        f"{STORED} and ($1::text is null or j.name = $1) and ($2::text[] is null or s.name = any($2)) order by s.name",
        job,
        names,
    )
    return all_stored(rows)


async def by_id(conn: Connection, ids: Sequence[int]) -> dict[int, Stored]:
    """Those of these schedules that exist and can be read."""
    found = {}
    for row in await readable(conn, f"{STORED} and s.id = any($1::integer[])", ids):
        with suppress(ValidationError):  # a planner tells of it
            found[row["id"]] = _stored(row)
    return found


def all_stored(rows: Sequence[Any]) -> list[Stored]:
    found = []
    for row in rows:
        try:
            found.append(_stored(row))
        except ValidationError as error:
            log.warning("schedule %s cannot be read: %s", row["name"], error.message)
    return found


_CREATE = """
    insert into mainspring.schedule
        (name, job_id, kind, expression, timezone, policies, enabled, segment, next_plan_at, look_at, since, created_at,
         provider_app, app, app_version, code, synced_at)
    select $1, j.id, $3, $4, $5, $6, $7, $8, $9, $10, $11::timestamptz, $11, $12, $13::text, $14, $15,
           case when $13::text is not null then $11 end
      from mainspring.job j where j.namespace = 'default' and j.name = $2
    on conflict (namespace, name) do nothing
    returning id, pg_notify('mainspring', 'schedule')
"""


async def create(
    conn: Connection, schedule: Schedule, *, enabled: bool, app: str | None = None, app_version: int = 0
) -> bool:
    """Create a schedule; with `app` it belongs to that application's code. False if the name is taken.

    Its first plan time is after now, or with `first="latest"` the last one before: earlier ones are never replayed.
    """
    async with conn.transaction():  # keeps its calendars locked until it exists
        resolved = await _resolved(conn, schedule)
        now: datetime = await conn.fetchval("select mainspring.now()")
        if app is None:
            check_fires(resolved, now)
        first = timing(resolved).after(now) if enabled else None
        if schedule.policies.after is not None:
            await after.check(conn, schedule.name, schedule.policies.after)
        created = await conn.fetchrow(
            _CREATE,
            schedule.name,
            schedule.job,
            *_columns(resolved),
            enabled,
            schedule.segment,
            first,
            _look_at(resolved, first, enabled=enabled),
            now,
            app if schedule.policies.provider is not None else None,
            app,
            app_version,
            None if app is None else msgspec.json.encode(schedule).decode(),
        )
        if created is not None:
            if enabled and resolved.policies.first == "latest":
                await runs.make_latest(conn, created["id"], resolved, now)
            await follow(conn, created["id"], schedule.policies, now)
    return created is not None


def _columns(schedule: Schedule) -> tuple[str, str, str, str]:
    return schedule.kind, schedule.expression, schedule.timezone, msgspec.json.encode(schedule.policies).decode()


def _look_at(schedule: Schedule, next_plan_at: datetime | None, *, enabled: bool) -> datetime | None:
    if next_plan_at is None or not enabled:
        return None
    return next_plan_at + timedelta(seconds=schedule.policies.delay) - LOOK_BEFORE


_TAKES = """
    select definition->'run'->'takes' as takes, definition->'run'->>'type' as kind,
           definition @> '{"placement": {"broadcast": true}}' as broadcast, definition ? 'gate' as limited,
           definition->'run' ? 'chunk' as chunked
      from mainspring.job where namespace = 'default' and name = $1
"""


async def _resolved(conn: Connection, schedule: Schedule) -> Schedule:
    """The schedule with the days of its calendars and the arguments that its job takes."""
    row = await conn.fetchrow(_TAKES, schedule.job)
    if row is None:
        raise JobNotFound(f"no job named {schedule.job!r}; make it first with `mainspring job create`", field="job")
    if schedule.kind == "daemon":
        limited, chunked = row["limited"], row["chunked"]
        check_can_stay_up(schedule.job, row["kind"], broadcast=row["broadcast"], limited=limited, chunked=chunked)
    fills = () if row["takes"] is None else msgspec.json.decode(row["takes"], type=tuple[str, ...])
    if not schedule.policies.scopes and schedule.policies.provider is None:
        fills = tuple(name for name in fills if name != "scope")
    schedule = replace(schedule, policies=replace(schedule.policies, fills=fills))
    return await calendars.with_days(conn, schedule)


_CHANGE = """
    update mainspring.schedule
       set job_id = (select id from mainspring.job where namespace = 'default' and name = $2), kind = $3,
           expression = $4, timezone = $5, policies = $6, enabled = $7, next_plan_at = $8, look_at = $9,
           since = $10, updated_at = $10, version = version + 1, problem = null,
           provider_app = case when $11 then app end
     where id = $1
    returning pg_notify('mainspring', 'schedule')
"""


class Changed(NamedTuple):
    stored: Stored
    recalled: Recalled | None  # None: nothing changed


async def change(
    conn: Connection, name: str, edit: Callable[[Schedule], Schedule], *, enabled: bool | None = None
) -> Changed:
    """Change or enable or disable a schedule from now on; an unchanged one keeps its version."""
    async with conn.transaction():
        stored = await find(conn, name, lock=True)
        return await change_held(conn, stored, edit(stored.schedule), enabled=enabled)


async def change_held(conn: Connection, stored: Stored, schedule: Schedule, *, enabled: bool | None = None) -> Changed:
    """The same for a schedule whose row the caller has locked."""
    if _as_written(schedule) != _as_written(stored.schedule) or enabled is None:
        schedule = await _resolved(conn, schedule)
    enabled = stored.enabled if enabled is None else enabled
    if schedule == stored.schedule and enabled == stored.enabled:
        return Changed(stored, None)
    now = stored.now
    if schedule != stored.schedule and stored.app is None:
        check_fires(schedule, now)
    if schedule.policies.after not in (None, stored.schedule.policies.after):
        await after.check(conn, schedule.name, schedule.policies.after)
    cursor = stored.next_plan_at
    if cursor is None or cursor > now:  # else the old version still has plan times to decide
        cursor = timing(schedule).after(now) if enabled or cursor is not None else None
    await conn.execute(
        _CHANGE,
        stored.id,
        schedule.job,
        *_columns(schedule),
        enabled,
        cursor,
        min(now, look) if (look := _look_at(schedule, cursor, enabled=enabled)) is not None else None,
        now,
        schedule.policies.provider is not None,
    )
    is_first = enabled and not stored.enabled and stored.next_plan_at is None and not stored.runs
    if is_first and schedule.policies.first == "latest" and schedule.kind != "daemon":
        await runs.make_latest(conn, stored.id, schedule, now)
    await follow(conn, stored.id, schedule.policies, now, before=stored.schedule.policies)
    paused = stored.enabled and not enabled
    recalled = await revoke.recall(conn, stored.id, at=now, after=None if paused else now)
    return Changed(await find(conn, schedule.name), recalled)


async def live_tasks(conn: Connection, name: str) -> list[int]:
    """Tasks of a schedule that have not ended."""
    rows = await conn.fetch("select id from mainspring.task where schedule_id = $1", (await find(conn, name)).id)
    return [row["id"] for row in rows]


async def delete(conn: Connection, name: str) -> Recalled:
    """Delete a schedule and revoke its tasks that have not started. Its ledger stays until retention drops it."""
    async with conn.transaction():
        stored = await find(conn, name, lock=True)
        await after.check_unused(conn, name)
        await conn.execute("update mainspring.schedule set since = $2 where id = $1", stored.id, stored.now)
        recalled = await revoke.recall(conn, stored.id, at=stored.now)
        await conn.execute("delete from mainspring.schedule where id = $1", stored.id)
        return recalled


async def run_now(conn: Connection, name: str, scopes: Sequence[str] = ()) -> list[int]:
    """Run it once now, all its scopes or those given, apart from its plan; returns the tasks."""
    stored = await find(conn, name)
    policies = stored.schedule.policies
    if stored.schedule.kind == "daemon":
        raise InvalidTransition(f"schedule {name!r} keeps replicas running; there is no single run", field="schedule")
    if not scopes and policies.provider is not None:
        raise Conflict(
            f"the scopes of {name!r} are told by its application; name those to run with --scope", field="scopes"
        )
    wanted = chosen_scopes(stored.schedule, scopes)
    plan_time, times = stored.now, timing(stored.schedule)
    while True:
        # Only planners decide plan times; and another manual run may have taken this instant.
        if times.after(plan_time - INSTANT) != plan_time:
            args = [arguments(policies, stored.schedule.timezone, plan_time, scope) for scope in wanted]
            try:
                async with conn.transaction():  # a savepoint, where the caller has a transaction
                    return await runs.make(conn, stored.id, wanted, plan_time, args, stored.now, origin="manual")
            except asyncpg.UniqueViolationError:
                pass
        plan_time += INSTANT


def chosen_scopes(schedule: Schedule, given: Sequence[str]) -> tuple[str, ...]:
    """The scopes that a person names, each once, or all; Conflict if the schedule does not have one of them."""
    known = schedule.policies.scopes
    for scope in given if schedule.policies.provider is None else ():
        if scope not in known:
            there = ", ".join(known[:10]) or "none"
            raise Conflict(f"schedule {schedule.name!r} has no scope {scope!r}; it has: {there}", field="scopes")
    return tuple(dict.fromkeys(given)) or known or ("",)
