"""Calendars of excluded days: list, show, put, delete.

Next: store/schedules/calendars.py
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainspring.errors import CalendarNotFound, Conflict, NameTaken
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.excluded_days import check_days
from mainspring.model.words.names import check_path_name
from mainspring.operations import pages
from mainspring.operations.pages import Page
from mainspring.operations.parts import by_name, reach
from mainspring.operations.parts.by_name import check_version
from mainspring.store.access import audit
from mainspring.store.alerts import rules
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import calendars, synchronise
from mainspring.store.schedules.calendars import Calendar


class CalendarView(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    version: int
    days: list[str]
    schedules: list[str] | None  # that use it; None in lists
    app: str | None = None  # the application whose code defines it
    manifest: str | None = None  # the set of manifests that owns it


class CalendarChange(msgspec.Struct, frozen=True):
    calendar: CalendarView
    changed: bool
    created: bool


async def listing(
    conn: Connection, actor: Actor, *, cursor: str | None = None, limit: int = pages.LIMIT
) -> Page[CalendarView]:
    """Calendars by name; an actor that is narrowed to some jobs sees those that their schedules use."""
    used = await calendars.using_jobs(conn) if actor.jobs else {}
    found = await by_name.page(
        lambda after, count: calendars.listing(conn, after=after, limit=count),
        lambda calendar: calendar.name,
        lambda calendar: not actor.jobs or any(map(actor.reaches, used.get(calendar.name, ()))),
        filters={"list": "calendars"},
        cursor=cursor,
        limit=limit,
    )
    return Page([_view(calendar) for calendar in found.items], found.next)


async def show(conn: Connection, actor: Actor, name: str) -> CalendarView:
    """One calendar, with the schedules that use it."""
    found = await _with_users(conn, actor, await _find(conn, name))
    if actor.jobs and not found.schedules:
        raise _not_found(name)
    return found


async def put(
    conn: Connection,
    actor: Actor,
    name: str,
    days: Sequence[str],
    *,
    replace: bool = True,
    version: int | None = None,
) -> CalendarChange:
    """Make a calendar of exactly these days, or change it. The schedules that use it follow at once.

    With `version`, only the calendar that has this version is changed; without `replace`, none is. Not one
    transaction: the store changes the schedules one by one, so that no planner waits for all. The audit's row is
    written in the transaction that changes the days.
    """
    check_path_name(name, field="calendar")
    wanted = check_days(days)
    before: list[Calendar] = []

    async def check(present: Calendar | None) -> None:
        await check_change(conn, actor, name, present)
        if present is not None:
            before.append(present)
            check_version("calendar", name, present.version, version)
            if not replace:
                raise NameTaken(f"there is a calendar named {name!r}", field="name")
        elif version is not None:
            raise _not_found(name)
        old = None if present is None else {"days": present.days}
        await audit.changed(conn, actor, "calendar.put", f"calendar:{name}", old, {"days": wanted})

    await synchronise.put_calendar(conn, name, wanted, check=check)
    calendar = await _find(conn, name)
    changed = not before or before[0].days != wanted
    return CalendarChange(await _with_users(conn, actor, calendar), changed=changed, created=not before)


async def delete(conn: Connection, actor: Actor, name: str, *, version: int | None = None) -> None:
    """Remove a calendar. It is a conflict if a schedule uses it."""
    async with conn.transaction():
        calendar = await _find(conn, name, lock=True)
        if actor.jobs and not any(map(actor.reaches, (await calendars.users(conn, name)).values())):
            raise _not_found(name)
        await _check_users(conn, actor, name)
        check_version("calendar", name, calendar.version, version)
        if quiet := await rules.using_calendar(conn, name):
            raise Conflict(f"alert rule {quiet[0]!r} is quiet on its days; change that first", field="calendar")
        await calendars.delete(conn, name)
        await audit.changed(conn, actor, "calendar.delete", f"calendar:{name}", {"days": calendar.days}, None)


async def _find(conn: Connection, name: str, *, lock: bool = False) -> Calendar:
    found = await calendars.find(conn, check_path_name(name, field="calendar"), lock=lock)
    if found is None:
        raise _not_found(name)
    return found


async def check_change(conn: Connection, actor: Actor, name: str, present: Calendar | None) -> None:
    """Whether the actor may make this calendar, or give it other days."""
    if present is not None:
        await _check_users(conn, actor, name)


async def _check_users(conn: Connection, actor: Actor, name: str) -> None:
    """Its days decide when schedules run: an actor who changes them must have access to the jobs of those."""
    users = await calendars.users(conn, name)
    if actor.jobs and not users:
        reach.check_all(actor, f"calendar {name!r} may be meant for schedules")
    reach.check_each(actor, users.values(), f"calendar {name!r} is used by schedules")


def _not_found(name: str) -> CalendarNotFound:
    return CalendarNotFound(
        f"no calendar named {name!r}; `mainspring schedule calendar list` shows what there is", field="calendar"
    )


async def _with_users(conn: Connection, actor: Actor, calendar: Calendar) -> CalendarView:
    users = await calendars.users(conn, calendar.name)
    return _view(calendar, [schedule for schedule, job in users.items() if actor.reaches(job)])


def _view(calendar: Calendar, schedules: list[str] | None = None) -> CalendarView:
    owners = (calendar.app, calendar.manifest)
    return CalendarView(calendar.name, "default", calendar.version, list(calendar.days), schedules, *owners)
