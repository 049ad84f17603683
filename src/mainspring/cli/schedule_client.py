"""What the commands about schedules ask for, and its implementation straight on the database.

Uses   store.schedules, store.ledger, store.explain, store.missing, store.backfill, store.calendars
Next:  cli/schedules/shapes.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Protocol

from mainspring.cli.schedules.shapes import LastFire, ScheduleView, Shown, coming, last_ended, last_fire, view
from mainspring.errors import Conflict, NotFound, ValidationError
from mainspring.model.schedules.edit_schedule import Edit, edited
from mainspring.model.schedules.excluded_days import check_excluded
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.story import Story
from mainspring.model.words.names import check_name
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import backfill, calendars, explain, fires, missed, schedules, synchronise
from mainspring.store.schedules.backfill import Filled, FireKey
from mainspring.store.schedules.missed import Checked
from mainspring.store.schedules.revoke import Recalled
from mainspring.store.schedules.schedules import Stored
from mainspring.store.tasks import jobs, tasks
from mainspring.store.tasks.tasks import Ended

FIRES_SHOWN = 3


class Schedules(Protocol):
    """What the commands need to know and do about schedules."""

    async def create(self, schedule: Schedule, *, enabled: bool) -> ScheduleView: ...
    async def listing(self, job: str | None) -> list[ScheduleView]: ...
    async def show(self, name: str) -> Shown: ...
    async def edit(self, name: str, edit: Edit) -> tuple[ScheduleView, Recalled | None]: ...
    async def enable(self, name: str, enabled: bool) -> tuple[ScheduleView, Recalled | None]: ...
    async def delete(self, name: str) -> tuple[ScheduleView, Recalled]: ...
    async def run_now(self, name: str, scopes: Sequence[str]) -> list[int]: ...
    async def find(self, name: str) -> Stored: ...
    async def explain(self, name: str, at: datetime | None) -> tuple[Stored, list[Story]]: ...
    async def check(self, name: str | None, since: timedelta) -> list[Checked]: ...
    async def still_open(self, stored: Stored, slots: Sequence[FireKey]) -> list[FireKey]: ...
    async def fill(self, stored: Stored, slots: Sequence[FireKey], max_parallel: int) -> Filled: ...
    async def ended(self, tasks: Sequence[int]) -> dict[int, Ended]: ...
    async def calendars(self) -> dict[str, list[str]]: ...
    async def calendar(self, name: str) -> tuple[list[str], list[str]]:
        """Its days, and the schedules that use it."""

    async def put_calendar(self, name: str, days: Sequence[str]) -> list[str]: ...
    async def delete_calendar(self, name: str) -> None: ...


class DatabaseSchedules:
    """On the database itself; the ledger goes back for as long as `keep`."""

    def __init__(self, conn: Callable[[], AbstractAsyncContextManager[Connection]], keep: timedelta) -> None:
        self._conn = conn
        self.keep = keep

    async def create(self, schedule: Schedule, *, enabled: bool) -> ScheduleView:
        name = schedule.name
        async with self._conn() as conn:
            if not await schedules.create(conn, schedule, enabled=enabled):
                raise Conflict(
                    f"there is a schedule named {name!r}; change it with `mainspring schedule edit {name}`",
                    field="name",
                )
            return view(await schedules.find(conn, name))

    async def listing(self, job: str | None) -> list[ScheduleView]:
        if job is not None:
            check_name(job, field="job")
        async with self._conn() as conn:
            if job is not None:
                await jobs.find(conn, job)  # a misspelt name is an error, not an empty list
            found = await schedules.listing(conn, job=job)
            runs = await _last_runs(conn, found)
        return [view(stored, last_ended(runs[stored.id])) for stored in found]

    async def show(self, name: str) -> Shown:
        _checked(name)
        async with self._conn() as conn:
            stored = await schedules.find(conn, name)
            last = (await _last_runs(conn, [stored]))[stored.id]
        found = view(stored, last_ended(last))
        return Shown(found, [] if found.next is None else coming(stored, FIRES_SHOWN), last)

    async def edit(self, name: str, edit: Edit) -> tuple[ScheduleView, Recalled | None]:
        _checked(name)
        async with self._conn() as conn:
            changed = await schedules.change(conn, name, lambda schedule: edited(schedule, edit))
        return view(changed.stored), changed.recalled

    async def enable(self, name: str, enabled: bool) -> tuple[ScheduleView, Recalled | None]:
        _checked(name)
        async with self._conn() as conn:
            changed = await schedules.change(conn, name, lambda schedule: schedule, enabled=enabled)
        return view(changed.stored), changed.recalled

    async def delete(self, name: str) -> tuple[ScheduleView, Recalled]:
        _checked(name)
        async with self._conn() as conn:
            stored = await schedules.find(conn, name)
            return view(stored), await schedules.delete(conn, name)

    async def run_now(self, name: str, scopes: Sequence[str]) -> list[int]:
        for scope in scopes:
            check_name(scope, field="scope")
        _checked(name)
        async with self._conn() as conn:
            return await schedules.run_now(conn, name, tuple(dict.fromkeys(scopes)))

    async def find(self, name: str) -> Stored:
        _checked(name)
        async with self._conn() as conn:
            return await schedules.find(conn, name)

    async def explain(self, name: str, at: datetime | None) -> tuple[Stored, list[Story]]:
        _checked(name)
        async with self._conn() as conn:
            stored = await schedules.find(conn, name)
            return stored, await explain.explain(conn, stored, at)

    async def check(self, name: str | None, since: timedelta) -> list[Checked]:
        if name is not None:
            _checked(name)
        async with self._conn() as conn:
            found = await schedules.listing(conn) if name is None else [await schedules.find(conn, name)]
            back = min(since, self.keep)  # what retention dropped cannot be told from what is missing
            return [await _check(conn, stored, back) for stored in found]

    async def still_open(self, stored: Stored, slots: Sequence[FireKey]) -> list[FireKey]:
        async with self._conn() as conn:
            return await backfill.still_open(conn, stored, slots)

    async def fill(self, stored: Stored, slots: Sequence[FireKey], max_parallel: int) -> Filled:
        async with self._conn() as conn:
            return await backfill.fill(conn, stored, slots, max_parallel)

    async def ended(self, given: Sequence[int]) -> dict[int, Ended]:
        async with self._conn() as conn:
            return await tasks.ended(conn, given)

    async def calendars(self) -> dict[str, list[str]]:
        async with self._conn() as conn:
            return await calendars.listing(conn)

    async def calendar(self, name: str) -> tuple[list[str], list[str]]:
        check_name(name, field="calendar")
        async with self._conn() as conn:
            found = await calendars.listing(conn)
            if name not in found:
                raise NotFound(
                    f"no calendar named {name!r}; `mainspring schedule calendar list` shows what there is",
                    field="calendar",
                )
            return found[name], await calendars.users(conn, name)

    async def put_calendar(self, name: str, days: Sequence[str]) -> list[str]:
        check_name(name, field="calendar")
        checked = list(dict.fromkeys(check_excluded(day.lower(), field="day") for day in days))
        async with self._conn() as conn:
            await synchronise.put_calendars(conn, {name: checked})
            return await calendars.users(conn, name)

    async def delete_calendar(self, name: str) -> None:
        check_name(name, field="calendar")
        async with self._conn() as conn:
            await calendars.delete(conn, name)


async def _last_runs(conn: Connection, found: Sequence[Stored]) -> dict[int, list[LastFire]]:
    """What became of the last plan times of each, the latest first."""
    if not found:
        return {}
    runs = await fires.last_runs(conn, [stored.id for stored in found], found[0].now, FIRES_SHOWN)
    return {stored.id: [last_fire(stored, run) for run in runs.get(stored.id, ())] for stored in found}


async def _check(conn: Connection, stored: Stored, back: timedelta) -> Checked:
    try:
        return await missed.missing(conn, stored, stored.now - back, stored.now)
    except ValidationError as error:  # a timezone that this host does not know
        return missed.unknown(stored, error.message)


def _checked(name: str) -> None:
    """Before anybody is asked."""
    check_name(name, field="schedule")
