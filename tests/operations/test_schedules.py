"""Schedules: list, show, put, edit, delete, enable, disable, run; one, or all that match a filter."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace
from tests.operations.conftest import ACTOR, BAD_NAME, echo, same_in_json

from mainspring.errors import (
    BadCursor,
    Conflict,
    JobNotFound,
    NameTaken,
    NotFound,
    ScheduleNotFound,
    StaleVersion,
    ValidationError,
)
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import jobs, schedules
from mainspring.operations.definitions.schedules import ActionStep, ScheduleFilter, ScheduleRun
from mainspring.operations.pages import Page
from mainspring.operations.planning import schedule_views
from mainspring.operations.planning.schedule_views import ScheduleChange, ScheduleDetail, ScheduleView
from mainspring.store.access import audit
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules as stored_schedules
from mainspring.store.schedules.revoke import Recalled

NIGHTLY = ScheduleSpec(job="hello", daily="03:00", tz="Europe/Paris")
OF_SHOP = Actor("token:shop", jobs=("shop.*",))


@pytest.fixture(autouse=True)
async def job(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())


async def put(conn: Connection, name: str, **spec: Any) -> ScheduleView:
    return (await schedules.put(conn, ACTOR, name, ScheduleSpec(**{"job": "hello", "every": 3600, **spec}))).schedule


async def names(conn: Connection, actor: Actor = ACTOR, **filters: Any) -> list[str]:
    return [view.name for view in (await schedules.listing(conn, actor, **filters)).items]


async def test_a_schedule_is_created_disabled_unless_asked_for(conn: Connection) -> None:
    made = await schedules.put(conn, ACTOR, "nightly", NIGHTLY, replace=False)
    assert (made.created, made.changed, made.recalled) == (True, True, None)
    view = made.schedule
    assert (view.state, view.next, view.words) == ("disabled", None, "At 03:00 every day")
    with pytest.raises(NameTaken, match="there is a schedule named 'nightly'"):
        await schedules.put(conn, ACTOR, "nightly", NIGHTLY, replace=False)
    change = await schedules.enable(conn, ACTOR, "nightly")
    assert (change.schedule.state, change.changed, change.created) == ("enabled", True, False)
    assert change.schedule.next is not None
    assert change.schedule.next.hour == 3, "by the clocks of its timezone"
    again = await schedules.enable(conn, ACTOR, "nightly", note="why")
    assert (again.recalled, again.changed) == (None, False)
    assert (await schedules.disable(conn, ACTOR, "nightly")).schedule.state == "disabled"
    assert (await put(conn, "other", enabled=True)).enabled


async def test_what_was_read_can_be_written_again(conn: Connection) -> None:
    await put(conn, "nightly", jitter="5s", scopes=["eu"], args={"a": {"b": None}}, end="2199-01-01T00:00Z")
    await schedules.enable(conn, ACTOR, "nightly")
    view = (await schedules.show(conn, ACTOR, "nightly")).schedule
    same = await schedules.put(conn, ACTOR, "nightly", view.spec, version=view.version)
    assert (same.changed, same.schedule.version, same.schedule.enabled) == (False, 2, True)
    changed = await schedules.put(conn, ACTOR, "nightly", replace(view.spec, every=60))
    assert (changed.changed, changed.created, changed.recalled) == (True, False, Recalled(0, 0, 0))
    assert (changed.schedule.expression, changed.schedule.policies.scopes) == ("60", ("eu",))
    bare = await schedules.put(conn, ACTOR, "nightly", ScheduleSpec(job="hello", every=60))
    assert (bare.schedule.enabled, bare.schedule.policies.scopes, bare.schedule.policies.args) == (True, (), {})


async def test_a_ping_url_does_not_come_out_again_and_survives_a_put_and_an_edit(conn: Connection) -> None:
    secret = "0f6e1d2c-1111-2222-3333-944455556666"
    url, shown = f"https://hc.example/{secret}/x?key=hunter2", "https://hc.example/***/x?key=***"
    view = await put(conn, "nightly", ping_url=url)
    detail = await schedules.show(conn, ACTOR, "nightly")
    assert (view.spec.ping_url, view.policies.ping_url) == (shown, shown)
    page = await schedules.listing(conn, ACTOR)
    entries = (await audit.search(conn, subject="schedule:nightly")).entries
    for told in (view, detail, page, entries):
        text = msgspec.json.encode(told).decode()
        assert secret not in text
        assert "hunter2" not in text
    again = await schedules.put(conn, ACTOR, "nightly", replace(view.spec, description="as it was read"))
    edited = await schedules.edit(conn, ACTOR, "nightly", {"jitter": "5s"})
    assert (again.changed, edited.changed) == (True, True)
    assert (await stored_schedules.find(conn, "nightly")).schedule.policies.ping_url == url
    for name, spec in (("other", view.spec), ("nightly", replace(view.spec, ping_url="https://hc.example/***"))):
        with pytest.raises(ValidationError, match="which hides a value") as refused:
            await schedules.put(conn, ACTOR, name, spec)
        assert refused.value.field == "ping_url"
    assert (await schedules.edit(conn, ACTOR, "nightly", {"ping_url": None})).schedule.policies.ping_url is None


async def test_arguments_that_are_secret_are_masked_and_survive_a_put_and_an_edit(conn: Connection) -> None:
    args = {"password": "hunter2", "day": 1, "of": [{"api_key": "hunter2"}, 7]}
    view = await put(conn, "nightly", args=args, description="with TOKEN=hunter2")
    assert view.spec.description == "with TOKEN=***"
    shown = {"password": "***", "day": 1, "of": [{"api_key": "***"}, 7]}
    assert (view.spec.args, view.policies.args) == (shown, shown)
    other = {**shown, "day": 2, "of": [{"api_key": "***"}, 8]}
    assert (await schedules.put(conn, ACTOR, "nightly", replace(view.spec, args=other))).schedule.spec.args == other
    assert (await schedules.edit(conn, ACTOR, "nightly", {"args": {"day": 3, "password": "***"}})).changed
    kept = (await stored_schedules.find(conn, "nightly")).schedule.policies
    assert kept.description == "with TOKEN=hunter2"
    assert kept.args == {"password": "hunter2", "day": 3, "of": [{"api_key": "hunter2"}, 8]}
    for name, wrong in (("other", shown), ("nightly", {"password": "hunter3", "api_key": "***"})):
        with pytest.raises(ValidationError, match="which hides a value"):
            await schedules.put(conn, ACTOR, name, replace(view.spec, args=wrong))


async def test_a_ping_url_that_differs_from_the_code_is_not_shown(conn: Connection) -> None:
    first, second = (f"https://hc.example/{number:036}" for number in (1, 2))
    schedule = define_schedule("nightly", "hello", {"every": "1h", "ping_url": first})
    await stored_schedules.create(conn, schedule, enabled=True, app="shop", app_version=1)
    drift = (await schedules.edit(conn, ACTOR, "nightly", {"ping_url": second})).schedule.drift
    assert [(one.field, one.code, one.in_force) for one in drift] == [("ping_url", *2 * ("https://hc.example/***",))]


async def test_scopes_that_code_tells_survive_a_put_and_an_edit(conn: Connection) -> None:
    schedule = define_schedule("told", "hello", {"every": 60}, provider="tenants")
    await stored_schedules.create(conn, schedule, enabled=True, app="shop", app_version=1)
    view = (await schedules.show(conn, ACTOR, "told")).schedule
    changed = (await schedules.put(conn, ACTOR, "told", replace(view.spec, every=90))).schedule
    assert (changed.policies.provider, [one.field for one in changed.drift]) == ("tenants", ["expression"])
    edited = (await schedules.edit(conn, ACTOR, "told", {"every": 60})).schedule
    assert (edited.policies.provider, edited.drift) == ("tenants", [])
    edited = (await schedules.edit(conn, ACTOR, "told", {"scopes": None})).schedule
    assert edited.policies.provider is None
    assert [(one.field, one.code, one.in_force) for one in edited.drift] == [("provider", "tenants", None)]
    assert same_in_json(edited, ScheduleView)


async def test_only_the_version_that_was_read_is_changed_or_deleted(conn: Connection) -> None:
    await put(conn, "nightly")
    await schedules.edit(conn, ACTOR, "nightly", {"every": 60}, version=1)
    for change in (
        schedules.put(conn, ACTOR, "nightly", NIGHTLY, version=1),
        schedules.edit(conn, ACTOR, "nightly", {"every": 90}, version=1),
        schedules.delete(conn, ACTOR, "nightly", version=1),
    ):
        with pytest.raises(StaleVersion) as caught:
            await change
        assert caught.value.details == {"version": 2}
    with pytest.raises(ScheduleNotFound):
        await schedules.put(conn, ACTOR, "other", NIGHTLY, version=1)
    assert await names(conn) == ["nightly"]
    await schedules.delete(conn, ACTOR, "nightly", version=2)


async def test_an_edit_is_a_merge_patch_and_a_new_version(conn: Connection) -> None:
    await put(conn, "nightly", enabled=True, overlap="queue", args={"a": 1})
    change = await schedules.edit(conn, ACTOR, "nightly", {"overlap": None, "args": {"b": 2}, "daily": "03:00"})
    view = change.schedule
    assert (view.version, view.kind, view.enabled) == (2, "cron", True)
    assert (view.policies.overlap, view.policies.args) == ("allow", {"a": 1, "b": 2})
    assert not (await schedules.edit(conn, ACTOR, "nightly", {"daily": "03:00"})).changed
    assert not (await schedules.edit(conn, ACTOR, "nightly", {"enabled": False})).schedule.enabled
    for wrong in ({"overlap": "never"}, {"overlp": "skip"}, {"cron": "x"}, {"job": None}):
        with pytest.raises(ValidationError):
            await schedules.edit(conn, ACTOR, "nightly", wrong)
    with pytest.raises(JobNotFound):
        await schedules.edit(conn, ACTOR, "nightly", {"job": "none"})


async def test_two_that_make_the_same_schedule_at_once_agree(dsn: str, conn: Connection) -> None:
    others = [await Database(dsn).connect() for _ in range(4)]
    changes = await asyncio.gather(*(schedules.put(other, ACTOR, "nightly", NIGHTLY) for other in others))
    await asyncio.gather(*(other.close() for other in others))
    assert sorted(change.created for change in changes) == [False, False, False, True]
    assert (await schedules.show(conn, ACTOR, "nightly")).schedule.version == 1


async def test_a_list_filters_by_every_member(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    await jobs.put(conn, ACTOR, "shop.sell", echo())
    await put(conn, "a", enabled=True)
    await put(conn, "b.1")
    await put(conn, "b.2", job="shop.sell", daily="03:00", every=UNSET, enabled=True)
    await put(conn, "c", enabled=True)
    await put(conn, "d", every=UNSET, daemon=1, enabled=True)
    await put(conn, "e", every=UNSET, once="2199-01-01T00:00Z", enabled=True)
    schedule = define_schedule("f", "hello", {"every": 60})
    await stored_schedules.create(conn, schedule, enabled=True, app="shop", app_version=1)
    await conn.execute("update mainspring.schedule set problem = 'broken' where name = 'c'")
    await conn.execute(
        "update mainspring.schedule set expression = '2020-01-01T00:00:00+00:00', next_plan_at = null where name = 'e'"
    )
    assert await names(conn) == ["a", "b.1", "b.2", "c", "d", "e", "f"]
    assert await names(conn, name=["b.*", "c"]) == ["b.1", "b.2", "c"]
    assert await names(conn, job=["shop.*"]) == ["b.2"]
    assert await names(conn, job=["shop.sell"], state=["disabled"]) == []
    for app in ("shop", "sh*"):
        assert await names(conn, app=[app]) == ["f"]
    for actor, app in ((ACTOR, "typo"), (ACTOR, "sh_p"), (OF_SHOP, "shop")):
        with pytest.raises(NotFound):
            await names(conn, actor, app=[app])
    assert await names(conn, kind=["cron", "daemon"]) == ["b.2", "d"]
    assert await names(conn, state=["disabled"]) == ["b.1"]
    assert await names(conn, state=["problem", "ended"]) == ["c", "e"]
    assert await names(conn, state=["disabled", "problem"]) == ["b.1", "c"]
    assert await names(conn, state=["enabled"]) == ["a", "b.2", "d", "f"]
    assert await names(conn, OF_SHOP) == ["b.2"]
    with pytest.raises(JobNotFound):
        await names(conn, job=["none"])
    with pytest.raises(JobNotFound):
        await names(conn, OF_SHOP, job=["hello"])
    for actor, name in ((ACTOR, "none"), (OF_SHOP, "a")):
        with pytest.raises(ScheduleNotFound):
            await names(conn, actor, name=["b.*", name])
        with pytest.raises(ScheduleNotFound):
            await schedules.count(conn, actor, name=[name])
    page = await schedules.listing(conn, ACTOR, limit=3, state=["enabled"])
    assert ([view.name for view in page.items], page.next is not None) == (["a", "b.2", "d"], True)
    page = await schedules.listing(conn, ACTOR, limit=3, state=["enabled"], cursor=page.next)
    assert ([view.name for view in page.items], page.next) == (["f"], None)
    first = await schedules.listing(conn, ACTOR, limit=3)
    with pytest.raises(BadCursor):
        await schedules.listing(conn, ACTOR, limit=3, kind=["cron"], cursor=first.next)
    assert same_in_json(await schedules.listing(conn, ACTOR), Page[ScheduleView])


async def test_one_bad_row_breaks_no_list(conn: Connection) -> None:
    for number in range(5):
        await put(conn, f"s{number}", enabled=True)
    await conn.execute("update mainspring.schedule set policies = '{\"overlap\": 7}' where name in ('s1', 's2')")
    await conn.execute("update mainspring.schedule set expression = 'often' where name = 's3'")
    await conn.execute("update mainspring.schedule set kind = 'daemon', expression = '9e9' where name = 's4'")
    page = await schedules.listing(conn, ACTOR, limit=2)
    assert [(view.name, view.state) for view in page.items] == [("s0", "enabled"), ("s3", "problem")]
    page = await schedules.listing(conn, ACTOR, limit=2, cursor=page.next)
    assert [(view.name, view.state) for view in page.items] == [("s4", "problem")]
    assert same_in_json(page, Page[ScheduleView])


async def test_a_page_costs_the_same_number_of_statements_however_long_it_is(conn: Connection) -> None:
    for number in range(20):
        await put(conn, f"s{number:02}", enabled=True)
    counted: list[str] = []
    conn.add_query_logger(lambda record: counted.append(record.query.split()[0]))  # type: ignore[attr-defined]
    await schedules.listing(conn, ACTOR, limit=1)
    short, counted[:] = counted.count("select"), []
    await schedules.listing(conn, ACTOR, limit=20)
    assert counted.count("select") == short


async def test_instants_that_come_twice_survive_json(conn: Connection) -> None:
    await put(conn, "nightly", every=UNSET, cron="30 2 * * *", tz="Europe/Paris", fold="both", enabled=True)
    stored = await stored_schedules.find(conn, "nightly")
    fold = datetime(2026, 10, 25, 2, 0, tzinfo=ZoneInfo("Europe/Paris"))
    both = schedule_views.coming(stored._replace(now=fold), 2)
    assert [at.isoformat() for at in both] == ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]
    assert same_in_json(both, list[datetime])


async def test_a_run_beside_the_plan_is_the_last_that_is_shown(conn: Connection) -> None:
    await schedules.put(conn, ACTOR, "nightly", replace(NIGHTLY, enabled=True))
    done = await schedules.run(conn, ACTOR, "nightly")
    assert same_in_json(done, ScheduleRun)
    found = await schedules.show(conn, ACTOR, "nightly")
    assert [(fire.task_id, fire.origin, fire.state) for fire in found.last] == [(done.tasks[0], "manual", "pending")]
    assert found.schedule.last == found.last[0]
    assert len(found.next) == schedule_views.FIRES_SHOWN
    assert same_in_json(found, ScheduleDetail)
    [listed] = (await schedules.listing(conn, ACTOR)).items
    assert listed.last is not None
    assert listed.last.task_id == done.tasks[0]
    with pytest.raises(Conflict, match="has no scope 'eu'"):
        await schedules.run(conn, ACTOR, "nightly", scopes=["eu"])


async def test_a_deleted_schedule_is_gone(conn: Connection) -> None:
    await put(conn, "nightly", enabled=True)
    change = await schedules.delete(conn, ACTOR, "nightly")
    assert (change.schedule.name, change.recalled, change.changed) == ("nightly", Recalled(0, 0, 0), True)
    assert same_in_json(change, ScheduleChange)
    with pytest.raises(ScheduleNotFound):
        await schedules.show(conn, ACTOR, "nightly")


async def test_schedules_of_other_jobs_than_the_actors_are_not_there(conn: Connection) -> None:
    await put(conn, "nightly", enabled=True)
    await jobs.put(conn, ACTOR, "shop.sell", echo())
    await put(conn, "sales", job="shop.sell")
    for operation in (
        schedules.show(conn, OF_SHOP, "nightly"),
        schedules.edit(conn, OF_SHOP, "nightly", {"every": 60}),
        schedules.enable(conn, OF_SHOP, "nightly"),
        schedules.disable(conn, OF_SHOP, "nightly"),
        schedules.run(conn, OF_SHOP, "nightly"),
        schedules.delete(conn, OF_SHOP, "nightly"),
    ):
        with pytest.raises(ScheduleNotFound):
            await operation
    with pytest.raises(NameTaken, match="is not free"):
        await schedules.put(conn, OF_SHOP, "nightly", ScheduleSpec(job="shop.sell", every=60))
    for spec in (ScheduleSpec(job="hello", every=60), ScheduleSpec(job="hello", daily="03:00")):
        with pytest.raises(JobNotFound):
            await schedules.put(conn, OF_SHOP, "mine", spec)
    with pytest.raises(JobNotFound):
        await schedules.edit(conn, OF_SHOP, "sales", {"job": "hello"})
    step = await schedules.act(conn, OF_SHOP, "disable", ScheduleFilter())
    assert (step.done, step.next) == (1, None)
    assert (await schedules.show(conn, ACTOR, "nightly")).schedule.enabled


async def test_an_action_goes_step_by_step_through_all_that_match(conn: Connection) -> None:
    for number in range(5):
        await put(conn, f"s{number}")
    wanted = ScheduleFilter(name=["s*"], state=["disabled"])
    step = await schedules.act(conn, ACTOR, "enable", wanted, limit=2)
    assert (step.done, step.skipped) == (2, [])
    assert same_in_json(step, ActionStep)
    await put(conn, "s9")
    await put(conn, "s31")
    done = step.done
    while step.next is not None:
        step = await schedules.act(conn, ACTOR, "enable", wanted, limit=2, cursor=step.next)
        done += step.done
    assert done == 5
    assert await names(conn, state=["disabled"]) == ["s31", "s9"], "made since the first step"
    with pytest.raises(BadCursor):
        first = await schedules.act(conn, ACTOR, "enable", wanted, limit=1)
        await schedules.act(conn, ACTOR, "disable", wanted, cursor=first.next)


async def test_an_action_names_what_it_could_not_do_and_stops_in_time(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(conn, "a", every=UNSET, daemon=1)
    await put(conn, "b")
    step = await schedules.act(conn, ACTOR, "run", ScheduleFilter())
    assert (step.done, [(one.name, one.code) for one in step.skipped]) == (1, [("a", "invalid_transition")])
    monkeypatch.setattr(schedules, "ACT_SECONDS", -1)
    step = await schedules.act(conn, ACTOR, "enable", ScheduleFilter())
    assert (step.done, step.next is not None, await names(conn, state=["enabled"])) == (1, True, ["a"])
    step = await schedules.act(conn, ACTOR, "enable", ScheduleFilter(), cursor=step.next)
    assert (step.done, step.next, await names(conn, state=["enabled"])) == (1, None, ["a", "b"])
    with pytest.raises(ValidationError):
        await schedules.act(conn, ACTOR, "delete", ScheduleFilter())  # type: ignore[arg-type]


async def test_a_bad_name_is_refused(conn: Connection) -> None:
    for name in (BAD_NAME, ".."):
        for operation in (schedules.show, schedules.enable, schedules.disable, schedules.delete, schedules.run):
            with pytest.raises(ValidationError):
                await operation(conn, ACTOR, name)
        with pytest.raises(ValidationError):
            await schedules.put(conn, ACTOR, name, NIGHTLY)
