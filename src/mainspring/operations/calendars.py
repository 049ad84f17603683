"""Calendars of excluded days: list, show, set, delete.

Next: store/schedules/calendars.py
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainspring.errors import CalendarNotFound
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.excluded_days import check_excluded
from mainspring.model.words.names import check_name
from mainspring.store.access import audit
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import calendars, synchronise


class CalendarView(msgspec.Struct, frozen=True):
    name: str
    days: Sequence[str]
    schedules: list[str]  # that use it


async def listing(conn: Connection, actor: Actor) -> dict[str, list[str]]:
    """All calendars with their days."""
    return await calendars.listing(conn)


async def show(conn: Connection, actor: Actor, name: str) -> CalendarView:
    found = await calendars.listing(conn)
    if check_name(name, field="calendar") not in found:
        raise CalendarNotFound(
            f"no calendar named {name!r}; `mainspring schedule calendar list` shows what there is", field="calendar"
        )
    return CalendarView(name, found[name], await calendars.users(conn, name))


async def put(conn: Connection, actor: Actor, name: str, days: Sequence[str]) -> CalendarView:
    """Make or replace a calendar. The schedules that use it follow at once.

    Not one transaction: the store changes the schedules one by one, so that no planner waits for all of them. The
    audit's row is written in the transaction that changes the days.
    """
    check_name(name, field="calendar")
    checked = list(dict.fromkeys(check_excluded(day.lower(), field="day") for day in days))

    async def note(before: Sequence[str] | None) -> None:
        old = None if before is None else {"days": before}
        await audit.changed(conn, actor, "calendar.put", f"calendar:{name}", old, {"days": checked})

    await synchronise.put_calendars(conn, {name: checked}, note=note)
    return CalendarView(name, checked, await calendars.users(conn, name))


async def delete(conn: Connection, actor: Actor, name: str) -> None:
    """Conflict if a schedule uses it."""
    async with conn.transaction():
        days = await calendars.days(conn, check_name(name, field="calendar"), lock=True)
        await calendars.delete(conn, name)
        await audit.changed(conn, actor, "calendar.delete", f"calendar:{name}", {"days": days}, None)
