"""Calendars of excluded days."""

from __future__ import annotations

import pytest
from tests.operations.conftest import ACTOR, BAD_NAME, echo, same_in_json

from mainspring.errors import CalendarNotFound, Conflict, NameTaken, NotFound, StaleVersion, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import calendars, jobs, schedules
from mainspring.operations.definitions.calendars import CalendarChange, CalendarView
from mainspring.operations.pages import Page
from mainspring.store.postgres.database import Connection


async def test_a_calendar_is_kept_while_a_schedule_uses_it(conn: Connection) -> None:
    made = await calendars.put(conn, ACTOR, "free", ["12-25", "SUN", "sun"])
    assert (made.created, made.changed, made.calendar.version) == (True, True, 1)
    assert (made.calendar.days, made.calendar.schedules) == (["12-25", "sun"], [])
    await jobs.put(conn, ACTOR, "hello", echo())
    spec = ScheduleSpec(job="hello", daily="03:00", calendars=["free"])
    await schedules.put(conn, ACTOR, "nightly", spec)
    change = await calendars.put(conn, ACTOR, "free", ["sat"])
    assert (change.created, change.changed, change.calendar.version) == (False, True, 2)
    assert change.calendar.schedules == ["nightly"]
    assert same_in_json(change, CalendarChange)
    narrow = Actor("x", jobs=("hell*",))
    assert (await calendars.show(conn, narrow, "free")).schedules == ["nightly"]
    assert [one.name for one in (await calendars.listing(conn, narrow)).items] == ["free"]
    other = Actor("x", jobs=("x",))
    with pytest.raises(CalendarNotFound):
        await calendars.show(conn, other, "free")
    assert (await calendars.listing(conn, other)).items == []
    assert (await schedules.show(conn, ACTOR, "nightly")).schedule.policies.excluded == ("sat",)
    with pytest.raises(Conflict, match="is used by nightly"):
        await calendars.delete(conn, ACTOR, "free")
    await schedules.delete(conn, ACTOR, "nightly")
    await calendars.delete(conn, ACTOR, "free")
    assert (await calendars.listing(conn, ACTOR)).items == []


async def test_a_version_is_demanded_and_a_name_is_taken(conn: Connection) -> None:
    await calendars.put(conn, ACTOR, "free", ["sun"])
    same = await calendars.put(conn, ACTOR, "free", ["sun"], version=1)
    assert (same.changed, same.created, same.calendar.version) == (False, False, 1)
    for days in (["sun"], ["sat"]):
        with pytest.raises(NameTaken):
            await calendars.put(conn, ACTOR, "free", days, replace=False)
    await calendars.put(conn, ACTOR, "free", ["sat"], version=1)
    for change in (
        calendars.put(conn, ACTOR, "free", ["sun"], version=1),
        calendars.delete(conn, ACTOR, "free", version=1),
    ):
        with pytest.raises(StaleVersion) as caught:
            await change
        assert caught.value.details == {"version": 2}
    with pytest.raises(CalendarNotFound):
        await calendars.put(conn, ACTOR, "other", ["sun"], version=1)
    found = await calendars.show(conn, ACTOR, "free")
    assert (found.days, found.version) == (["sat"], 2)
    await calendars.delete(conn, ACTOR, "free", version=2)


async def test_a_calendar_has_a_bound(conn: Connection) -> None:
    with pytest.raises(ValidationError, match="5,001; at most 5,000"):
        await calendars.put(conn, ACTOR, "free", ["12-25"] * 5_001)
    assert (await calendars.listing(conn, ACTOR)).items == []


async def test_a_list_comes_in_pages(conn: Connection) -> None:
    for name in ("a", "b", "c"):
        await calendars.put(conn, ACTOR, name, ["sun"])
    first = await calendars.listing(conn, ACTOR, limit=2)
    second = await calendars.listing(conn, ACTOR, limit=2, cursor=first.next)
    assert [[view.name for view in page.items] for page in (first, second)] == [["a", "b"], ["c"]]
    assert second.next is None
    assert same_in_json(first, Page[CalendarView])


async def test_a_calendar_that_does_not_exist_is_not_found(conn: Connection) -> None:
    with pytest.raises(NotFound):
        await calendars.show(conn, ACTOR, "none")
    with pytest.raises(NotFound):
        await calendars.delete(conn, ACTOR, "none")


async def test_bad_names_and_days_are_refused(conn: Connection) -> None:
    for name in (BAD_NAME, "..", "."):
        with pytest.raises(ValidationError):
            await calendars.show(conn, ACTOR, name)
        with pytest.raises(ValidationError):
            await calendars.put(conn, ACTOR, name, ["sun"])
    with pytest.raises(ValidationError):
        await calendars.put(conn, ACTOR, "free", ["02-30"])
    assert (await calendars.listing(conn, ACTOR)).items == []
