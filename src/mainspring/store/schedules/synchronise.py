"""Synchronise: write the schedules that an application's code defines into the database when it starts.

It deletes nothing. It does not take over a schedule that was created by hand, and edits by hand stay until the code
itself changes. Many replicas may run it at once.
Next: store/schedules/schedules.py
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from mainspring.errors import Conflict, ScheduleNotFound
from mainspring.model.schedules.define_schedule import check_fires
from mainspring.model.schedules.schedules import Schedule
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import calendars, schedules
from mainspring.store.schedules.calendars import Calendar
from mainspring.store.schedules.schedules import Stored

log = logging.getLogger("mainspring")

Check = Callable[[Calendar | None], Awaitable[None]]

_DEFINED = "update mainspring.schedule set code = $2, app_version = $3 where id = $1"
# One instant for all of them: a schedule that the application no longer defines stays behind it.
_SEEN = """
    with synced as (
        insert into mainspring.app as a (name, synced_at) values ($1, mainspring.now())
        on conflict (name) do update set synced_at = excluded.synced_at
        returning a.synced_at
    )
    update mainspring.schedule s set synced_at = synced.synced_at
      from synced
     where s.namespace = 'default' and s.app = $1 and s.name = any($2::text[])
"""


async def synchronise(conn: Connection, app: str, version: int, given: Sequence[Schedule]) -> list[str]:
    """Create or change the schedules of an application; returns the names of those that changed.

    A deployment with a lower version does not overwrite what a higher one has defined.
    """
    names = [schedule.name for schedule in given]
    known = {stored.schedule.name: stored for stored in await schedules.listing(conn, names=names)}
    changed = []
    for schedule in in_order(given):
        stored = known.get(schedule.name)
        if stored is not None and stored.app == app and stored.code == schedule and stored.app_version >= version:
            continue
        if await _apply(conn, app, version, schedule):
            changed.append(schedule.name)
    await conn.execute(_SEEN, app, names)
    return changed


def in_order(given: Sequence[Schedule]) -> list[Schedule]:
    """By name, each behind the one that it waits for: one order of locks for concurrent starts."""
    by_name = {schedule.name: schedule for schedule in given}
    ordered: dict[str, Schedule] = {}
    for name in sorted(by_name):
        chain: list[str] = []
        at: str | None = name
        while at in by_name and at not in ordered and at not in chain:  # a circle is refused when it is written
            chain.append(at)
            at = by_name[at].policies.after
        ordered.update((one, by_name[one]) for one in reversed(chain))
    return list(ordered.values())


async def _apply(conn: Connection, app: str, version: int, schedule: Schedule) -> bool:
    if await schedules.create(conn, schedule, enabled=True, app=app, app_version=version):
        return True
    async with conn.transaction():
        stored = await schedules.find(conn, schedule.name, lock=True)
        _check_owner(stored, app)
        if stored.app_version > version:
            return False
        await conn.execute(_DEFINED, stored.id, msgspec.json.encode(schedule).decode(), version)
        if stored.code == schedule:
            return False
        if stored.is_edited:
            log.warning("schedule %s: the code changed; what was edited by hand is replaced", schedule.name)
        await schedules.change_held(conn, stored, schedule)
    return True


def _check_owner(stored: Stored, app: str) -> None:
    if stored.app == app:
        return
    name = stored.schedule.name
    owner = "was made by hand" if stored.app is None else f"belongs to the application {stored.app!r}"
    if stored.manifest is not None:
        owner = f"belongs to the set {stored.manifest!r} of manifests"
    raise Conflict(
        f"a schedule named {name!r} {owner}; give the one in the code another name, or all of its application's a "
        f'prefix, App("{app}", prefix="{app}."), or delete that one with `mainspring schedule delete {name}`',
        field="schedule",
    )


async def put_calendars(conn: Connection, given: Mapping[str, Sequence[str]]) -> None:
    """Create calendars or change their days, each with the schedules that use it."""
    for name, days in sorted(given.items()):
        await put_calendar(conn, name, days)


async def put_calendar(conn: Connection, name: str, days: Sequence[str], *, check: Check | None = None) -> None:
    """Create a calendar or change its days, then update the schedules that use it, one by one.

    It locks one schedule at a time. If it is interrupted, the next call with the same days does the rest. `check` sees
    what there is, in the transaction that changes the days, and may raise.
    """
    async with conn.transaction():
        if check is not None:
            await check(await calendars.find(conn, name, lock=True))
        is_new = await calendars.put(conn, name, days)
        users = list(await calendars.users(conn, name)) if is_new else []
        for stored in await schedules.listing(conn, names=users):
            if stored.app is None:  # refuse before any schedule changes
                used = await calendars.days_of(conn, [stored.schedule])
                check_fires(calendars.with_days(stored.schedule, used), stored.now)
    for user in users:
        with suppress(ScheduleNotFound):  # deleted meanwhile
            await schedules.change(conn, user, lambda schedule: schedule)
    if is_new:
        await calendars.spread(conn, name, days)
