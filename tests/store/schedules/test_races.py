"""Races: concurrent changes of schedules and calendars, and what large schedules cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.cluster import server_lease
from tests.schedules import at, create, planned, set_clock

from mainspring.errors import Conflict
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.tasks.jobs import Command, Definition, Python
from mainspring.server.planning.planner import Planner
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import calendars, schedules
from mainspring.store.schedules.calendars import Calendar
from mainspring.store.schedules.revoke import Recalled
from mainspring.store.schedules.synchronise import put_calendars, synchronise
from mainspring.store.tasks import jobs


async def test_two_edits_at_once_both_count(dsn: str, conn: Connection) -> None:
    await create(conn, every=5)
    await jobs.register(conn, {"other": Definition(Command(("true",)))})
    first, second = [await Database(dsn).connect() for _ in range(2)]

    async def edit(hand: Connection, **changes: Any) -> None:
        await schedules.change(hand, "report", lambda schedule: _changed(schedule, **changes))

    async with first.transaction():
        held = await schedules.find(first, "report", lock=True)
        waiting = asyncio.create_task(edit(second, timezone="Europe/Paris"))
        await asyncio.sleep(0.1)
        await schedules.change_held(first, held, _changed(held.schedule, job="other"))
    await waiting
    stored = await schedules.find(conn, "report")
    assert (stored.schedule.job, stored.schedule.timezone, stored.version) == ("other", "Europe/Paris", 3)
    for hand in (first, second):
        await hand.close()


def _changed(schedule: Any, **changes: Any) -> Any:
    from msgspec.structs import replace

    return replace(schedule, **changes)


async def test_a_schedule_made_while_its_calendar_changes_gets_the_new_days(dsn: str, conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Command(("true",)))})
    await put_calendars(conn, {"rest": ("sun",)})
    other = await Database(dsn).connect()
    async with other.transaction():
        await calendars.put(other, "rest", ("mon",))
        schedule = define_schedule("late", "job", {"every": "1h", "calendars": ["rest"]})
        making = asyncio.create_task(schedules.create(conn, schedule, enabled=True))
        await asyncio.sleep(0.1)
        assert not making.done(), "it waits for the calendar"
    await making
    assert (await schedules.find(conn, "late")).schedule.policies.excluded == ("mon",)
    with pytest.raises(Conflict, match="is used by late"):
        await calendars.delete(conn, "rest")
    assert await calendars.listing(conn) == ([Calendar("rest", ("mon",), 2)], None)
    await other.close()


async def test_an_interrupted_spread_of_a_calendar_is_completed_by_the_next(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Command(("true",)))})
    await put_calendars(conn, {"rest": ("sun",)})
    for name in ("a", "b"):
        await schedules.create(conn, define_schedule(name, "job", {"every": 60, "calendars": ["rest"]}), enabled=True)
    await calendars.put(conn, "rest", ("mon",))  # and there somebody died
    assert (await schedules.find(conn, "a")).schedule.policies.excluded == ("sun",)
    await put_calendars(conn, {"rest": ("mon",)})
    assert [(await schedules.find(conn, name)).schedule.policies.excluded for name in "ab"] == [("mon",)] * 2
    before = (await schedules.find(conn, "a")).version
    await put_calendars(conn, {"rest": ("mon",)})
    assert (await schedules.find(conn, "a")).version == before, "nothing to do"


async def test_a_pause_needs_no_calendar(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Command(("true",)))})
    await put_calendars(conn, {"rest": ("sun",)})
    schedule = define_schedule("report", "job", {"every": 60, "calendars": ["rest"]})
    await schedules.create(conn, schedule, enabled=True)
    await conn.execute("delete from mainspring.calendar")
    changed = await schedules.change(conn, "report", lambda schedule: schedule, enabled=False)
    assert not changed.stored.enabled


async def plan(database: Database) -> None:
    planner = Planner(database, server_lease(), None, {})
    while await planner.step():
        pass
    await planner.close()


async def test_a_handler_that_takes_other_parameters_gets_them_from_its_schedules(
    database: Database, conn: Connection
) -> None:
    await set_clock(conn, 0)
    await create(conn, every=5, takes=("day",))
    assert (await schedules.find(conn, "report")).schedule.policies.fills == ("day",)
    await jobs.register(conn, {"job": Definition(Python("job", ("scope", "plan_time")))})
    stored = await schedules.find(conn, "report")
    assert stored.schedule.policies.fills == ("plan_time",), "no scope where there are no scopes"
    assert stored.version == 1, "its plan times are the same"
    await plan(database)
    args = await conn.fetchval("select args from mainspring.task order by plan_time limit 1")
    assert args == '{"plan_time": "2031-03-29T12:00:05+00:00"}'


async def test_an_application_without_schedules_any_more_shows_what_is_gone(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Command(("true",)))})
    await set_clock(conn, 0)
    await synchronise(conn, "shop", 0, [define_schedule("report", "job", {"every": 5})])
    assert not (await schedules.find(conn, "report")).is_orphan
    await set_clock(conn, 1)
    await synchronise(conn, "shop", 0, [])
    assert (await schedules.find(conn, "report")).is_orphan


async def test_taking_back_a_plan_time_of_many_scopes_takes_no_time(conn: Connection) -> None:
    """It was cubic once, and an edit of 500 scopes took longer than any statement may."""
    await set_clock(conn, 0)
    report = await create(conn, every=5, scopes=[f"tenant {number}" for number in range(2000)], max_runs=10)
    await planned(conn)
    assert (await schedules.find(conn, "report")).runs == 2
    async with asyncio.timeout(20):
        changed = await schedules.change(conn, "report", lambda schedule: schedule, enabled=False)
    assert changed.recalled == Recalled(4000, 0, 0)
    assert changed.stored.runs == 0
    assert await conn.fetchval("select count(*) from mainspring.fire where schedule_id = $1", report) == 0


async def test_a_plan_time_before_an_edit_has_the_arguments_of_its_version(
    database: Database, conn: Connection
) -> None:
    await set_clock(conn, 0)
    await create(conn, every=60, args={"version": 1}, catch_up="all")
    await set_clock(conn, 90)
    await schedules.change(
        conn, "report", lambda old: _changed(old, policies=_changed(old.policies, args={"version": 2}))
    )
    await set_clock(conn, 150)
    await plan(database)
    rows = await conn.fetch("select plan_time, args from mainspring.task order by plan_time")
    assert [(row["plan_time"], row["args"]) for row in rows] == [
        (at(60), '{"version": 1}'),
        (at(120), '{"version": 2}'),
    ]
