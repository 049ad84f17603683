"""Schedules: create, change, pause, delete; one, or many in a few statements.

Every change locks the schedule's row, moves it to a new version that is in force from now on, and revokes the tasks of
the old version that have not started. Plan times that have passed are still decided by the old version.
Next: store/schedules/revoke.py
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from mainspring.errors import ScheduleNotFound, ValidationError
from mainspring.model.schedules.define_schedule import check_fires
from mainspring.model.schedules.planning import LOOK_BEFORE
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.skips import Skip
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.payload import UNREADABLE
from mainspring.store.followed import after, runs
from mainspring.store.followed.follow import Followed, follow
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import is_far, readable
from mainspring.store.schedules import revoke
from mainspring.store.schedules.plans import policies
from mainspring.store.schedules.resolve import resolve
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
    manifest: str | None = None  # the set of manifests that owns it

    @property
    def is_edited(self) -> bool:
        """Whether it differs from the code: edited by hand."""
        return self.code is not None and as_written(self.schedule) != self.code

    @property
    def defined(self) -> dict[str, Any]:
        """What a person changes of it, for the audit."""
        return defined(self.schedule, enabled=self.enabled)


STORED = """
    select s.id, s.name, j.name as job, s.kind, s.expression, s.timezone, s.policies, s.enabled, s.version, s.since,
           s.next_plan_at, s.look_at, s.runs, s.problem, s.app, s.app_version, s.code, s.manifest, s.created_at,
           s.updated_at,
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


_HOLD = "select from mainspring.schedule where namespace = 'default' and name = any($1::text[]) order by id for update"


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


def defined(schedule: Schedule, *, enabled: bool) -> dict[str, Any]:
    """What a person says of a schedule, for the audit."""
    return {**msgspec.to_builtins(as_written(schedule)), "enabled": enabled}


def as_written(schedule: Schedule) -> Schedule:
    """Without what it copies from calendars and from its job."""
    return replace(schedule, policies=replace(schedule.policies, excluded=(), fills=()))


def not_found(name: str) -> ScheduleNotFound:
    """There is no such schedule, for this caller."""
    return ScheduleNotFound(
        f"no schedule named {name!r}; `mainspring schedule list` shows what there is", field="schedule"
    )


async def hold(conn: Connection, names: Sequence[str]) -> None:
    """Lock those of these schedules that exist until the caller's transaction ends, in the order of planners."""
    await conn.execute(_HOLD, names)


async def find(conn: Connection, name: str, *, lock: bool = False) -> Stored:
    if lock:  # before the query: rows that it joins may change while it waits for the lock
        await hold(conn, [name])
    rows = await readable(conn, f"{STORED} and s.name = $1", name)
    if not rows:
        raise not_found(name)
    try:
        return _stored(rows[0])
    except ValidationError as error:
        raise ValidationError(f"schedule {name!r} cannot be read: {error.message}", field=error.field) from None


async def listing(conn: Connection, *, job: str | None = None, names: Sequence[str] | None = None) -> list[Stored]:
    """All schedules by name, or those of a job, or those named. One that cannot be read is left out, with a warning."""
    chosen, given = "", list[Any]()
    for column, value in (("j.name = ${}", job), ("s.name = any(${}::text[])", names)):
        if value is not None:  # no `or … is null`: the plan would read all of them
            given.append(value)
            chosen += f" and {column.format(len(given))}"
    return all_stored(await readable(conn, f"{STORED}{chosen} order by s.name", *given))


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
    with made as (
        insert into mainspring.schedule
            (name, job_id, kind, expression, timezone, policies, enabled, segment, next_plan_at, look_at, since,
             created_at, provider_app, app, app_version, code, synced_at)
        select g.name, j.id, g.kind, g.expression, g.timezone, g.policies::jsonb, g.enabled, g.segment, g.first,
               g.look_at, $11::timestamptz, $11, case when g.provided then $13::text end, $13::text, $14,
               g.code::jsonb, case when $13::text is not null then $11 end
          from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::boolean[],
                      $8::smallint[], $9::timestamptz[], $10::timestamptz[], $12::boolean[], $15::text[])
            as g(name, job, kind, expression, timezone, policies, enabled, segment, first, look_at, provided, code)
          join mainspring.job j on j.namespace = 'default' and j.name = g.job
         order by g.name
        on conflict (namespace, name) do nothing
        returning id, name
    )
    select id, name, (select pg_notify('mainspring', 'schedule')::text from (select from made limit 1) any_made)
      from made
