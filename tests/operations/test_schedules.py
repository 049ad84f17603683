"""Schedules: create, list, show, edit, enable, disable, delete, run now; explain and check."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.operations.conftest import ACTOR, BAD_NAME, echo

from mainspring.errors import Conflict, JobNotFound, ScheduleNotFound, ValidationError
from mainspring.model.schedules.define_schedule import When, define_schedule
from mainspring.model.schedules.edit_schedule import Edit
from mainspring.model.schedules.schedules import Schedule
from mainspring.operations import jobs, schedules
from mainspring.store.postgres.database import Connection

DAY = timedelta(days=1)


def nightly(**when: object) -> Schedule:
    given: When = {"daily": "03:00", "tz": "Europe/Paris", **when}  # type: ignore[typeddict-item]
    return define_schedule("nightly", "hello", given)


@pytest.fixture(autouse=True)
async def job(conn: Connection) -> None:
    await jobs.create(conn, ACTOR, "hello", echo())


async def test_a_schedule_is_created_disabled_unless_asked_for(conn: Connection) -> None:
    view = await schedules.create(conn, ACTOR, nightly())
    assert (view.state, view.next, view.words) == ("disabled", None, "At 03:00 every day")
    with pytest.raises(Conflict, match="there is a schedule named 'nightly'"):
        await schedules.create(conn, ACTOR, nightly())
    change = await schedules.enable(conn, ACTOR, "nightly")
    assert change.schedule.state == "enabled"
    assert change.schedule.next is not None
    assert change.schedule.next.hour == 3, "by the clocks of its timezone"
    assert (await schedules.enable(conn, ACTOR, "nightly")).recalled is None, "nothing changed"
    assert (await schedules.disable(conn, ACTOR, "nightly")).schedule.state == "disabled"


async def test_a_list_is_of_all_or_of_a_job(conn: Connection) -> None:
    await schedules.create(conn, ACTOR, nightly(), enabled=True)
    assert [view.name for view in await schedules.listing(conn, ACTOR)] == ["nightly"]
    await jobs.create(conn, ACTOR, "other", echo())
    assert await schedules.listing(conn, ACTOR, job="other") == []
    with pytest.raises(JobNotFound):
        await schedules.listing(conn, ACTOR, job="none")


async def test_a_run_beside_the_plan_is_the_last_that_is_shown(conn: Connection) -> None:
    await schedules.create(conn, ACTOR, nightly(), enabled=True)
    [task] = await schedules.run_now(conn, ACTOR, "nightly")
    found = await schedules.show(conn, ACTOR, "nightly")
    assert [(fire.task_id, fire.origin, fire.state) for fire in found.last] == [(task, "manual", "pending")]
    assert found.schedule.last == found.last[0]
    assert len(found.next) == schedules.FIRES_SHOWN
    with pytest.raises(Conflict, match="has no scope 'eu'"):
        await schedules.run_now(conn, ACTOR, "nightly", ["eu"])


async def test_an_edit_is_a_new_version(conn: Connection) -> None:
    await schedules.create(conn, ACTOR, nightly(), enabled=True)
    change = await schedules.edit(conn, ACTOR, "nightly", Edit({"overlap": "skip"}))
    assert (change.schedule.version, change.schedule.policies["overlap"]) == (2, "skip")
    with pytest.raises(ValidationError):
        await schedules.edit(conn, ACTOR, "nightly", Edit({"overlap": "never"}))  # type: ignore[typeddict-item]


async def test_a_deleted_schedule_is_gone(conn: Connection) -> None:
    await schedules.create(conn, ACTOR, nightly(), enabled=True)
    change = await schedules.delete(conn, ACTOR, "nightly")
    assert (change.schedule.name, change.recalled) == ("nightly", (0, 0, 0))
    with pytest.raises(ScheduleNotFound):
        await schedules.show(conn, ACTOR, "nightly")


async def test_the_next_plan_time_is_explained(conn: Connection) -> None:
    view = await schedules.create(conn, ACTOR, nightly(), enabled=True)
    found = await schedules.explain(conn, ACTOR, "nightly")
    assert [(story.plan_time, story.status) for story in found.plan_times] == [(view.next, "undecided")]
    assert found.schedule.name == "nightly"


async def test_a_check_goes_back_no_further_than_fires_are_kept(conn: Connection) -> None:
    await schedules.create(conn, ACTOR, nightly(), enabled=True)
    await conn.execute("update mainspring.schedule set created_at = now() - interval '9 days', since = created_at")
    [found] = await schedules.check(conn, ACTOR, "nightly", 7 * DAY, keep=2 * DAY)
    assert found.until - found.since < 2 * DAY + timedelta(minutes=1)
    assert [one.schedule for one in await schedules.check(conn, ACTOR, None, DAY, keep=DAY)] == ["nightly"]


async def test_a_bad_name_is_refused(conn: Connection) -> None:
    for operation in (schedules.show, schedules.enable, schedules.disable, schedules.delete, schedules.run_now):
        with pytest.raises(ValidationError):
            await operation(conn, ACTOR, BAD_NAME)
