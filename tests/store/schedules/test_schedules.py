"""Schedules: created, found, changed, paused, deleted, run now."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cluster import OWNER
from tests.schedules import Entry, at, create, ledger, live, planned, set_clock

from mainspring.errors import Conflict, InvalidTransition, JobNotFound, ScheduleNotFound, ValidationError
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.schedules.schedules import Schedule
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import backfill, explain, plans, schedules


def every(period: str) -> Any:
    return lambda schedule: replace(schedule, expression=period)


def same(schedule: Schedule) -> Schedule:
    return schedule


@pytest.fixture(autouse=True)
async def _clock(conn: Connection) -> None:
    await set_clock(conn, 0)


# ── making ──────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_made_is_found_as_it_was_defined(conn: Connection) -> None:
    await create(conn, cron="0 9 * * *", tz="Europe/Paris", scopes=["eu"], args={"ü": [1]}, max_runs=3)
    stored = await schedules.find(conn, "report")
    assert stored.schedule == define_schedule(
        "report", "job", {"cron": "0 9 * * *", "tz": "Europe/Paris", "scopes": ["eu"], "max_runs": 3}, args={"ü": [1]}
    )
    assert (stored.enabled, stored.version, stored.runs, stored.app, stored.is_edited) == (True, 1, 0, None, False)
    assert stored.since == stored.created_at == stored.now == at(0)
    assert stored.next_plan_at == at(19 * 3600), "summer time begins in that night"
    assert [found.schedule.name for found in await schedules.listing(conn, job="job")] == ["report"]
    assert await schedules.listing(conn, job="other") == []


async def test_the_first_plan_time_comes_after_the_making(conn: Connection) -> None:
    await create(conn, every=5)
    assert (await schedules.find(conn, "report")).next_plan_at == at(5), "not the one of this very instant"


async def test_the_latest_plan_time_runs_when_it_is_made_and_the_plan_goes_on_behind_it(conn: Connection) -> None:
    await set_clock(conn, 17)
    await create(conn, every=10, first="latest", scopes=["eu", "us"], overlap="skip")
    rows = await conn.fetch("select plan_time, scope, origin, run_at, args from mainspring.task order by scope")
    assert [tuple(row)[:4] for row in rows] == [(at(10), "eu", "plan", at(17)), (at(10), "us", "plan", at(17))]
    stored = await schedules.find(conn, "report")
    assert (stored.runs, stored.next_plan_at) == (1, at(20))
    assert await conn.fetchval("select count(*) from mainspring.fire where reason is null and origin = 'plan'") == 2
    [told] = await explain.explain(conn, stored, at(10))
    assert (told.status, told.expected, told.said) == (
        "decided", True, ["expected: it was the latest plan time when the schedule began (first=latest)"],
    )  # fmt: skip
    schedule = stored.schedule
    assert not await schedules.create(conn, schedule, enabled=True), "another start of its application"
    assert len(await live(conn, stored.id)) == 2


async def test_a_plan_time_of_this_very_instant_is_the_latest(conn: Connection) -> None:
    await set_clock(conn, 20)
    await create(conn, every=10, first="latest", max_runs=1)
    stored = await schedules.find(conn, "report")
    assert (await conn.fetchval("select plan_time from mainspring.task"), stored.next_plan_at) == (at(20), at(30))
    assert stored.runs == 1, "its only one"


async def test_a_schedule_that_is_made_disabled_runs_its_latest_plan_time_when_it_is_first_enabled(
    conn: Connection,
) -> None:
    id = await create(conn, every=10, first="latest", enabled=False)
    assert await live(conn, id) == []
    await set_clock(conn, 25)
    for enabled in (True, False, True):
        await schedules.change(conn, "report", lambda schedule: schedule, enabled=enabled)
    assert await conn.fetchval("select array_agg(plan_time) from mainspring.fire") == [at(20)], "once"


async def test_before_its_start_a_schedule_has_no_latest_plan_time(conn: Connection) -> None:
    id = await create(conn, every=10, first="latest", start=at(100).isoformat())
    assert await live(conn, id) == []
    with pytest.raises(ValidationError, match="told by its code at plan time"):
        define_schedule("s", "job", {"every": 10, "first": "latest"}, provider="tenants")


async def test_a_disabled_schedule_has_no_cursor_and_is_never_due(conn: Connection) -> None:
    await create(conn, every=5, enabled=False)
    assert (await schedules.find(conn, "report")).next_plan_at is None
    await set_clock(conn, 100)
    assert await plans.due(conn, OWNER, 10) == []


async def test_a_name_is_taken_once(dsn: str, conn: Connection) -> None:
    await create(conn, every=5)
    schedule = (await schedules.find(conn, "report")).schedule
    assert not await schedules.create(conn, replace(schedule, expression="9"), enabled=True)
    assert (await schedules.find(conn, "report")).schedule == schedule
    hands = [await Database(dsn).connect() for _ in range(4)]
    made = await asyncio.gather(
        *(schedules.create(hand, replace(schedule, name="other"), enabled=True) for hand in hands)
    )
    assert sorted(made) == [False, False, False, True]
    for hand in hands:
        await hand.close()


async def test_what_cannot_be_made(conn: Connection) -> None:
    await create(conn, every=5)
    with pytest.raises(JobNotFound, match="no job named 'nothing'; make it first"):
        await schedules.create(conn, define_schedule("x", "nothing", {"every": 5}), enabled=True)
    with pytest.raises(ValidationError, match="no plan time would ever come"):
        await schedules.create(conn, define_schedule("x", "job", {"once": at(0)}), enabled=True)
    with pytest.raises(ScheduleNotFound, match="no schedule named 'x'; `mainspring schedule list`"):
        await schedules.find(conn, "x")


async def test_a_daemon_has_no_plan_times(conn: Connection) -> None:
    await create(conn, daemon=2)
    assert (await schedules.find(conn, "report")).next_plan_at is None
    with pytest.raises(InvalidTransition, match="keeps replicas running"):
        await backfill.run_now(conn, "report")


# ── changing ────────────────────────────────────────────────────────────────────────────────────


async def test_an_edit_makes_a_version_that_counts_from_now_on(conn: Connection) -> None:
    id = await create(conn, every=5)
    await set_clock(conn, 2)
    changed = await schedules.change(conn, "report", every("7"))
    assert (changed.stored.version, changed.stored.since, changed.stored.next_plan_at) == (2, at(2), at(6))
    row = await conn.fetchrow("select * from mainspring.schedule_version where schedule_id = $1", id)
    assert (row["version"], row["since"], row["until"], row["expression"], row["enabled"]) == (
        1,
        at(0),
        at(2),
        "5",
        True,
    )


async def test_an_unchanged_schedule_keeps_its_version(conn: Connection) -> None:
    await create(conn, every=5)
    for enabled in (None, True):
        assert (await schedules.change(conn, "report", same, enabled=enabled)).recalled is None
    assert (await schedules.find(conn, "report")).version == 1


async def test_an_edit_that_would_never_run_is_refused_and_changes_nothing(conn: Connection) -> None:
    await create(conn, every=5)
    before = await schedules.find(conn, "report")
    with pytest.raises(ValidationError, match="no plan time would ever come"):
        await schedules.change(conn, "report", lambda s: replace(s, policies=replace(s.policies, end=at(-1))))
    with pytest.raises(JobNotFound):
        await schedules.change(conn, "report", lambda s: replace(s, job="nothing"))
    assert await schedules.find(conn, "report") == before


async def test_what_had_passed_before_an_edit_is_decided_by_the_old_version(conn: Connection) -> None:
    id = await create(conn, every=5, catch_up="all")
    await set_clock(conn, 12)
    changed = await schedules.change(conn, "report", every("7"))
    assert changed.stored.next_plan_at == at(5), "nobody has decided about 5 and 10 yet"
    await set_clock(conn, 13)
    await planned(conn)
    assert [entry.at for entry in await ledger(conn, id)] == [5, 10, 13, 20]


async def test_two_edits_in_an_outage(conn: Connection) -> None:
    id = await create(conn, every=5, catch_up="all")
    await set_clock(conn, 12)
    await schedules.change(conn, "report", every("7"))
    await set_clock(conn, 22)
    await schedules.change(conn, "report", every("11"))
    await set_clock(conn, 40)
    await planned(conn)
    assert [entry.at for entry in await ledger(conn, id)] == [5, 10, 13, 20, 28, 39, 50]


async def test_a_pause_and_a_resume(conn: Connection) -> None:
    id = await create(conn, every=5, catch_up="all")
    await set_clock(conn, 2)
    paused = await schedules.change(conn, "report", same, enabled=False)
    assert not paused.stored.enabled
    await set_clock(conn, 22)
    assert await plans.due(conn, OWNER, 10) == []
    resumed = await schedules.change(conn, "report", same, enabled=True)
    assert (resumed.stored.version, resumed.stored.next_plan_at) == (3, at(5))
    await planned(conn)
    found = [(entry.at, entry.reason) for entry in await ledger(conn, id)]
    assert found == [(5, "paused"), (10, "paused"), (15, "paused"), (20, "paused"), (25, None), (30, None)]


async def test_an_edit_while_it_is_paused_leaves_it_paused(conn: Connection) -> None:
    await create(conn, every=5)
    await schedules.change(conn, "report", same, enabled=False)
    edited = await schedules.change(conn, "report", every("7"))
    assert not edited.stored.enabled
    await set_clock(conn, 100)
    assert await plans.due(conn, OWNER, 10) == []


async def test_edits_at_once_are_made_one_after_another(dsn: str, conn: Connection) -> None:
    await create(conn, every=5)
    hands = [await Database(dsn).connect() for _ in range(5)]
    periods = [str(20 + number) for number in range(5)]
    await asyncio.gather(
        *(schedules.change(hand, "report", every(period)) for hand, period in zip(hands, periods, strict=True))
    )
    assert (await schedules.find(conn, "report")).version == 6
    rows = await conn.fetch("select expression from mainspring.schedule_version order by version")
    assert {row["expression"] for row in rows} < {"5", *periods}
    for hand in hands:
        await hand.close()


async def test_a_change_that_waited_for_the_row_is_in_force_from_when_it_got_it(dsn: str, conn: Connection) -> None:
    # A function that is replaced in another's transaction is not seen in time: this clock is a row.
    await conn.execute("create table mainspring.test_clock (at timestamptz)")
    await conn.execute("insert into mainspring.test_clock values ($1)", at(0))
    await conn.execute("""
        create or replace function mainspring.now() returns timestamptz language sql volatile
            as 'select at from mainspring.test_clock'
    """)
    await create(conn, every=5)
    elsewhere = await Database(dsn).connect()
    pid = await elsewhere.fetchval("select pg_backend_pid()")
    async with conn.transaction():
        await schedules.find(conn, "report", lock=True)  # and leaves it as it is, so that nothing is read anew
        waiting = asyncio.create_task(schedules.change(elsewhere, "report", every("9")))
        async with asyncio.timeout(20):
            while not await conn.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid):
                await asyncio.sleep(0.005)
        await conn.execute("update mainspring.test_clock set at = $1", at(3))
    assert (await waiting).stored.since == at(3)
    await elsewhere.close()


async def test_an_edit_wakes_the_planners(dsn: str, conn: Connection) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await Database(dsn).connect()
    await listener.add_listener("mainspring", lambda *a: heard.put_nowait(a[3]))
    await create(conn, every=5)
    async with asyncio.timeout(20):
        while await heard.get() != "schedule":
            pass
        await schedules.change(conn, "report", every("7"))
        while await heard.get() != "schedule":
            pass
    await listener.close()


async def test_a_deleted_schedule_leaves_its_ledger(conn: Connection) -> None:
    id = await create(conn, every=5)
    await set_clock(conn, 100)
    await planned(conn)
    await schedules.change(conn, "report", every("7"))
    before = [entry for entry in await ledger(conn, id) if entry.at <= 100]
    assert len(before) == 20
    await schedules.delete(conn, "report")
    with pytest.raises(ScheduleNotFound):
        await schedules.find(conn, "report")
    assert [entry.at for entry in await ledger(conn, id)] == [entry.at for entry in before]
    assert await conn.fetchval("select count(*) from mainspring.schedule_version") == 0
    with pytest.raises(ScheduleNotFound):
        await schedules.delete(conn, "report")


# ── run now ─────────────────────────────────────────────────────────────────────────────────────


async def test_run_now_runs_all_scopes_beside_the_plan(conn: Connection) -> None:
    id = await create(conn, every=5, scopes=["a", "b"], args={"x": 1}, takes=("scope",), overlap="skip")
    before = await schedules.find(conn, "report")
    tasks = await backfill.run_now(conn, "report")
    rows = await conn.fetch("select id, args, state, run_at from mainspring.task order by scope")
    assert [(row["args"], row["state"], row["run_at"]) for row in rows] == [
        ('{"x": 1, "scope": "a"}', 1, at(0)),
        ('{"x": 1, "scope": "b"}', 1, at(0)),
    ]
    assert sorted(row["id"] for row in rows) == sorted(tasks)
    assert await ledger(conn, id, origin="manual") == [Entry(0.000001, "a", None), Entry(0.000001, "b", None)]
    after = await schedules.find(conn, "report")
    assert (after.runs, after.next_plan_at) == (before.runs, before.next_plan_at)
    await set_clock(conn, 1)
    assert len(await backfill.run_now(conn, "report", ["b", "b"])) == 1, "a scope that is named twice runs once"


async def test_run_now_of_a_paused_schedule(conn: Connection) -> None:
    id = await create(conn, every=5, enabled=False)
    await backfill.run_now(conn, "report")
    assert len(await live(conn, id)) == 1


async def test_scopes_that_a_schedule_does_not_have_are_not_run(conn: Connection) -> None:
    await create(conn, every=5, scopes=["a"])
    with pytest.raises(Conflict, match="has no scope 'b'; it has: a"):
        await backfill.run_now(conn, "report", ["b"])
    await create(conn, "told", every=5, app="shop", provider="tenants", scopes=list)
    with pytest.raises(Conflict, match="told by its application; name those to run with --scope"):
        await backfill.run_now(conn, "told")
    assert len(await backfill.run_now(conn, "told", ["anything"])) == 1


async def test_two_runs_at_the_same_instant_are_two_runs_also_within_a_transaction(conn: Connection) -> None:
    await create(conn, every=3600)
    async with conn.transaction():
        first, second = [await backfill.run_now(conn, "report") for _ in range(2)]
    assert len({*first, *second}) == 2
