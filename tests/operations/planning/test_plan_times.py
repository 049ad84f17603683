"""Plan times: the ledger, explain, what comes next, preview, check."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.operations.conftest import ACTOR, BAD_NAME, echo, same_in_json

from mainspring.errors import BadCursor, ScheduleNotFound, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.forecasting.preview import Preview
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import jobs, schedules
from mainspring.operations.pages import Page
from mainspring.operations.planning import plan_times
from mainspring.operations.planning.plan_times import Explanation
from mainspring.operations.planning.schedule_views import FireView
from mainspring.operations.work import tasks
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules.missed import Checked

DAY = timedelta(days=1)
HOURLY = ScheduleSpec(job="hello", every="1h", enabled=True)
NOBODY = Actor("token:x", jobs=("x",))


@pytest.fixture(autouse=True)
async def job(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())


async def make(conn: Connection, name: str = "hourly", **spec: Any) -> None:
    await schedules.put(conn, ACTOR, name, replace(HOURLY, **spec))


async def since_long(conn: Connection, ago: str) -> None:
    await conn.execute(
        "update mainspring.schedule set created_at = now() - $1::text::interval, since = now() - $1::text::interval",
        ago,
    )


async def test_the_ledger_is_told_from_the_latest_on_in_pages(conn: Connection) -> None:
    await make(conn, tz="Asia/Tokyo", scopes=["eu", "us"])
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for hour in range(3):
        await conn.execute(
            """
            insert into mainspring.fire (schedule_id, plan_time, scope, reason)
            select id, $1, scope, 'misfire' from mainspring.schedule, unnest('{eu,us}'::text[]) scope
            """,
            start + timedelta(hours=hour),
        )
    run = await schedules.run(conn, ACTOR, "hourly", scopes=["eu"])
    await tasks.cancel(conn, ACTOR, run.tasks[0])
    found: list[FireView] = []
    cursor = None
    for _ in range(9):
        page = await plan_times.fires(conn, ACTOR, "hourly", limit=2, cursor=cursor)
        assert same_in_json(page, Page[FireView])
        found += page.items
        if (cursor := page.next) is None:
            break
    told = [(fire.plan_time, fire.scope) for fire in found[1:]]
    assert told == [(start + timedelta(hours=hour), scope) for hour in (2, 1, 0) for scope in ("us", "eu")]
    newest = found[0]
    assert (newest.task_id, newest.state, newest.origin) == (run.tasks[0], "cancelled", "manual")
    assert newest.finished_at is not None
    assert newest.plan_time.utcoffset() == timedelta(hours=9)
    some = await plan_times.fires(conn, ACTOR, "hourly", since=start, until=start + timedelta(hours=1))
    assert len(some.items) == 4
    page = await plan_times.fires(conn, ACTOR, "hourly", limit=2)
    with pytest.raises(BadCursor):
        await plan_times.fires(conn, ACTOR, "hourly", since=start, cursor=page.next)
    with pytest.raises(ValidationError, match="has no offset"):
        await plan_times.fires(conn, ACTOR, "hourly", since=datetime(2026, 1, 1))


async def test_the_ledger_is_read_along_its_key(conn: Connection) -> None:
    await make(conn)
    plan = await conn.fetch(
        """
        explain (costs off) select plan_time from mainspring.fire
         where schedule_id = 1 and plan_time >= '1970-01-01' and plan_time <= '2200-01-01'
           and (plan_time, scope) < ('2200-01-01', '') order by plan_time desc, scope desc limit 3
        """
    )
    text = "\n".join(row[0] for row in plan)
    assert "Backward" in text, text
    assert "->  Sort" not in text, text


async def test_the_next_plan_time_is_explained(conn: Connection) -> None:
    await make(conn, tz="Europe/Paris")
    view = (await schedules.show(conn, ACTOR, "hourly")).schedule
    found = await plan_times.explain(conn, ACTOR, "hourly")
    assert [(story.plan_time, story.status) for story in found.plan_times] == [(view.next, "undecided")]
    assert (found.schedule, found.timezone) == ("hourly", "Europe/Paris")
    assert same_in_json(found, Explanation)
    assert view.next is not None
    [story] = (await plan_times.explain(conn, ACTOR, "hourly", at=view.next + timedelta(minutes=1))).plan_times
    assert story.status == "not_expected"


async def test_the_next_plan_times_are_those_that_it_has_left(conn: Connection) -> None:
    await make(conn)
    found = await plan_times.next_times(conn, ACTOR, "hourly", n=3)
    assert (found.words, len(found.fires)) == ("every hour", 3)
    assert same_in_json(found, Preview)
    await schedules.edit(conn, ACTOR, "hourly", {"max_runs": 2})
    assert len((await plan_times.next_times(conn, ACTOR, "hourly")).fires) == 2
    await schedules.disable(conn, ACTOR, "hourly")
    assert (await plan_times.next_times(conn, ACTOR, "hourly")).fires == []
    for n in (0, 1001, True):
        with pytest.raises(ValidationError):
            await plan_times.next_times(conn, ACTOR, "hourly", n=n)


async def test_a_preview_needs_no_database() -> None:
    after = datetime(2026, 3, 28, tzinfo=UTC)
    spec = ScheduleSpec(daily="02:30", tz="Europe/Paris")
    found = await plan_times.preview(None, ACTOR, spec, after=after, n=2)
    assert found.words == "At 02:30 every day"
    assert found.fires[1].note is not None
    assert "does not exist that day: moved to 03:00" in found.fires[1].note
    assert same_in_json(found, Preview)
    without = await plan_times.preview(None, ACTOR, spec, after=after, n=1, exclude=["03-28"])
    assert without.fires[0].utc == datetime(2026, 3, 29, 1, tzinfo=UTC)
    for wrong in (ScheduleSpec(), ScheduleSpec(cron="x"), ScheduleSpec(every=60, calendars=["free"])):
        with pytest.raises(ValidationError):
            await plan_times.preview(None, ACTOR, wrong)
    with pytest.raises(ValidationError):
        await plan_times.preview(None, ACTOR, spec, exclude=["02-30"])


async def test_a_check_goes_back_no_further_than_fires_are_kept(conn: Connection) -> None:
    await make(conn)
    await since_long(conn, "9 days")
    page = await plan_times.check(conn, ACTOR, schedule="hourly", since=7 * DAY, keep=2 * DAY)
    [found] = page.items
    assert found.until - found.since < 2 * DAY + timedelta(minutes=1)
    assert len(found.missing) + found.more >= 47
    assert same_in_json(page, Page[Checked])
    [found] = (await plan_times.check(conn, ACTOR, since=7 * DAY)).items
    assert found.until - found.since > 6 * DAY
    for since in (timedelta(0), -DAY, 9999 * DAY):
        with pytest.raises(ValidationError):
            await plan_times.check(conn, ACTOR, since=since)


async def test_a_check_of_all_comes_in_pages(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        await make(conn, name)
    assert [one.schedule for one in (await plan_times.check(conn, ACTOR)).items] == ["a", "b", "c"]
    assert (await plan_times.check(conn, NOBODY)).items == []
    found = []
    cursor = None
    monkeypatch.setattr(plan_times, "CHECK_SECONDS", -1)
    for _ in range(9):
        page = await plan_times.check(conn, ACTOR, cursor=cursor, limit=2)
        assert len(page.items) <= 1, "out of time after each"
        found += [one.schedule for one in page.items]
        if (cursor := page.next) is None:
            break
    assert found == ["a", "b", "c"]


async def test_a_long_pause_is_passed_over(conn: Connection) -> None:
    await make(conn, every=0.1, enabled=False)
    await since_long(conn, "1 hour")
    [found] = (await plan_times.check(conn, ACTOR)).items
    assert (found.expected, found.missing, found.complete) == (0, [], True)


async def test_names_that_are_bad_or_not_the_actors_are_refused(conn: Connection) -> None:
    await make(conn)
    for operation in (plan_times.fires, plan_times.explain, plan_times.next_times):
        with pytest.raises(ValidationError):
            await operation(conn, ACTOR, BAD_NAME)
        with pytest.raises(ScheduleNotFound):
            await operation(conn, NOBODY, "hourly")
    with pytest.raises(ScheduleNotFound):
        await plan_times.check(conn, NOBODY, schedule="hourly")
