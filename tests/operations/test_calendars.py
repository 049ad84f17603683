"""Calendars of excluded days."""

from __future__ import annotations

import pytest
from tests.operations.conftest import ACTOR, BAD_NAME, echo

from mainspring.errors import Conflict, NotFound, ValidationError
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.operations import calendars, jobs, schedules
from mainspring.store.postgres.database import Connection


async def test_a_calendar_is_kept_while_a_schedule_uses_it(conn: Connection) -> None:
    view = await calendars.put(conn, ACTOR, "free", ["12-25", "SUN", "sun"])
    assert (view.days, view.schedules) == (["12-25", "sun"], [])
    await jobs.create(conn, ACTOR, "hello", echo())
    await schedules.create(conn, ACTOR, define_schedule("nightly", "hello", {"daily": "03:00", "calendars": ["free"]}))
    assert (await calendars.put(conn, ACTOR, "free", ["sat"])).schedules == ["nightly"]
    assert (await schedules.show(conn, ACTOR, "nightly")).schedule.policies["excluded"] == ("sat",)
    with pytest.raises(Conflict, match="is used by nightly"):
        await calendars.delete(conn, ACTOR, "free")
    await schedules.delete(conn, ACTOR, "nightly")
    await calendars.delete(conn, ACTOR, "free")
    assert await calendars.listing(conn, ACTOR) == {}


async def test_a_calendar_that_does_not_exist_is_not_found(conn: Connection) -> None:
    with pytest.raises(NotFound):
        await calendars.show(conn, ACTOR, "none")
    with pytest.raises(NotFound):
        await calendars.delete(conn, ACTOR, "none")


async def test_bad_names_and_days_are_refused(conn: Connection) -> None:
    with pytest.raises(ValidationError):
        await calendars.show(conn, ACTOR, BAD_NAME)
    with pytest.raises(ValidationError):
        await calendars.put(conn, ACTOR, "free", ["02-30"])
    assert await calendars.listing(conn, ACTOR) == {}