"""


class New(NamedTuple):
    schedule: Schedule
    enabled: bool


Rest = Callable[[], Awaitable[None]]  # awaited between two schedules: a cron expression takes up to a millisecond


async def _no_rest() -> None: ...


async def create(
    conn: Connection, schedule: Schedule, *, enabled: bool, app: str | None = None, app_version: int = 0
) -> bool:
    """Create a schedule; with `app` it belongs to that application's code. False if the name is taken."""
    return bool(await create_all(conn, [New(schedule, enabled)], app=app, app_version=app_version))


async def create_all(
    conn: Connection, given: Sequence[New], *, app: str | None = None, app_version: int = 0, rest: Rest = _no_rest
) -> list[str]:
    """Create schedules, some of which may wait for others of them; returns the names that were free.

    Their first plan time is after now, or with `first="latest"` the last one before: earlier ones are never replayed.
    """
    async with conn.transaction():  # keeps their calendars locked until they exist
        whole = {one.name: one for one in await resolve(conn, [schedule for schedule, _ in given])}
        now: datetime = await conn.fetchval("select mainspring.now()")
        rows = []
        for schedule, enabled in given:
            resolved = whole[schedule.name]
            first = timing(resolved, keep=False, is_checked=True).after(now)
            if app is None and first is None:
                check_fires(resolved, now)
            first = first if enabled else None
            code = None if app is None else msgspec.json.encode(schedule).decode()
            look = _look_at(resolved, first, enabled=enabled)
            provided = schedule.policies.provider is not None
            rows.append((*_columns(resolved), enabled, schedule.segment, first, look, provided, code))
            await rest()
        *columns, are_provided, codes = map(list, zip(*rows, strict=True))
        made = {
            row["name"]: row["id"]
            for row in await conn.fetch(_CREATE, *columns, now, are_provided, app, app_version, codes)
        }
        for schedule, enabled in given:
            if schedule.name not in made:
                continue
            if schedule.policies.after is not None:  # now that all of them exist
                await after.check(conn, schedule.name, schedule.policies.after)
            if enabled and schedule.policies.first == "latest":
                await runs.make_latest(conn, made[schedule.name], whole[schedule.name], now)
        await follow(conn, [Followed(made[name], whole[name].policies) for name in made], now)
    return list(made)


def _columns(schedule: Schedule) -> tuple[str, str, str, str, str, str]:
    policies = msgspec.json.encode(schedule.policies).decode()
    return schedule.name, schedule.job, schedule.kind, schedule.expression, schedule.timezone, policies


def _look_at(schedule: Schedule, next_plan_at: datetime | None, *, enabled: bool) -> datetime | None:
    if next_plan_at is None or not enabled:
        return None
    return next_plan_at + timedelta(seconds=schedule.policies.delay) - LOOK_BEFORE


_CHANGE = """
    with changed as (
        update mainspring.schedule s
           set job_id = (select id from mainspring.job where namespace = 'default' and name = g.job), kind = g.kind,
               expression = g.expression, timezone = g.timezone, policies = g.policies::jsonb, enabled = g.enabled,
               next_plan_at = g.cursor, look_at = g.look_at, since = g.at, updated_at = g.at, version = s.version + 1,
               problem = null, provider_app = case when g.provided then s.app end
          from unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::boolean[],
                      $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::boolean[])
            as g(id, job, kind, expression, timezone, policies, enabled, cursor, look_at, at, provided)
         where s.id = g.id
        returning s.id
    )
    select pg_notify('mainspring', 'schedule') from (select from changed limit 1) any_changed
"""


class Edited(NamedTuple):
    """A schedule whose row the caller has locked, and what becomes of it."""

    stored: Stored
    schedule: Schedule
    enabled: bool | None = None  # None: as it is

    @property
    def is_fresh(self) -> bool:
        """Whether it is resolved again: it differs, or its calendars may."""
        return self.enabled is None or as_written(self.schedule) != as_written(self.stored.schedule)


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
    return (await change_all(conn, [Edited(stored, schedule, enabled)]))[0]


