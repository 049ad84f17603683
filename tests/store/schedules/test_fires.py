"""Fires, explain, missed, backfill: the ledger read back, under a clock that the test sets."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.cluster import OWNER, server_lease
from tests.query_plans import nodes

from mainspring.errors import Conflict, InvalidTransition, ScheduleNotFound, ValidationError
from mainspring.model.messages import Ending
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.schedules.story import Story, as_lines, last_before, waited
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.server.planning.planner import Planner
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import backfill, calendars, explain, fires, missed, schedules
from mainspring.store.schedules import overlap as schedules_overlap
from mainspring.store.schedules.missed import Checked
from mainspring.store.tasks import jobs, partitions, tasks, transitions

NOON = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


async def set_clock(conn: Connection, at: datetime) -> None:
    await conn.execute(
        f"create or replace function mainspring.now() returns timestamptz language sql volatile"
        f" as $$ select '{at.isoformat()}'::timestamptz $$"
    )


@pytest.fixture
async def at_noon(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await set_clock(conn, NOON)


@pytest.fixture
async def planner(database: Database) -> Any:
    planner = Planner(database, server_lease(), None, {})
    yield planner
    await planner.close()


async def plan(planner: Planner) -> None:
    while await planner.step():
        pass


async def make(conn: Connection, *, enabled: bool = True, **when: Any) -> None:
    given: Any = when or {"every": "10m"}
    assert await schedules.create(conn, define_schedule("s", "job", given), enabled=enabled)


async def story(conn: Connection, at: datetime) -> Story:
    [told] = await explain.explain(conn, await schedules.find(conn, "s"), at)
    return told


async def check(conn: Connection, since: datetime = NOON - HOUR, **options: Any) -> Checked:
    stored = await schedules.find(conn, "s")
    return await missed.missing(conn, stored, since, stored.now, **options)


def text(told: Story) -> str:
    return " | ".join([*told.said, *(fact for fire in told.fires for fact in fire.said)])


pytestmark = pytest.mark.usefixtures("at_noon")


# ── explain ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_plan_time_in_the_future_is_not_decided_yet(conn: Connection) -> None:
    await make(conn)
    told = await story(conn, NOON + 10 * MINUTE)
    assert (told.expected, told.status, told.fires) == (True, "undecided", [])
    assert "lies in the future, and will be planned by 2026-06-10 12:09:52.500Z" in text(told)
    assert (told.before, told.after) == (None, NOON + 20 * MINUTE)


async def test_an_overdue_plan_time_asks_for_a_server(conn: Connection) -> None:
    await make(conn)
    await set_clock(conn, NOON + 11 * MINUTE)
    told = await story(conn, NOON + 10 * MINUTE)
    assert told.status == "overdue"
    assert "overdue by 60 s: no server plans it; is a server running?" in text(told)
    await conn.execute("update mainspring.schedule set problem = 'the provider failed'")
    assert "cannot be planned: the provider failed" in text(await story(conn, NOON + 10 * MINUTE))


async def test_a_planned_run_is_told_from_its_plan_to_its_end(conn: Connection, planner: Planner) -> None:
    await make(conn, every="10m", delay="2s", jitter="1s")
    at = NOON + 10 * MINUTE
    await set_clock(conn, at - timedelta(seconds=3))
    await plan(planner)
    told = await story(conn, at)
    assert told.status == "decided"
    assert "planned at 12:09:57, to run after a delay of 2 s and a jitter of 0." in text(told)
    assert "is to run at 12:10:02" in text(told)
    await conn.execute("insert into mainspring.agent (session, name, slots, lease_until) values (7, 'a1', 1, now())")
    await conn.execute("update mainspring.task set state = 2, token = 1, session = 7, attempt = 1")
    told = await story(conn, at)
    assert "is armed on a1, to fire at 12:10:02" in text(told)
    await conn.execute("update mainspring.task set state = 3, started_at = run_at + interval '0.25 ms'")
    told = await story(conn, at)
    assert ", 0.250 ms late, on a1 | it runs, 1 attempt so far" in text(told)
    assert told.fires[0].lateness_ms == 0.25
    assert told.fires[0].state == "running"


@pytest.mark.parametrize(
    ("ahead", "said"), [(4.9981, ", armed 4.998 s ahead"), (-0.25, ", armed 0.25 s after its instant"), (None, "")]
)
async def test_a_run_tells_how_far_ahead_its_agent_had_it(
    conn: Connection, planner: Planner, ahead: float | None, said: str
) -> None:
    await make(conn, every="10m")
    at = NOON + 10 * MINUTE
    await set_clock(conn, at - timedelta(seconds=3))
    await plan(planner)
    await conn.execute("insert into mainspring.agent (session, name, slots, lease_until) values (7, 'a1', 1, now())")
    await conn.execute("update mainspring.task set state = 2, token = 1, session = 7, attempt = 1")
    task, job, due = await conn.fetchrow("select id, job_id, date_part('epoch', run_at) from mainspring.task")
    over = Ending(task, 1, job, 1, TaskState.SUCCEEDED, due + 0.00025, due + 1.0, armed_ahead=ahead)
    await partitions.write(conn, lambda: transitions.finish(conn, [over]))
    told = await story(conn, at)
    assert f", 0.250 ms late, on a1{said} | succeeded" in text(told)
    assert told.fires[0].armed_ahead == (None if ahead is None else pytest.approx(ahead))


async def test_a_run_that_fails_and_is_tried_again_tells_its_last_error(conn: Connection, planner: Planner) -> None:
    await make(conn)
    await set_clock(conn, NOON + 10 * MINUTE)
    await plan(planner)
    await conn.execute("update mainspring.task set attempt = 1, run_at = run_at + interval '90.1234 s'")
    await conn.execute(
        """
        insert into mainspring.attempt
            (task_id, number, token, state, run_at, started_at, finished_at, error_code, error, recorded_at)
        select id, 1, 1, 11, plan_time, plan_time + interval '13.2 s', plan_time + interval '14 s', 'failed',
               E'KeyError: x\\nTraceback', now() from mainspring.task
        """
    )
    lines = (await story(conn, NOON + 10 * MINUTE)).fires[0].said
    id = await conn.fetchval("select id from mainspring.task")
    assert lines == [
        "planned at 12:10:00",
        f"task {id} fired at 12:10:13.200, 13.2 s late, on an agent that is gone",
        "the next attempt is at 12:11:30.123, 1 attempt so far",
        "the last error: KeyError: x",
    ]


@pytest.mark.parametrize("overlap", ["queue", "queue_all", "cancel_running", "terminate_running", "allow"])
async def test_a_run_that_waited_for_the_one_before_it_says_so(
    conn: Connection, planner: Planner, overlap: str
) -> None:
    await make(conn, every="10m", overlap=overlap)
    for minutes in (10, 20):
        await set_clock(conn, NOON + minutes * MINUTE)
        await plan(planner)
    start = (
        "update mainspring.task set state = 3, token = 1, session = 1, attempt = 1, pool = abs(pool), started_at = $1"
    )
    await conn.execute(f"{start} where plan_time = $2", NOON + 22 * MINUTE, NOON + 20 * MINUTE)
    told = text(await story(conn, NOON + 20 * MINUTE))
    assert ("it waited for the run before it" in told) == (overlap != "allow")
    assert (f"(overlap={overlap})" in told) == (overlap != "allow")
    assert "fired at 12:22:00, 2 min late" in told


def test_nothing_waited_for_a_run_that_ended_before() -> None:
    assert waited("queue", NOON, NOON - MINUTE) is None
    assert waited("queue", NOON, NOON + MINUTE) == "it waited for the run before it (overlap=queue)"


async def test_a_run_that_waits_for_an_agent_says_so(conn: Connection, planner: Planner) -> None:
    await make(conn)
    await set_clock(conn, NOON + 10 * MINUTE)
    await plan(planner)
    assert "waits for an agent since 12:10:00" in text(await story(conn, NOON + 10 * MINUTE))


async def test_a_task_that_retention_dropped_is_told_as_such(conn: Connection, planner: Planner) -> None:
    await make(conn)
    await set_clock(conn, NOON + 10 * MINUTE)
    await plan(planner)
    await conn.execute("delete from mainspring.task")
    assert "is not kept any longer" in text(await story(conn, NOON + 10 * MINUTE))


@pytest.mark.parametrize(
    ("options", "reason", "told"),
    [
        ({"catch_up": "latest"}, "coalesced", "catch_up=latest runs only the last of what was missed"),
        ({"catch_up": "skip"}, "misfire", "catch_up=skip leaves out what was missed while nothing was planning"),
        ({"catch_up": "all", "window": "1h"}, "misfire", "catch_up=all goes back 1 h (window)"),
        ({"catch_up": "all", "misfire_after": "30m"}, "misfire", "misfire_after allows 30 min"),
    ],
)
async def test_what_an_outage_left_out_is_told_with_the_policy_that_did(
    conn: Connection, planner: Planner, options: dict[str, Any], reason: str, told: str
) -> None:
    await make(conn, every="10m", **options)
    await set_clock(conn, NOON + 6 * HOUR)
    await plan(planner)
    found = await story(conn, NOON + 10 * MINUTE)
    assert [fire.reason for fire in found.fires] == [reason]
    assert told in text(found)
    assert "decided 5 h 50 min late" in text(found)


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel_running"])
async def test_a_skipped_overlap_names_the_policy(conn: Connection, planner: Planner, overlap: str) -> None:
    await make(conn, every="10m", overlap=overlap)
    await set_clock(conn, NOON + 10 * MINUTE)
    await plan(planner)
    await set_clock(conn, NOON + 20 * MINUTE)
    await plan(planner)
    waiting = await conn.fetchval("select id from mainspring.task where state = 0")
    told = text(await story(conn, NOON + 20 * MINUTE))
    assert "waits for its turn" in told
    assert ("will be skipped if the run before it has not ended by 12:20:00" in told) == (overlap == "skip")
    await conn.execute("select 1")
    assert await schedules_overlap.skip(conn, [waiting]) == 1
    found = await story(conn, NOON + 20 * MINUTE)
    assert found.fires[0].reason == "overlap"
    assert f"(overlap={overlap})" in text(found)


async def test_a_pause_is_told(conn: Connection, planner: Planner) -> None:
    await make(conn)
    await set_clock(conn, NOON + MINUTE)
    await schedules.change(conn, "s", lambda schedule: schedule, enabled=False)
    told = await story(conn, NOON + 10 * MINUTE)
    assert not told.expected
    assert "the schedule is disabled" in text(told)
    await set_clock(conn, NOON + 15 * MINUTE)
    await schedules.change(conn, "s", lambda schedule: schedule, enabled=True)
    await plan(planner)
    told = await story(conn, NOON + 10 * MINUTE)
    assert not told.expected
    assert "skipped (paused): the schedule was disabled at that time" in text(told)


async def test_what_is_no_plan_time_says_why_and_what_is_around_it(conn: Connection) -> None:
    await calendars.put(conn, "holidays", ["2026-06-12"])
    await make(
        conn, cron="0 9 * * *", tz="Europe/Paris", calendars=["holidays"], end="2026-06-20T00:00:00Z",
        start="2026-06-11T12:00:00Z",
    )  # fmt: skip
    assert "it is no time of the schedule (At 09:00 every day)" in text(await story(conn, NOON + 72 * HOUR))
    excluded = await story(conn, datetime(2026, 6, 12, 7, tzinfo=UTC))
    assert "Friday 2026-06-12 is excluded by holidays" in text(excluded)
    assert excluded.after == datetime(2026, 6, 13, 7, tzinfo=UTC)
    assert excluded.before is None
    assert "before the schedule's start" in text(await story(conn, datetime(2026, 6, 11, 7, tzinfo=UTC)))
    assert "after the schedule's end" in text(await story(conn, datetime(2026, 6, 21, 7, tzinfo=UTC)))
    made = await story(conn, datetime(2026, 6, 9, 7, tzinfo=UTC))
    assert "the schedule was made at 2026-06-10 14:00:00+02:00" in text(made)
    assert made.after == datetime(2026, 6, 13, 7, tzinfo=UTC)
    later = await story(conn, datetime(2026, 6, 15, 7, tzinfo=UTC))
    assert later.before == datetime(2026, 6, 14, 7, tzinfo=UTC)


async def test_used_up_runs_are_told(conn: Connection, planner: Planner) -> None:
    await make(conn, every="10m", max_runs=1)
    await set_clock(conn, NOON + 10 * MINUTE)
    await plan(planner)
    assert "its 1 run was used up before (max_runs)" in text(await story(conn, NOON + 20 * MINUTE))


async def test_an_older_version_tells_its_own_plan_times(conn: Connection, planner: Planner) -> None:
    await make(conn)
    await set_clock(conn, NOON + 15 * MINUTE)
    await plan(planner)
    await schedules.change(conn, "s", lambda s: define_schedule("s", "job", {"every": "1h"}))
    told = await story(conn, NOON + 10 * MINUTE)
    assert told.expected
    assert "by the version that was in force until 2026-06-10 12:15:00" in text(told)
    assert "no time of the schedule (every hour)" in text(await story(conn, NOON + 20 * MINUTE))


async def test_without_a_time_the_last_and_the_next_are_told_and_what_is_overdue(
    conn: Connection, planner: Planner
) -> None:
    await make(conn)
    stored = await schedules.find(conn, "s")
    assert [one.plan_time for one in await explain.explain(conn, stored)] == [NOON + 10 * MINUTE]
    await set_clock(conn, NOON + 10 * MINUTE)
    await plan(planner)
    await set_clock(conn, NOON + 31 * MINUTE)
    told = await explain.explain(conn, await schedules.find(conn, "s"))
    assert [one.status for one in told] == ["decided", "overdue", "undecided"]
    assert [one.plan_time for one in told] == [NOON + minutes * MINUTE for minutes in (10, 20, 40)]


async def test_each_scope_has_its_line_up_to_a_limit(conn: Connection, planner: Planner) -> None:
    await make(conn, every="10m", scopes=[f"t{number:02}" for number in range(25)])
    await set_clock(conn, NOON + 10 * MINUTE)
    await plan(planner)
    told = await story(conn, NOON + 10 * MINUTE)
    assert (len(told.fires), told.more_fires) == (20, 5)
    lines = as_lines("s", told, ZoneInfo("UTC"))
    assert lines[0] == "s at 2026-06-10 12:10:00Z"
    assert lines[2].startswith("  [t00] planned at")
    assert lines[-2:] == ["  and 5 more scopes", "  the one after: 12:20:00"]


@pytest.mark.parametrize(
    ("expression", "at", "before"),
    [
        ("* * * * * *", NOON, NOON - timedelta(seconds=1)),
        ("0 9 * * *", NOON, NOON - 3 * HOUR),
        ("0 12 29 2 *", NOON, datetime(2024, 2, 29, 12, tzinfo=UTC)),
    ],
)
def test_the_last_plan_time_before_an_instant_is_found(expression: str, at: datetime, before: datetime) -> None:
    times = timing(define_schedule("s", "job", {"cron": expression}))
    assert last_before(times, at) == before


async def test_fires_are_read_latest_first(conn: Connection, planner: Planner) -> None:
    await make(conn, every="10m", catch_up="all")
    await set_clock(conn, NOON + HOUR)
    await plan(planner)
    stored = await schedules.find(conn, "s")
    found = (await fires.last_runs(conn, [stored.id], NOON + 30 * MINUTE, 2))[stored.id]
    assert [one.fire.plan_time for one in found] == [NOON + 30 * MINUTE, NOON + 20 * MINUTE]
    assert [(one.state, one.finished_at) for one in found] == [(TaskState.PENDING, None)] * 2
    ended = found[1].fire.task_id
    assert ended is not None
    await tasks.cancel(conn, ended)
    assert await fires.last_runs(conn, [], NOON, 2) == {}
    [_, found_again] = (await fires.last_runs(conn, [stored.id], NOON + 30 * MINUTE, 2))[stored.id]
    assert (found_again.state, found_again.finished_at) == (TaskState.CANCELLED, NOON + HOUR)


async def test_the_last_runs_are_found_without_reading_what_is_older(conn: Connection) -> None:
    """A month of history: the ledger is probed once a day that is kept, the history only since the decision."""
    await make(conn)
    stored = await schedules.find(conn, "s")
    now = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    for ago in range(30, 1, -1):  # those of yesterday and today are there
        await partitions._make(conn, "task_history_succeeded", (now - timedelta(days=ago)).date())
    await conn.execute(
        """
        insert into mainspring.task_history (id, run_at, created_at, finished_at, recorded_at, job_id, pool, state,
                                             priority, attempt, crashes, args)
        select day * 1000 + number, $1, $1, $1, $1::timestamptz - make_interval(days => 30 - day),
               1, 1, 10, 5, 1, 0, '{}'
          from generate_series(1, 30) day, generate_series(1, 200) number
        """,
        now,
    )
    await conn.execute(
        "insert into mainspring.fire (schedule_id, plan_time, task_id, decided_at) values ($1, $2, 30001, $2)",
        stored.id,
        now,
    )
    await conn.execute("set enable_partition_pruning = on")
    arguments = ([stored.id], now, 5)
    [told] = json.loads(await conn.fetchval(f"explain (analyze, format json) {fires._LAST_RUNS}", *arguments))
    scans = [node for node in nodes(told["Plan"]) if "Relation Name" in node]
    assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan"}
    read = {node["Relation Name"] for node in scans if node["Actual Loops"] and "history" in node["Relation Name"]}
    days = {f"{now + timedelta(days=ahead):%Y%m%d}" for ahead in range(-1, 4)}
    assert {name.rpartition("_")[2] for name in read} <= days
    assert len(read) > 1
    [found] = (await fires.last_runs(conn, *arguments))[stored.id]
    assert (found.state, found.finished_at) == (TaskState.SUCCEEDED, now)


# ── what is missing ─────────────────────────────────────────────────────────────────────────────


async def test_while_nothing_runs_every_expected_plan_time_is_missing(conn: Connection) -> None:
    await make(conn)
    await set_clock(conn, NOON + 31 * MINUTE)
    found = await check(conn)
    assert [one.plan_time for one in found.missing] == [NOON + minutes * MINUTE for minutes in (10, 20, 30)]
    assert "is a server running?" in (found.why or "")
    assert found.since == NOON, "never before it was made"
    assert found.complete


async def test_what_was_decided_is_not_missing_and_a_gap_is_found(conn: Connection, planner: Planner) -> None:
    await make(conn, every="10m", catch_up="skip")
    await set_clock(conn, NOON + HOUR)
    await plan(planner)
    assert (await check(conn)).missing == []
    await conn.execute("delete from mainspring.fire where plan_time = $1", NOON + 20 * MINUTE)
    found = await check(conn)
    assert [one.plan_time for one in found.missing] == [NOON + 20 * MINUTE]
    assert "later plan times were decided" in (found.why or "")


async def test_a_plan_time_is_missing_only_after_its_delay_and_a_grace(conn: Connection) -> None:
    await make(conn, every="10m", delay="1m")
    await set_clock(conn, NOON + 11 * MINUTE + timedelta(seconds=4))
    assert (await check(conn)).missing == []
    await set_clock(conn, NOON + 11 * MINUTE + timedelta(seconds=6))
    assert len((await check(conn)).missing) == 1


async def test_nothing_is_expected_of_a_pause(conn: Connection) -> None:
    await make(conn)
    await set_clock(conn, NOON + 15 * MINUTE)
    await schedules.change(conn, "s", lambda schedule: schedule, enabled=False)
    await set_clock(conn, NOON + HOUR)
    assert [one.plan_time for one in (await check(conn)).missing] == [NOON + 10 * MINUTE]
    await schedules.change(conn, "s", lambda schedule: schedule, enabled=True)
    await set_clock(conn, NOON + HOUR + 11 * MINUTE)
    expected = [NOON + 10 * MINUTE, NOON + HOUR + 10 * MINUTE]
    assert [one.plan_time for one in (await check(conn)).missing] == expected


async def test_what_came_due_in_a_pause_by_its_delay_waits_for_its_end(conn: Connection) -> None:
    await make(conn, every="10m", delay="5m")
    await set_clock(conn, NOON + 12 * MINUTE)
    await schedules.change(conn, "s", lambda schedule: schedule, enabled=False)
    await set_clock(conn, NOON + HOUR)
    assert (await check(conn)).missing == []


async def test_every_scope_of_a_fixed_list_is_expected(conn: Connection, planner: Planner) -> None:
    await make(conn, every="10m", scopes=["eu", "us"])
    await set_clock(conn, NOON + 10 * MINUTE)
    await plan(planner)
    await set_clock(conn, NOON + 11 * MINUTE)
    assert (await check(conn)).missing == []
    await conn.execute("delete from mainspring.fire where scope = 'us'")
    assert [one.scope for one in (await check(conn)).missing] == ["us"]


async def test_a_late_plan_time_may_have_the_scopes_of_a_later_version(conn: Connection, planner: Planner) -> None:
    await make(conn, every="10m", scopes=["eu", "us"])
    await set_clock(conn, NOON + 15 * MINUTE)
    await schedules.change(conn, "s", lambda s: define_schedule("s", "job", {"every": "10m", "scopes": ["asia"]}))
    await plan(planner)
    assert (await check(conn)).missing == []


async def test_any_scope_of_a_provider_will_do(conn: Connection) -> None:
    schedule = define_schedule("s", "job", {"every": "10m"}, provider="tenants")
    assert await schedules.create(conn, schedule, enabled=True, app="shop", app_version=1)
    await set_clock(conn, NOON + 11 * MINUTE)
    assert len((await check(conn)).missing) == 1
    id = (await schedules.find(conn, "s")).id
    await conn.execute(
        "insert into mainspring.fire (schedule_id, plan_time, scope, reason) values ($1, $2, 'x', 'misfire')",
        id,
        NOON + 10 * MINUTE,
    )
    assert (await check(conn)).missing == []


async def test_a_backfill_counts_as_decided_and_a_run_by_hand_does_not(conn: Connection) -> None:
    await make(conn)
    await set_clock(conn, NOON + 10 * MINUTE)
    await backfill.run_now(conn, "s")
    await conn.execute("update mainspring.fire set plan_time = mainspring.now()")  # the very instant of the plan time
    await set_clock(conn, NOON + 11 * MINUTE)
    assert len((await check(conn)).missing) == 1
    await conn.execute("update mainspring.fire set origin = 'backfill'")
    assert (await check(conn)).missing == []


async def test_nothing_is_expected_once_the_runs_are_used_up(conn: Connection, planner: Planner) -> None:
    await make(conn, every="10m", max_runs=2, catch_up="all")
    await set_clock(conn, NOON + HOUR)
    await plan(planner)
    assert (await check(conn)).missing == []
    await conn.execute("delete from mainspring.fire where plan_time = $1", NOON + 10 * MINUTE)
    assert [one.plan_time for one in (await check(conn)).missing] == [NOON + 10 * MINUTE]


@pytest.mark.parametrize("change", [{"max_runs": 9}, {}], ids=["raised", "cleared"])
async def test_nothing_is_expected_of_the_time_in_which_the_runs_were_used_up(
    conn: Connection, planner: Planner, change: dict[str, Any]
) -> None:
    await make(conn, every="10m", max_runs=1)
    await set_clock(conn, NOON + 10 * MINUTE)
    await plan(planner)
    await set_clock(conn, NOON + 35 * MINUTE)
    await plan(planner)
    await schedules.change(conn, "s", lambda s: define_schedule("s", "job", {"every": "10m", **change}))  # type: ignore[typeddict-item]
    await set_clock(conn, NOON + 40 * MINUTE)
    await plan(planner)
    await set_clock(conn, NOON + 45 * MINUTE)
    assert (await check(conn)).missing == []
    assert (await check(conn)).expected == 2
    told = await story(conn, NOON + 20 * MINUTE)
    assert (told.expected, told.status) == (False, "not_expected")
    assert "its 1 run was used up before (max_runs)" in text(told)
    await set_clock(conn, NOON + 55 * MINUTE)
    assert [one.plan_time for one in (await check(conn)).missing] == [NOON + 50 * MINUTE]


async def test_what_an_older_version_with_a_limit_has_open_is_still_expected(conn: Connection) -> None:
    await make(conn, every="10m", max_runs=9)
    await set_clock(conn, NOON + 15 * MINUTE)
    await schedules.change(conn, "s", lambda s: define_schedule("s", "job", {"every": "10m"}))
    assert [one.plan_time for one in (await check(conn)).missing] == [NOON + 10 * MINUTE]
    assert (await story(conn, NOON + 10 * MINUTE)).status == "overdue"


async def test_a_long_check_is_bounded_and_says_so(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed, "MOST_CHECKED", 2000)
    await make(conn, every="1s")
    await set_clock(conn, NOON + 2 * HOUR)
    found = await check(conn, limit=10)
    assert (len(found.missing), found.more, found.complete) == (10, 1990, False)
    assert found.until == NOON + timedelta(seconds=2000)


# ── backfill ────────────────────────────────────────────────────────────────────────────────────


async def slots(conn: Connection, start: datetime, end: datetime, scopes: Any = ()) -> list[backfill.FireKey]:
    stored = await schedules.find(conn, "s")
    wanted = backfill.check_backfill(stored.schedule, start, end, stored.now, scopes)
    plan_times = timing(stored.schedule).between(start - timedelta(microseconds=1), end, 1000)
    return [(at, scope) for at in plan_times for scope in wanted]


async def test_a_backfill_makes_a_task_for_each_plan_time_and_scope_once(conn: Connection) -> None:
    await make(conn, every="10m", scopes=["eu", "us"])
    wanted = await slots(conn, NOON - HOUR, NOON)
    assert len(wanted) == 14, "both ends count"
    stored = await schedules.find(conn, "s")
    assert len(await backfill.backfill(conn, stored, wanted)) == 14
    assert await backfill.backfill(conn, stored, wanted) == []
    assert (await backfill.still_open(conn, stored, wanted)).fires == []
    rows = await conn.fetch("select run_at, plan_time, scope, state from mainspring.task")
    assert {(row["plan_time"], row["scope"]) for row in rows} == set(wanted)
    assert {(row["run_at"], row["state"]) for row in rows} == {(NOON, 1)}
    assert {row["origin"] for row in await conn.fetch("select origin from mainspring.fire")} == {"backfill"}


async def test_a_skipped_plan_time_is_filled_and_one_that_ran_is_not(conn: Connection, planner: Planner) -> None:
    await make(conn, every="10m", catch_up="latest")
    await set_clock(conn, NOON + 30 * MINUTE)
    await plan(planner)
    wanted = await slots(conn, NOON, NOON + 30 * MINUTE)
    stored = await schedules.find(conn, "s")
    open_ones = (await backfill.still_open(conn, stored, wanted)).fires
    assert [at for at, _ in open_ones] == [NOON, NOON + 10 * MINUTE, NOON + 20 * MINUTE]
    assert len(await backfill.backfill(conn, stored, wanted)) == 3
    assert "backfilled at 12:30:00" in text(await story(conn, NOON + 10 * MINUTE))
    assert await conn.fetchval("select count(*) from mainspring.task") == 4
    assert await conn.fetchval("select count(*) from mainspring.fire where reason is not null") == 0


async def test_the_planner_does_not_repeat_what_was_backfilled(conn: Connection, planner: Planner) -> None:
    await make(conn, every="10m", catch_up="all")
    await set_clock(conn, NOON + 30 * MINUTE)
    stored = await schedules.find(conn, "s")
    assert len(await backfill.backfill(conn, stored, await slots(conn, NOON + MINUTE, NOON + 20 * MINUTE))) == 2
    await plan(planner)
    assert await conn.fetchval("select count(*) from mainspring.task") == 3
    assert await conn.fetchval("select count(distinct plan_time) from mainspring.task") == 3


async def test_many_backfills_at_once_make_each_task_once_and_keep_one_limit(dsn: str, conn: Connection) -> None:
    await make(conn, every="1m")
    stored = await schedules.find(conn, "s")
    wanted = await slots(conn, NOON - HOUR, NOON)
    lines = [await Database(dsn).connect() for _ in range(4)]
    made = await asyncio.gather(*(backfill.backfill(line, stored, wanted[:30]) for line in lines))
    assert sorted(map(len, made)) == [0, 0, 0, 30]
    filled = await asyncio.gather(*(backfill.fill(line, stored, wanted[30:], 35) for line in lines))
    assert sum(len(one.tasks) for one in filled) == 5
    assert await conn.fetchval("select count(*) from mainspring.task") == 35
    await asyncio.gather(*(line.close() for line in lines))


async def test_a_backfill_continues_as_tasks_end(conn: Connection) -> None:
    await make(conn, every="1m")
    stored = await schedules.find(conn, "s")
    await backfill.run_now(conn, "s")  # is no part of it
    wanted = await slots(conn, NOON - HOUR, NOON - MINUTE)
    first = await backfill.fill(conn, stored, wanted, 2)
    assert (first.tried, len(first.tasks), first.live) == (2, 2, 2)
    assert (await backfill.fill(conn, stored, wanted[2:], 2)).tried == 0
    await conn.execute("delete from mainspring.task where id = $1", first.tasks[0])
    assert (await backfill.fill(conn, stored, wanted[2:], 2)).tried == 1
    await schedules.delete(conn, "s")
    with pytest.raises(ScheduleNotFound, match="deleted meanwhile"):
        await backfill.fill(conn, stored, wanted[3:], 100)


@pytest.mark.parametrize("overlap", ["skip", "queue_all", "terminate_running"])
async def test_a_backfill_takes_no_part_in_overlap(conn: Connection, planner: Planner, overlap: str) -> None:
    await make(conn, every="10m", overlap=overlap)
    stored = await schedules.find(conn, "s")
    await backfill.backfill(conn, stored, await slots(conn, NOON - HOUR, NOON))
    await set_clock(conn, NOON + 10 * MINUTE)
    await plan(planner)
    states = await conn.fetch("select state from mainspring.task where plan_time > $1", NOON)
    assert [row["state"] for row in states] == [1], "it does not wait for them"
    await set_clock(conn, NOON + 20 * MINUTE)
    await plan(planner)
    [group] = await schedules_overlap.groups(conn, OWNER, within=0.0)
    assert len(group.turns) == 2, "the two of the plan"
    first, second = group.turns
    await conn.execute("delete from mainspring.task where id = $1", first.task)
    assert len(await schedules_overlap.release(conn, [second.task])) == 1


@pytest.mark.parametrize(
    ("start", "end", "field", "told"),
    [
        (NOON, NOON, "to", "is not after"),
        (NOON - HOUR, NOON - 2 * HOUR, "to", "is not after"),
        (NOON - HOUR, NOON + HOUR, "to", "have not all come; give 2026-06-10T12:00:00"),
    ],
)
async def test_absurd_ranges_are_refused(
    conn: Connection, start: datetime, end: datetime, field: str, told: str
) -> None:
    await make(conn, every="1s", scopes=["eu", "us"])
    with pytest.raises(ValidationError, match=told) as refused:
        await slots(conn, start, end)
    assert refused.value.field == field


async def test_more_scopes_than_runs_are_refused(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    await make(conn, every="10m", scopes=["eu", "us"])
    monkeypatch.setattr(backfill, "MOST", 1)
    with pytest.raises(ValidationError, match="more than 1 scopes"):
        await slots(conn, NOON - HOUR, NOON)


async def test_unknown_scopes_are_refused(conn: Connection) -> None:
    await make(conn, every="10m", scopes=["eu", "us"])
    assert {scope for _, scope in await slots(conn, NOON - HOUR, NOON, ["us", "us"])} == {"us"}
    with pytest.raises(Conflict, match="has no scope 'asia'; it has: eu, us"):
        await slots(conn, NOON - HOUR, NOON, ["asia"])


async def test_the_scopes_of_a_provider_must_be_named(conn: Connection) -> None:
    schedule = define_schedule("s", "job", {"every": "10m"}, provider="tenants")
    await jobs.register(conn, {"job": Definition(Python("job", ("scope",)))})
    assert await schedules.create(conn, schedule, enabled=True, app="shop", app_version=1)
    with pytest.raises(ValidationError, match="name those to fill with --scope"):
        await slots(conn, NOON - HOUR, NOON)
    stored = await schedules.find(conn, "s")
    await backfill.backfill(conn, stored, await slots(conn, NOON - MINUTE, NOON, ["a"]))
    assert await conn.fetchval("select args from mainspring.task") == '{"scope": "a"}'


async def test_a_daemon_has_no_plan_times(conn: Connection) -> None:
    await make(conn, daemon=2)
    with pytest.raises(InvalidTransition, match="keeps replicas running"):
        await slots(conn, NOON - HOUR, NOON)
    assert "has no plan times" in text(await story(conn, NOON + HOUR))
