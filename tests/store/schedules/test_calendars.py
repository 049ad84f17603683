"""Calendars of excluded days: by name, copied into the schedules that use them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace
from tests.schedules import START, create, ledger, planned, set_clock

from mainspring.errors import Conflict, NotFound, ValidationError
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import calendars, schedules
from mainspring.store.schedules.calendars import Calendar
from mainspring.store.schedules.synchronise import put_calendars

DAY = 86400


@pytest.fixture(autouse=True)
async def _clock(conn: Connection) -> None:
    await set_clock(conn, 0)  # Saturday, 2031-03-29 12:00


async def test_a_schedule_has_the_days_of_all_its_calendars(conn: Connection) -> None:
    await put_calendars(conn, {"weekend": ["sat", "sun"], "work": ["2031-03-31", "sun"]})
    await create(conn, cron="0 9 * * *", calendars=["weekend", "work"])
    stored = await schedules.find(conn, "report")
    assert stored.schedule.policies.excluded == ("sat", "sun", "2031-03-31")
    assert stored.next_plan_at == START + timedelta(days=3, hours=-3)


async def test_a_calendar_that_is_not_there(conn: Connection) -> None:
    with pytest.raises(NotFound, match="no calendar named 'nope'; make it with `mainspring schedule calendar set nope"):
        await create(conn, every=5, calendars=["nope"])


async def test_a_change_of_days_changes_all_schedules_that_use_them(conn: Connection) -> None:
    await put_calendars(conn, {"work": ["2031-12-25"], "other": ["sun"]})
    users = [await create(conn, name, every=4, calendars=["work"]) for name in ("a", "b")]
    await create(conn, "c", every=4, calendars=["other"])
    await planned(conn)
    assert list(await calendars.users(conn, "work")) == ["a", "b"]
    await put_calendars(conn, {"work": ["2031-03-29"]})
    for user in users:
        assert await ledger(conn, user) == [], "what was planned for today is taken back"
    versions = {s.schedule.name: s.version for s in await schedules.listing(conn)}
    assert versions == {"a": 2, "b": 2, "c": 1}
    await planned(conn)
    assert (await schedules.find(conn, "a")).next_plan_at == START + timedelta(hours=12)
    await put_calendars(conn, {"work": ["2031-03-29"]})
    assert (await schedules.find(conn, "a")).version == 2, "the same days change nothing"


async def test_plan_times_before_the_change_are_told_by_the_days_of_then(conn: Connection) -> None:
    await put_calendars(conn, {"work": ["2031-03-30"]})
    report = await create(conn, cron="0 18 * * *", calendars=["work"], catch_up="all", window="30d")
    await set_clock(conn, 2 * DAY + 3600)
    await put_calendars(conn, {"work": ["2031-03-31"]})
    await set_clock(conn, 4 * DAY)
    await planned(conn)
    hour = 3600
    assert [entry.at for entry in await ledger(conn, report)] == [6 * hour, 3 * DAY + 6 * hour]


async def test_days_that_leave_no_plan_time_are_refused_as_a_whole(conn: Connection) -> None:
    await put_calendars(conn, {"work": ["sun"]})
    await create(conn, every=4, calendars=["work"])
    await create(conn, "sundays", cron="0 9 * * SAT", calendars=["work"])
    with pytest.raises(ValidationError, match="no plan time would ever come"):
        await put_calendars(conn, {"work": ["sat"]})
    assert await calendars.listing(conn) == ([Calendar("work", ("sun",), 1)], None)
    assert (await schedules.find(conn, "report")).version == 1


async def test_a_calendar_in_use_is_not_deleted(conn: Connection) -> None:
    await put_calendars(conn, {"work": ["sun"]})
    await create(conn, every=4, calendars=["work"])
    with pytest.raises(Conflict, match="calendar 'work' is used by report; change them first"):
        await calendars.delete(conn, "work")
    await schedules.change(conn, "report", lambda s: replace(s, policies=replace(s.policies, calendars=())))
    assert (await schedules.find(conn, "report")).schedule.policies.excluded == ()
    await calendars.delete(conn, "work")
    with pytest.raises(NotFound):
        await calendars.delete(conn, "work")