async def change_all(conn: Connection, given: Sequence[Edited], *, rest: Rest = _no_rest) -> list[Changed]:
    """The same for several, in the caller's transaction."""
    fresh = [one.schedule for one in given if one.is_fresh]
    whole = {one.name: one for one in await resolve(conn, fresh)} if fresh else {}
    moved: list[Edited] = []
    rows = []
    for stored, wanted, enabled in given:
        schedule = whole.get(wanted.name, wanted)
        enabled = stored.enabled if enabled is None else enabled
        if schedule == stored.schedule and enabled == stored.enabled:
            continue
        moved.append(Edited(stored, schedule, enabled))
        rows.append(_changed_row(stored, schedule, enabled))
        await rest()
    if not moved:
        return [Changed(one.stored, None) for one in given]
    await conn.execute(_CHANGE, *map(list, zip(*rows, strict=True)))
    for one in moved:
        await _changed(conn, one)
    steps = [Followed(one.stored.id, one.schedule.policies, one.stored.schedule.policies) for one in moved]
    await follow(conn, steps, moved[0].stored.now)
    recalled = await _recall(conn, moved)
    now = {stored.id: stored for stored in await listing(conn, names=[one.schedule.name for one in moved])}
    return [Changed(now.get(one.stored.id, one.stored), recalled.get(one.stored.id)) for one in given]


def _changed_row(stored: Stored, schedule: Schedule, enabled: bool) -> tuple[Any, ...]:
    now, cursor = stored.now, stored.next_plan_at
    must_fire = schedule != stored.schedule and stored.app is None
    moves = cursor is None or cursor > now  # else the old version still has plan times to decide
    if must_fire or (moves and (enabled or cursor is not None)):
        following = timing(schedule, keep=False, is_checked=True).after(now)
        if must_fire and following is None:
            check_fires(schedule, now)
        if moves:
            cursor = following if enabled or cursor is not None else None
    look = _look_at(schedule, cursor, enabled=enabled)
    look = None if look is None else min(now, look)
    provided = schedule.policies.provider is not None
    return stored.id, *_columns(schedule)[1:], enabled, cursor, look, now, provided


async def _changed(conn: Connection, edited: Edited) -> None:
    """What follows for some schedules alone, once all are changed."""
    stored, schedule, enabled = edited
    if schedule.policies.after not in (None, stored.schedule.policies.after):
        await after.check(conn, schedule.name, schedule.policies.after)
    is_first = enabled and not stored.enabled and stored.next_plan_at is None and not stored.runs
    if is_first and schedule.policies.first == "latest" and schedule.kind != "daemon":
        await runs.make_latest(conn, stored.id, schedule, stored.now)


async def _recall(conn: Connection, moved: Sequence[Edited]) -> dict[int, Recalled]:
    found = {}
    busy = await revoke.with_tasks(conn, [one.stored.id for one in moved])
    for stored, _, enabled in moved:
        paused = stored.enabled and not enabled
        found[stored.id] = revoke.NOTHING
        if stored.id in busy:
            after = None if paused else stored.now
            found[stored.id] = await revoke.recall(conn, stored.id, at=stored.now, after=after)
    return found


async def live_tasks(conn: Connection, name: str) -> list[int]:
    """Tasks of a schedule that have not ended."""
    rows = await conn.fetch("select id from mainspring.task where schedule_id = $1", (await find(conn, name)).id)
    return [row["id"] for row in rows]


async def delete(conn: Connection, name: str) -> Recalled:
    """Delete a schedule and revoke its tasks that have not started. Its ledger stays until retention drops it."""
    async with conn.transaction():
        return (await delete_all(conn, [await find(conn, name, lock=True)]))[0]


async def delete_all(conn: Connection, given: Sequence[Stored]) -> list[Recalled]:
    """The same for several whose rows the caller has locked, in its transaction."""
    ids = [stored.id for stored in given]
    await after.check_unused(conn, [stored.schedule.name for stored in given])
    await conn.execute(_SINCE, ids, [stored.now for stored in given])
    busy = await revoke.with_tasks(conn, ids)
    recalled = [
        await revoke.recall(conn, stored.id, at=stored.now) if stored.id in busy else revoke.NOTHING for stored in given
    ]
    await conn.execute("delete from mainspring.schedule where id = any($1::integer[])", ids)
    return recalled


_SINCE = """
    update mainspring.schedule s set since = g.at
      from unnest($1::integer[], $2::timestamptz[]) as g(id, at) where s.id = g.id
"""
