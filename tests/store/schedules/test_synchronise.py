"""Synchronise: schedules of an application's code: additive, versioned, from many replicas at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.schedules import at, create, ledger, planned, set_clock

from mainspring.errors import Conflict, NotFound
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules
from mainspring.store.schedules.synchronise import put_calendars, synchronise
from mainspring.store.tasks import jobs


@pytest.fixture(autouse=True)
async def _job(conn: Connection) -> None:
    await set_clock(conn, 0)
    await jobs.register(conn, {"job": Definition(Python("job"))})


def said(name: str = "report", **options: Any) -> Schedule:
    return define_schedule(name, "job", {"every": 5, **options})  # type: ignore[typeddict-item]


def by_hand(schedule: Schedule) -> Schedule:
    return replace(schedule, expression="60")


async def version(conn: Connection) -> tuple[int, str]:
    stored = await schedules.find(conn, "report")
    return stored.version, stored.schedule.expression


async def test_what_the_code_says_is_made_enabled(conn: Connection) -> None:
    assert await synchronise(conn, "shop", 1, [said(), said("other")]) == ["other", "report"]
    stored = await schedules.find(conn, "report")
    assert (stored.enabled, stored.app, stored.app_version, stored.code, stored.is_edited) == (
        True,
        "shop",
        1,
        said(),
        False,
    )
    assert (stored.next_plan_at, stored.is_orphan) == (at(5), False)


async def test_a_restart_changes_nothing_but_when_it_was_seen(conn: Connection) -> None:
    given = [said(scopes=["a"], start=at(-5), jitter=1, calendars=["work"])]
    await put_calendars(conn, {"work": ["sun"]})
    await synchronise(conn, "shop", 1, given)
    await set_clock(conn, 60)
    assert await synchronise(conn, "shop", 1, given) == []
    stored = await schedules.find(conn, "report")
    assert (stored.version, stored.is_orphan, stored.is_edited) == (1, False, False)


async def test_a_change_of_the_code_is_a_change_of_the_schedule(conn: Connection) -> None:
    await synchronise(conn, "shop", 1, [said()])
    await planned(conn)
    assert await synchronise(conn, "shop", 1, [said(every=7)]) == ["report"]
    assert await version(conn) == (2, "7")
    assert await ledger(conn, 1) == []


async def test_what_people_changed_stays_until_the_code_says_something_new(conn: Connection) -> None:
    await synchronise(conn, "shop", 1, [said()])
    await schedules.change(conn, "report", by_hand, enabled=False)
    assert (await schedules.find(conn, "report")).is_edited
    assert await synchronise(conn, "shop", 1, [said()]) == []
    assert await synchronise(conn, "shop", 2, [said()]) == [], "another deployment with the same code"
    assert await version(conn) == (2, "60")
    assert await synchronise(conn, "shop", 2, [said(every=7)]) == ["report"]
    stored = await schedules.find(conn, "report")
    assert (stored.schedule.expression, stored.is_edited) == ("7", False)
    assert not stored.enabled, "a pause is a person's; the code does not end it"


async def test_an_older_deployment_leaves_alone_what_a_newer_one_said(conn: Connection) -> None:
    await synchronise(conn, "shop", 2, [said(every=7)])
    assert await synchronise(conn, "shop", 1, [said()]) == []
    assert await version(conn) == (1, "7")
    assert (await schedules.find(conn, "report")).app_version == 2
    await synchronise(conn, "shop", 3, [said(every=7)])
    assert (await schedules.find(conn, "report")).app_version == 3
    assert await version(conn) == (1, "7")


async def test_nothing_is_deleted_that_the_code_says_no_more(conn: Connection) -> None:
    await synchronise(conn, "shop", 1, [said(), said("other")])
    assert await synchronise(conn, "shop", 2, [said()]) == []
    assert (await schedules.find(conn, "other")).enabled


async def test_code_and_people_are_kept_apart(conn: Connection) -> None:
    await create(conn, every=9)
    with pytest.raises(Conflict, match="a schedule named 'report' was made by hand; give the one in the code another"):
        await synchronise(conn, "shop", 1, [said()])
    await synchronise(conn, "shop", 1, [said("mine")])
    with pytest.raises(Conflict, match="belongs to the application 'shop'"):
        await synchronise(conn, "bank", 1, [said("mine")])
    assert await version(conn) == (1, "9")


async def test_many_replicas_that_start_at_once_make_one_of_each(dsn: str, conn: Connection) -> None:
    hands = [await Database(dsn).connect() for _ in range(5)]
    given = [said(f"s{number}") for number in range(10)]
    orders = [given if number % 2 else given[::-1] for number in range(5)]
    changed = await asyncio.gather(*(synchronise(h, "shop", 1, o) for h, o in zip(hands, orders, strict=True)))
    assert sorted(name for names in changed for name in names) == sorted(s.name for s in given)
    newer = [replace(schedule, expression="7") for schedule in given]
    orders = [newer if number % 2 else newer[::-1] for number in range(5)]
    changed = await asyncio.gather(*(synchronise(h, "shop", 2, o) for h, o in zip(hands, orders, strict=True)))
    assert sorted(name for names in changed for name in names) == sorted(s.name for s in given)
    assert {stored.version for stored in await schedules.listing(conn)} == {2}
    for hand in hands:
        await hand.close()


async def test_old_and_new_replicas_at_once_leave_what_the_new_ones_say(dsn: str, conn: Connection) -> None:
    hands = [await Database(dsn).connect() for _ in range(4)]
    for _ in range(5):
        await asyncio.gather(*(synchronise(h, "shop", 1 + n % 2, [said(every=5 + n % 2)]) for n, h in enumerate(hands)))
    assert (await version(conn))[1] == "6"
    assert (await version(conn))[0] <= 2
    for hand in hands:
        await hand.close()


async def test_a_provider_belongs_to_its_application(conn: Connection) -> None:
    told = define_schedule("report", "job", {"every": 5}, provider="tenants")
    await synchronise(conn, "shop", 1, [told])
    assert await conn.fetchval("select provider_app from mainspring.schedule") == "shop"
    await synchronise(conn, "shop", 1, [said()])
    assert await conn.fetchval("select provider_app from mainspring.schedule") is None
    await synchronise(conn, "shop", 1, [told])
    assert await conn.fetchval("select provider_app from mainspring.schedule") == "shop"


async def test_what_will_never_run_again_does_not_keep_an_application_from_starting(conn: Connection) -> None:
    once = define_schedule("report", "job", {"once": at(5)})
    await synchronise(conn, "shop", 1, [once])
    await set_clock(conn, 3600)
    await synchronise(conn, "shop", 1, [once])
    past = define_schedule("past", "job", {"once": at(5)})
    await synchronise(conn, "shop", 1, [past])
    assert (await schedules.find(conn, "past")).next_plan_at is None


async def test_a_calendar_that_is_missing_is_said(conn: Connection) -> None:
    with pytest.raises(NotFound, match="no calendar named 'nope'"):
        await synchronise(conn, "shop", 1, [said(calendars=["nope"])])
