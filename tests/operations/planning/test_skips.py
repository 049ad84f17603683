"""Skips: plan times that a person takes out before they come, and takes back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cluster import OWNER, server_lease
from tests.operations.conftest import ACTOR, same_in_json
from tests.schedules import Entry, at, claimed, create, ledger, live, planned, set_clock, started

from mainspring.errors import InvalidTransition, ScheduleNotFound, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.model.tasks.states import PENDING
from mainspring.operations import access
from mainspring.operations.definitions import schedules
from mainspring.operations.planning import backfill, forecast, plan_times, skips, timeline
from mainspring.operations.planning.forecast import Forecast
from mainspring.operations.planning.skips import SkipChange
from mainspring.server.planning.planner import Planner
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import plans, revoke
from mainspring.store.schedules import schedules as stored_schedules

ALICE = Actor("os:alice@host", Role.OPERATOR)


@pytest.fixture
async def report(conn: Connection) -> int:
    """Every ten seconds; it is 12:00:15, and 20 is due soon."""
    await set_clock(conn, 10)
    report = await create(conn, every=10)
    await set_clock(conn, 15)
    return report


async def went_by(conn: Connection, *times: int) -> None:
    """The clock goes on, and planners look."""
    for time in times:
        await set_clock(conn, time)
        await planned(conn)


# ── skip ────────────────────────────────────────────────────────────────────────────────────────


async def test_the_next_plan_times_are_skipped_and_the_one_behind_them_runs(conn: Connection, report: int) -> None:
    change = await skips.skip(conn, ALICE, "report", next=2, note="release")
    assert change.plan_times == [at(20), at(30)]
    assert (change.changed, change.more, change.schedule.next) == (True, False, at(40))
    assert [(one.start, one.until, one.by, one.note) for one in change.schedule.skips] == [
        (at(20), at(20), "os:alice@host", "release"),
        (at(30), at(30), "os:alice@host", "release"),
    ]
    assert same_in_json(change, SkipChange)
    await went_by(conn, 18, 28, 38)
    assert await ledger(conn, report) == [Entry(20, "", "skipped"), Entry(30, "", "skipped"), Entry(40, "", None)]
    assert (await stored_schedules.find(conn, "report")).runs == 1


async def test_a_second_call_skips_the_ones_behind(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", next=1)
    assert (await skips.skip(conn, ALICE, "report", next=2)).plan_times == [at(30), at(40)]


async def test_single_plan_times_are_skipped(conn: Connection, report: int) -> None:
    change = await skips.skip(conn, ALICE, "report", at=[at(50), at(30), at(50)])
    assert change.plan_times == [at(30), at(50)]
    again = await skips.skip(conn, ALICE, "report", at=[at(30)])
    assert (again.changed, again.plan_times, len(again.schedule.skips)) == (False, [], 2)


async def test_all_until_an_instant_are_skipped_with_it(conn: Connection, report: int) -> None:
    change = await skips.skip(conn, ALICE, "report", until=at(40))
    assert (change.plan_times, change.schedule.next) == ([at(20), at(30), at(40)], at(50))
    assert not (await skips.skip(conn, ALICE, "report", until=at(40))).changed
    longer = await skips.skip(conn, ALICE, "report", until=at(60))
    assert longer.plan_times == [at(50), at(60)], "those that were not skipped before"
    await went_by(conn, *range(18, 70, 10))
    assert [(one.at, one.reason) for one in await ledger(conn, report)] == [
        *((second, "skipped") for second in (20, 30, 40, 50, 60)),
        (70, None),
    ]


async def test_of_many_the_first_are_told(conn: Connection, report: int) -> None:
    change = await skips.skip(conn, ALICE, "report", until=at(86_400))
    assert (len(change.plan_times), change.more) == (skips.TOLD, True)


async def test_all_scopes_of_a_plan_time_are_skipped(conn: Connection) -> None:
    await set_clock(conn, 10)
    report = await create(conn, every=10, scopes=["eu", "us"])
    await skips.skip(conn, ALICE, "report", next=1)
    await went_by(conn, 18)
    assert await ledger(conn, report) == [Entry(20, "eu", "skipped"), Entry(20, "us", "skipped")]


REFUSED = {
    "nothing": ({}, ValidationError, "give one of them"),
    "two": ({"next": 1, "until": at(60)}, ValidationError, "give one of them"),
    "none": ({"next": 0}, ValidationError, "next: 0; give 1 to"),
    "too many": ({"next": 10_000}, ValidationError, "give 1 to"),
    "no plan time": (
        {"at": [at(25)]},
        ValidationError,
        r"is no plan time of 'report'; .*12:00:20.*12:00:30",
    ),
    "passed": ({"at": [at(10)]}, InvalidTransition, "has passed"),
    "now": ({"until": at(15)}, InvalidTransition, "has passed"),
    "without an offset": ({"until": at(60).replace(tzinfo=None)}, ValidationError, "until"),
    "a bad note": ({"next": 1, "note": "a\0b"}, ValidationError, "note"),
}


@pytest.mark.parametrize("given", REFUSED)
async def test_what_cannot_be_skipped_is_refused(conn: Connection, report: int, given: str) -> None:
    options, error, message = REFUSED[given]
    with pytest.raises(error, match=message):
        await skips.skip(conn, ALICE, "report", **options)  # type: ignore[arg-type]
    assert await conn.fetchval("select skips from mainspring.schedule") == 0


async def test_a_daemon_has_nothing_to_skip(conn: Connection) -> None:
    await create(conn, daemon=1)
    with pytest.raises(InvalidTransition, match="mainspring daemon stop"):
        await skips.skip(conn, ALICE, "report", next=1)


async def test_a_schedule_of_another_job_is_not_found(conn: Connection, report: int) -> None:
    other = Actor("token:other", Role.OPERATOR, jobs=("shop*",))
    for act in (skips.skip, skips.unskip):
        with pytest.raises(ScheduleNotFound):
            await act(conn, other, "report", next=1)


async def test_it_is_audited(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", next=1, note="release")
    await skips.unskip(conn, ALICE, "report", note="off")
    await skips.unskip(conn, ALICE, "report")  # changes nothing
    found = await access.list_audit(conn, ACTOR)
    told = [(one.actor, one.action, one.subject, one.detail and one.detail["note"]) for one in found.items]
    assert told == [
        ("os:alice@host", "schedule.unskip", "schedule:report", "off"),
        ("os:alice@host", "schedule.skip", "schedule:report", "release"),
    ]


# ── tasks that were planned ahead ───────────────────────────────────────────────────────────────


async def test_a_task_that_was_planned_ahead_is_taken_back(conn: Connection, report: int) -> None:
    await went_by(conn, 18)
    assert await live(conn, report) == [(20, PENDING)]
    change = await skips.skip(conn, ALICE, "report", next=1)
    assert (change.recalled.taken_back, change.recalled.asked_back) == (1, 0)
    await planned(conn)
    assert await live(conn, report) == []
    assert await ledger(conn, report) == [Entry(20, "", "skipped")]
    stored = await stored_schedules.find(conn, "report")
    assert (stored.runs, stored.next_plan_at) == (0, at(30))


async def test_a_task_that_is_armed_is_asked_back(conn: Connection, report: int) -> None:
    await went_by(conn, 18)
    [armed] = await claimed(conn)
    change = await skips.skip(conn, ALICE, "report", next=1)
    assert (change.recalled.taken_back, change.recalled.asked_back) == (0, 1)
    await set_clock(conn, 21)  # the agent answers late
    assert await revoke.confirm(conn, [armed.task], [armed.token]) == [armed.task]
    await planned(conn)
    assert await ledger(conn, report) == [Entry(20, "", "skipped"), Entry(30, "", None)]


async def test_a_task_that_started_first_runs_on(conn: Connection, report: int) -> None:
    await went_by(conn, 18)
    armed = await claimed(conn)
    await skips.skip(conn, ALICE, "report", next=1)
    await started(conn, armed)
    assert await revoke.confirm(conn, [armed[0].task], [armed[0].token]) == []
    await planned(conn)
    assert await ledger(conn, report) == [Entry(20, "", None)]


async def test_what_is_not_skipped_is_not_taken_back(conn: Connection, report: int) -> None:
    await went_by(conn, 21)  # 20, and 30 ahead
    assert [at for at, _ in await live(conn, report)] == [20, 30]
    await skips.skip(conn, ALICE, "report", at=[at(30)])
    assert [at for at, _ in await live(conn, report)] == [20]


# ── planners at the same moment ─────────────────────────────────────────────────────────────────


async def test_a_planner_that_read_before_the_skip_writes_nothing(conn: Connection, report: int) -> None:
    await set_clock(conn, 18)
    found = await plans.due(conn, OWNER, 10)
    await skips.skip(conn, ALICE, "report", next=1)
    assert await planned(conn, found) == set()
    assert await planned(conn) == {report}
    assert await ledger(conn, report) == [Entry(20, "", "skipped")]


async def test_a_planner_that_read_before_it_was_taken_back_writes_nothing(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", next=1)
    await set_clock(conn, 18)
    found = await plans.due(conn, OWNER, 10)
    await skips.unskip(conn, ALICE, "report")
    assert await planned(conn, found) == set()
    await planned(conn)
    assert await ledger(conn, report) == [Entry(20, "", None)]


async def test_a_skip_withdraws_what_was_planned_before_another_was_taken_back(conn: Connection) -> None:
    """Taking one back moves the cursor back, and no planner has run since: later plan times have tasks already."""
    await set_clock(conn, 0)
    schedule = await create(conn, "s", every=1, anchor=at(0).isoformat())
    await skips.skip(conn, ALICE, "s", next=1)
    await planned(conn)
    await skips.unskip(conn, ALICE, "s", next=1)
    await skips.skip(conn, ALICE, "s", at=[at(5)])
    left = await conn.fetch("select plan_time from mainspring.task where schedule_id = $1", schedule)
    assert at(4) in {row[0] for row in left}
    assert at(5) not in {row[0] for row in left}
    await planned(conn)
    reasons = {entry.at: entry.reason for entry in await ledger(conn, schedule)}
    assert (reasons[1], reasons[4], reasons[5]) == (None, None, "skipped")


async def test_skips_against_planners_leave_no_task_of_a_skipped_plan_time(dsn: str, conn: Connection) -> None:
    """Two planners plan all the time, while skips come and go; at the end the ledger agrees with the skips."""
    await set_clock(conn, 0)
    ids = [await create(conn, f"s{number}", every=1, anchor=at(0).isoformat()) for number in range(5)]
    hands = [await Database(dsn).connect() for _ in range(3)]
    is_over = False

    async def plan(hand: Connection) -> None:
        while not is_over:
            await planned(hand)

    async def change(hand: Connection) -> None:
        for round in range(60):
            name = f"s{round % 5}"
            await skips.skip(hand, ALICE, name, next=1 + round % 3)
            if round % 4 == 0:
                await skips.unskip(hand, ALICE, name, next=1)

    planning = [asyncio.create_task(plan(hand)) for hand in hands[:2]]
    await asyncio.gather(change(hands[2]))
    is_over = True
    await asyncio.gather(*planning)
    await planned(conn)
    rows = await conn.fetch("""
        select f.schedule_id, f.plan_time, f.reason,
               exists (select from mainspring.schedule_skip k where k.schedule_id = f.schedule_id
                          and f.plan_time between k.start and k.stop) as is_skipped,
               (select count(*) from mainspring.task t
                 where t.schedule_id = f.schedule_id and t.plan_time = f.plan_time) as tasks
          from mainspring.fire f
    """)
    assert len(rows) == len(ids) * 10, "the plan-ahead window"
    for row in rows:
        assert (row["reason"] == "skipped") == row["is_skipped"]
        assert row["tasks"] == (0 if row["is_skipped"] else 1)
    for hand in hands:
        await hand.close()


async def test_a_planner_counts_what_is_skipped_and_warns_of_nothing(
    dsn: str, conn: Connection, report: int, caplog: pytest.LogCaptureFixture
) -> None:
    await skips.skip(conn, ALICE, "report", next=1)
    await set_clock(conn, 18)
    database = Database(dsn)
    planner = Planner(database, server_lease(), None, {})
    assert await planner.step() == 1
    await database.close()
    assert planner.tally.fires["skipped"] == 1
    assert "plan times without a task" not in caplog.text


# ── take back ───────────────────────────────────────────────────────────────────────────────────


async def test_a_skip_is_taken_back(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", next=3)
    change = await skips.unskip(conn, ALICE, "report", at=[at(30)])
    assert (change.plan_times, change.schedule.next) == ([at(30)], at(30))
    await went_by(conn, *range(18, 50, 10))
    assert [one.reason for one in await ledger(conn, report)] == ["skipped", None, "skipped", None]


async def test_a_part_of_a_long_skip_is_taken_back(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", until=at(100))
    assert (await skips.unskip(conn, ALICE, "report", next=1)).plan_times == [at(20)]
    assert (await skips.unskip(conn, ALICE, "report", at=[at(50)])).plan_times == [at(50)]
    await went_by(conn, *range(18, 110, 10))
    ran = [one.at for one in await ledger(conn, report) if one.reason is None]
    assert ran == [20, 50, 110]


async def test_what_a_planner_decided_ahead_is_taken_back_too(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", next=1)
    await went_by(conn, 18)
    assert (await stored_schedules.find(conn, "report")).next_plan_at == at(30)
    assert (await skips.unskip(conn, ALICE, "report")).plan_times == [at(20)]
    await planned(conn)
    assert await live(conn, report) == [(20, PENDING)]
    assert await ledger(conn, report) == [Entry(20, "", None)]


async def test_what_has_passed_is_not_taken_back(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", until=at(40))
    await went_by(conn, 18, 28)
    await set_clock(conn, 31)
    with pytest.raises(InvalidTransition, match="has passed"):
        await skips.unskip(conn, ALICE, "report", at=[at(30)])
    assert (await skips.unskip(conn, ALICE, "report")).plan_times == [at(40)]
    await went_by(conn, 38)
    assert [(one.at, one.reason) for one in await ledger(conn, report)] == [
        (20, "skipped"),
        (30, "skipped"),
        (40, None),
    ]
    found = await plan_times.fires(conn, ALICE, "report")
    assert [one.skipped_by for one in found.items] == [None, "os:alice@host", "os:alice@host"], "it is still known why"


async def test_what_is_not_skipped_cannot_be_taken_back(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", next=1)
    with pytest.raises(InvalidTransition, match="12:00:30.*is not skipped"):
        await skips.unskip(conn, ALICE, "report", at=[at(30)])
    assert (await skips.unskip(conn, ALICE, "report", next=5)).plan_times == [at(20)]
    assert not (await skips.unskip(conn, ALICE, "report")).changed


async def test_the_only_run_of_a_schedule_is_skipped_and_taken_back(conn: Connection) -> None:
    await set_clock(conn, 10)
    report = await create(conn, once=at(20).isoformat())
    await skips.skip(conn, ALICE, "report", next=1)
    await went_by(conn, 18)
    assert (await schedules.show(conn, ALICE, "report")).schedule.state == "ended"
    await skips.unskip(conn, ALICE, "report")
    await planned(conn)
    assert await live(conn, report) == [(20, PENDING)]


# ── edits ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_skip_until_an_instant_covers_what_an_edit_brings(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", until=at(40))
    await schedules.edit(conn, ALICE, "report", {"every": "7s"})
    await went_by(conn, *range(18, 50, 5))
    found = await ledger(conn, report)
    assert found
    assert all((one.reason == "skipped") == (one.at <= 40) for one in found)


async def test_a_skipped_instant_that_an_edit_makes_no_plan_time_has_no_effect(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", next=1)
    await schedules.edit(conn, ALICE, "report", {"anchor": at(5).isoformat()})
    change = await skips.unskip(conn, ALICE, "report", at=[at(20)])
    assert (change.changed, change.plan_times) == (True, [])


async def test_both_passes_of_an_hour_that_comes_twice_are_instants_of_their_own(conn: Connection) -> None:
    await set_clock(conn, datetime(2031, 10, 25, 20, tzinfo=UTC))
    report = await create(conn, cron="30 2 * * *", tz="Europe/Paris", fold="both")
    second = datetime(2031, 10, 26, 1, 30, tzinfo=UTC)
    await skips.skip(conn, ALICE, "report", at=[second])
    for time in (second - timedelta(hours=1), second):
        await set_clock(conn, time - timedelta(seconds=2))
        await planned(conn)
    rows = await conn.fetch("select plan_time, reason from mainspring.fire where schedule_id = $1 order by 1", report)
    assert [tuple(row) for row in rows] == [(second - timedelta(hours=1), None), (second, "skipped")]


# ── where it is shown ───────────────────────────────────────────────────────────────────────────


async def test_it_is_shown_before_it_comes(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", next=2, note="release")
    shown = await schedules.show(conn, ALICE, "report")
    assert (shown.schedule.next, shown.next) == (at(40), [at(40), at(50), at(60)])
    coming = await plan_times.next_times(conn, ALICE, "report", n=3)
    assert [one.skipped_by for one in coming.fires] == ["os:alice@host: release", "os:alice@host: release", None]
    [story] = (await plan_times.explain(conn, ALICE, "report", at=at(30))).plan_times
    assert story.status == "undecided"
    assert "it is skipped by os:alice@host: release; `mainspring schedule unskip` takes that back" in story.said
    [line] = (await timeline.show(conn, ALICE, schedule=["report"], start=at(0), end=at(60))).lines
    assert [one.start for one in line.skips] == [at(20), at(30)]


async def test_it_is_shown_once_it_was_decided(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", next=1, note="release")
    await went_by(conn, 18)
    await set_clock(conn, 25)
    [story] = (await plan_times.explain(conn, ALICE, "report", at=at(20))).plan_times
    assert story.fires[0].said == ["skipped by os:alice@host: release"]
    assert (await schedules.show(conn, ALICE, "report")).last[0].skipped_by == "os:alice@host: release"
    [line] = (await timeline.show(conn, ALICE, schedule=["report"], start=at(0), end=at(60))).lines
    assert [(one.decision, one.skipped_by) for one in line.marks] == [("skipped", "os:alice@host: release")]
    checked = await plan_times.check(conn, ALICE, since=timedelta(minutes=1), schedule="report")
    assert checked.items[0].missing == []


async def test_a_forecast_leaves_it_out_and_says_so(conn: Connection, report: int) -> None:
    async def foreseen(start: int = 0) -> Forecast:
        cell = timedelta(seconds=30)
        return await forecast.forecast(conn, ALICE, start=at(start), end=at(start + 60), cell=cell)

    before = await foreseen()
    assert before.skips == []
    await skips.skip(conn, ALICE, "report", next=2, note="release")
    found = await foreseen()
    assert found.starts == before.starts - 2
    assert [(skip.schedule, skip.start, skip.until, skip.by, skip.note) for skip in found.skips] == [
        ("report", at(time), at(time), ALICE.name, "release") for time in (20, 30)
    ]
    assert (await foreseen(60)).skips == [], "they are not of that time"
    await skips.unskip(conn, ALICE, "report", next=1)
    found = await foreseen()
    assert (found.starts, len(found.skips)) == (before.starts - 1, 1)


async def test_runs_that_are_left_are_not_used_up_by_skips(conn: Connection) -> None:
    await set_clock(conn, 10)
    await create(conn, every=10, max_runs=2)
    await skips.skip(conn, ALICE, "report", next=2)
    coming = await plan_times.next_times(conn, ALICE, "report", n=10)
    assert [one.utc for one in coming.fires] == [at(20), at(30), at(40), at(50)]


async def test_a_backfill_runs_what_was_skipped_and_tells_how_many_that_are(conn: Connection, report: int) -> None:
    await skips.skip(conn, ALICE, "report", next=1)
    await went_by(conn, 18, 28)
    await set_clock(conn, 45)

    async def step(**options: Any) -> backfill.BackfillStep:
        return await backfill.step(conn, ALICE, "report", at(20), at(30), **options)

    counted = await step(dry_run=True)
    assert (counted.total, counted.to_run, counted.skipped) == (2, 1, 1)
    assert len((await step()).submitted) == 1
    rows = await ledger(conn, report, origin="backfill")
    assert rows == [Entry(20, "", None)]
