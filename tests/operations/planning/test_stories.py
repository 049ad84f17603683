"""Stories: each reason of the ledger, each code of a wait and each case of a clock change, told step by step.

Arranged by the real planner under a clock that the test sets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from msgspec.structs import replace
from tests.cluster import server_lease
from tests.operations.conftest import ACTOR, same_in_json
from tests.server.watch.conftest import set_clock
from tests.store.cluster.test_registry import claim, connect, enqueue, serve_all

from mainspring.errors import ValidationError
from mainspring.model.limits.limits import Limits, Rate
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.schedules.planning import Reason
from mainspring.model.schedules.story import Step, Story
from mainspring.model.tasks.jobs import Definition, Placement, Python
from mainspring.model.tasks.waits import Wait
from mainspring.operations.definitions import holds
from mainspring.operations.planning import plan_times, skips
from mainspring.operations.planning.plan_times import Explanation
from mainspring.server.planning.planner import Planner
from mainspring.store.cluster import registry
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import calendars, schedules
from mainspring.store.schedules import overlap as overlaps
from mainspring.store.tasks import jobs, partitions

NOON = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
FIRST, SECOND_ONE = NOON + 10 * MINUTE, NOON + 20 * MINUTE  # plan times of a schedule of every ten minutes
JOB = Definition(Python("job"))


class World:
    """A planner, a clock, a schedule named s."""

    def __init__(self, conn: Connection, planner: Planner) -> None:
        self.conn, self.planner = conn, planner

    async def make(self, *, name: str = "s", job: Definition = JOB, app: str | None = None, **when: Any) -> None:
        await jobs.register(self.conn, {"job": job})
        given: Any = when if {"every", "cron", "once"} & when.keys() else {"every": "10m", **when}
        provider = given.pop("provider", None)
        schedule = define_schedule(name, "job", given, provider=provider)
        assert await schedules.create(self.conn, schedule, enabled=True, app=app)

    async def at(self, now: datetime) -> None:
        await set_clock(self.conn, now)
        while await self.planner.step():
            pass

    async def run(self, plan_time: datetime, took: timedelta | None = None) -> int:
        """The task of a plan time starts in time on an agent; it ends after so long."""
        task: int = await self.conn.fetchval(
            """
            update mainspring.task
               set state = 3, token = 1024, session = 7, attempt = 1, pool = abs(pool), started_at = $1
             where plan_time = $1 returning id
            """,
            plan_time,
        )
        if took is not None:
            await self.conn.execute(
                """
                with gone as (delete from mainspring.task where id = $1 returning *)
                insert into mainspring.task_history
                    (id, run_at, created_at, started_at, finished_at, recorded_at, job_id, pool, state, priority,
                     attempt, crashes, args, schedule_id, plan_time, scope)
                select id, run_at, created_at, started_at, started_at + $2, mainspring.now(), job_id, pool, 10,
                       priority, attempt, 0, args, schedule_id, plan_time, scope from gone
                """,
                task,
                took,
            )
        return task

    async def told(self, **which: Any) -> list[Story]:
        found = await plan_times.explain(self.conn, ACTOR, "s", **which)
        assert same_in_json(found, Explanation)
        return found.plan_times

    async def story(self, at: datetime) -> Story:
        [told] = await self.told(at=at)
        return told


@pytest.fixture
async def world(conn: Connection, database: Database) -> Any:
    await set_clock(conn, NOON)
    await partitions.make_ahead(conn, days=3)
    planner = Planner(database, server_lease(), None, {})
    yield World(conn, planner)
    await planner.close()


def steps(story: Story) -> list[Step]:
    return [*story.steps, *(step for fire in story.fires for step in fire.steps)]


def kinds(story: Story) -> list[str]:
    return [step.kind for step in steps(story)]


# ── each reason of the ledger ───────────────────────────────────────────────────────────────────


async def overlapped(world: World) -> None:
    await world.make(overlap="skip")
    await world.at(FIRST)
    await world.run(FIRST)
    await world.at(SECOND_ONE)
    waiting = await world.conn.fetchval("select id from mainspring.task where plan_time = $1", SECOND_ONE)
    assert await overlaps.skip(world.conn, [waiting]) == 1


async def paused(world: World) -> None:
    await world.make()
    await set_clock(world.conn, FIRST + MINUTE)
    await schedules.change(world.conn, "s", lambda schedule: schedule, enabled=False)
    await set_clock(world.conn, SECOND_ONE + MINUTE)
    await schedules.change(world.conn, "s", lambda schedule: schedule, enabled=True)
    await world.at(SECOND_ONE + MINUTE)


async def misfired(world: World) -> None:
    await world.make(catch_up="skip")
    await world.at(NOON + HOUR)


async def coalesced(world: World) -> None:
    await world.make(catch_up="latest")
    await world.at(NOON + HOUR)


async def without_scopes(world: World) -> None:
    await world.make()
    await _decide(world, "no_scopes")


async def queue_full(world: World) -> None:
    await world.make(when_full="skip")
    await _decide(world, "queue_full")


async def by_hand(world: World) -> None:
    await world.make()
    await skips.skip(world.conn, ACTOR, "s", at=[SECOND_ONE], note="release night")
    await world.at(SECOND_ONE)


async def _decide(world: World, reason: str) -> None:
    await world.at(SECOND_ONE)
    await world.conn.execute("delete from mainspring.task where plan_time = $1", SECOND_ONE)
    await world.conn.execute(
        "update mainspring.fire set task_id = null, reason = $2 where plan_time = $1", SECOND_ONE, reason
    )


REASONS: dict[str, tuple[Callable[[World], Awaitable[None]], list[str], str]] = {
    "overlap": (overlapped, [], "the run of 12:10:00 had not ended at its instant (overlap=skip)"),
    "paused": (paused, [], "the schedule was disabled at that time"),
    "misfire": (misfired, ["outage"], "catch_up=skip leaves out what was missed while nothing was planning"),
    "coalesced": (coalesced, ["outage"], "catch_up=latest runs only the last of what was missed"),
    "no_scopes": (without_scopes, [], "there were no scopes, and each task is for one"),
    "queue_full": (queue_full, [], "as many tasks of its job waited as may, and when_full=skip plans none then"),
    "skipped": (by_hand, [], "skipped by test: release night"),
}


def test_every_reason_of_the_ledger_has_a_story() -> None:
    assert set(REASONS) == set(get_args(Reason))


@pytest.mark.parametrize("reason", REASONS)
async def test_a_reason_of_the_ledger_is_told_where_the_story_stops(world: World, reason: str) -> None:
    arrange, before, why = REASONS[reason]
    await arrange(world)
    story = await world.story(SECOND_ONE)
    expected = "disabled" if reason == "paused" else "expected"
    assert kinds(story) == [expected, *before, "skipped"]
    last = steps(story)[-1]
    assert (last.code, last.at is not None) == (reason, True)
    assert why in last.said
    assert why.removeprefix("skipped ") in story.sentence
    assert (story.fires[0].reason, story.before, story.after) == (reason, FIRST, SECOND_ONE + 10 * MINUTE)


async def test_an_overlap_leads_to_the_run_that_was_in_its_way(world: World) -> None:
    await overlapped(world)
    last = steps(await world.story(SECOND_ONE))[-1]
    running = await world.conn.fetchval("select id from mainspring.task where plan_time = $1", FIRST)
    assert (last.task, last.plan_time) == (running, FIRST)


async def test_a_coalesced_one_leads_to_what_ran_instead_and_to_its_outage(world: World) -> None:
    await coalesced(world)
    _, outage, last = steps(await world.story(SECOND_ONE))
    assert last.plan_time == NOON + HOUR
    assert (outage.at, outage.until) == (SECOND_ONE, NOON + HOUR)
    assert "decided 40 min late" in outage.said


async def test_a_run_is_told_from_its_expectation_to_its_end(world: World) -> None:
    await calendars.put(world.conn, "holidays", ["12-25"])
    await world.make(every="10m", calendars=["holidays"])
    await connect(world.conn, "web-1")
    await world.at(FIRST - 7 * SECOND)
    await world.conn.execute("update mainspring.agent set session = 7")
    await set_clock(world.conn, FIRST + MINUTE)
    task = await world.run(FIRST, took=30 * SECOND)
    await world.conn.execute(
        """
        insert into mainspring.attempt
            (task_id, number, token, state, run_at, started_at, finished_at, session, recorded_at, armed_ahead)
        values ($1, 1, 1024, 10, $2, $2::timestamptz + interval '0.4 ms', $2::timestamptz + interval '30 s', 7,
                mainspring.now(), 3.2)
        """,
        task,
        FIRST,
    )
    story = await world.story(FIRST)
    told = [(step.kind, step.said, step.at and (step.at - FIRST).total_seconds()) for step in steps(story)]
    assert told == [
        ("expected", "every 10 minutes, in UTC, but for the days of holidays", None),
        ("planned", "planned", -7.0),
        ("armed", "armed on web-1, 3.2 s ahead", -3.2),
        ("fired", "fired 0.400 ms late, on web-1", 0.0004),
        ("ended", "succeeded after 30 s", 30.0),
    ]
    assert story.sentence == "Fired 0.400 ms late, on web-1; succeeded after 30 s"
    assert (story.steps[0].version, story.fires[0].steps[1].agent) == (1, "web-1")


async def test_an_overdue_one_and_one_to_come_say_so(world: World) -> None:
    await world.make()
    await set_clock(world.conn, FIRST + MINUTE)
    overdue, coming = await world.story(FIRST), await world.story(SECOND_ONE)
    assert kinds(overdue) == ["expected", "overdue"]
    assert "no server plans it" in overdue.sentence
    assert kinds(coming) == ["expected", "to_come"]
    await skips.skip(world.conn, ACTOR, "s", at=[SECOND_ONE], note="release night")
    skipped = await world.story(SECOND_ONE)
    assert kinds(skipped)[-1] == "skipped"
    assert "skipped by test: release night" in skipped.sentence


async def test_an_older_version_is_named(world: World) -> None:
    await world.make()
    await world.at(FIRST)
    await set_clock(world.conn, FIRST + MINUTE)
    await schedules.change(world.conn, "s", lambda _: define_schedule("s", "job", {"every": "1h"}))
    [expected] = (await world.story(FIRST)).steps
    assert (expected.kind, expected.version) == ("expected", 1)
    assert "by the version that was in force until 2026-06-10 12:11:00" in expected.said


async def test_several_scopes_are_counted_in_the_sentence(world: World) -> None:
    await world.make(every="10m", scopes=["eu", "us"])
    await world.at(FIRST)
    await world.conn.execute("update mainspring.fire set task_id = null, reason = 'queue_full' where scope = 'us'")
    story = await world.story(FIRST)
    assert story.sentence == "2 scopes: 1 pending, 1 skipped (queue_full)"


# ── each code of a wait ─────────────────────────────────────────────────────────────────────────


async def _one(world: World, **job: Any) -> None:
    """A plan time whose task is due and waits."""
    await world.make(job=replace(JOB, **job))
    await world.at(FIRST)


async def _behind_another(world: World, running: str, **job: Any) -> None:
    """The same, while another task of the job runs, with these columns set."""
    await _one(world, **job)
    await world.conn.execute(
        "insert into mainspring.task (run_at, created_at, job_id, pool, state, priority, args, token, session, attempt,"
        f" started_at{''.join(f', {name}' for name in _columns(running))})"
        " select mainspring.now(), mainspring.now(), id, abs(pool), 3, 5, '{}', 2048, 7, 1, mainspring.now()"
        f"{''.join(f', {value}' for value in _columns(running).values())} from mainspring.job"
    )


def _columns(text: str) -> dict[str, str]:
    return dict(part.split("=") for part in text.split()) if text else {}


async def no_agents(world: World) -> None:
    await _one(world)


async def no_application(world: World) -> None:
    await _one(world, requires={"app": "shop"})
    await connect(world.conn, "web-1")


async def no_labels(world: World) -> None:
    await _one(world, requires={"gpu": "a100"})
    await connect(world.conn, "web-1")


async def no_amounts(world: World) -> None:
    await _one(world, placement=Placement(needs={"gpu": 2}))
    await connect(world.conn, "web-1", gpu=1)


async def all_draining(world: World) -> None:
    await _one(world)
    await connect(world.conn, "web-1")
    await registry.drain(world.conn, "web-1")


async def all_busy(world: World) -> None:
    await jobs.register(world.conn, {"job": JOB})
    await enqueue(world.conn, "job")
    await world.make()
    await set_clock(world.conn, FIRST)
    await serve_all(world.conn)
    await claim(world.conn, await connect(world.conn, "web-1", slots=1), "job", 1)
    await world.at(FIRST)


async def no_owner(world: World) -> None:
    await _one(world)
    await connect(world.conn, "web-1")
    await world.conn.execute("update mainspring.segment set owner = null")


async def retry(world: World) -> None:
    await _one(world)
    await world.conn.execute("update mainspring.task set attempt = 1, token = 1024, run_at = run_at + interval '90 s'")
    await world.conn.execute(
        """
        insert into mainspring.attempt
            (task_id, number, token, state, run_at, started_at, finished_at, error_code, error, recorded_at)
        select id, 1, 1024, 11, plan_time, plan_time, plan_time, 'failed', 'KeyError: x', mainspring.now()
          from mainspring.task
        """
    )


async def held(world: World) -> None:
    await _one(world)
    await holds.hold_job(world.conn, ACTOR, "job", note="the shop is down")


async def released(world: World) -> None:
    await held(world)
    await world.conn.execute(
        "update mainspring.hold set released_at = mainspring.now(), spread_until = mainspring.now() + interval '1 min'"
    )


async def max_running(world: World) -> None:
    await _behind_another(world, "job_slot=1", gate=Limits(max_running=1))


async def concurrency_key(world: World) -> None:
    key = "mainspring.key_within('default','shop')"
    await _behind_another(world, f"concurrency_key={key} key_slot=1", gate=Limits(key="shop"))


async def rate(world: World) -> None:
    await _one(world, gate=Limits(rate=Rate(1, 3600.0)))
    await world.conn.execute(
        "insert into mainspring.throttle (job_id, key, until) select id, '', mainspring.now() + interval '1 h'"
        " from mainspring.job"
    )


async def dependencies(world: World) -> None:
    await _one(world)
    await world.conn.execute("update mainspring.task set state = 0, pool = -abs(pool), waiting_for = 1")
    await world.conn.execute("insert into mainspring.dependency (parent, child) select 99999, id from mainspring.task")


async def after(world: World) -> None:
    await world.make(name="load")
    await world.make(every="10m", after="load")
    await world.at(FIRST)


WAITS: dict[str, tuple[Callable[[World], Awaitable[None]], str]] = {
    "no_agents": (no_agents, "no agent is connected"),
    "no_application": (no_application, "no agent runs the application 'shop'"),
    "no_labels": (no_labels, "no agent has gpu=a100"),
    "no_amounts": (no_amounts, "no agent offers gpu=2"),
    "all_draining": (all_draining, "every agent that could run it is draining: web-1"),
    "all_busy": (all_busy, "every agent that could run it is busy: web-1 (1 of 1 slots)"),
    "concurrency_key": (concurrency_key, "concurrency key 'shop': task"),
    "max_running": (max_running, "max_running: 1 of 1 run"),
    "rate": (rate, "rate 1/hour: next in"),
    "no_owner": (no_owner, "no server serves segment"),
    "retry": (retry, "retry in 90.0 s, attempt 2"),
    "held": (held, "job 'job' is held by test"),
    "released": (released, "it was released, and what waited is spread until"),
    "dependencies": (dependencies, "waits for task 99999"),
    "after": (after, "schedule load"),
}


def test_every_code_of_a_wait_has_a_story() -> None:
    assert Wait.__doc__ is not None
    assert all(code in Wait.__doc__ for code in WAITS)
    told = Wait.__doc__.replace("\n", " ").split("for programs:")[1]
    codes = {word.strip(" ,;.") for word in told.split() if "_" in word}
    assert codes <= set(WAITS), "a code without a story"


@pytest.mark.parametrize("code", WAITS)
async def test_a_wait_is_told_with_its_code(world: World, code: str) -> None:
    arrange, why = WAITS[code]
    await arrange(world)
    story = await world.story(FIRST)
    last = steps(story)[-1]
    assert (last.kind, last.code) == ("waits", code)
    assert why in last.said
    assert why in story.sentence
    assert kinds(story)[:2] == ["expected", "planned"]
    if code == "retry":
        assert "fired" in kinds(story)


# ── each case of a clock change ─────────────────────────────────────────────────────────────────

SPRING, AUTUMN = "2027-03-28T02:30", "2027-10-31T02:30"  # in Europe/Paris: there is no such time; it comes twice
GAP = datetime(2027, 3, 28, 1, tzinfo=UTC)
PASSES = [datetime(2027, 10, 31, hour, 30, tzinfo=UTC) for hour in (0, 1)]
NIGHTLY: dict[str, Any] = {"cron": "30 2 * * *", "tz": "Europe/Paris"}


async def test_a_skipped_time_is_told_with_where_it_moved(world: World) -> None:
    await world.make(**NIGHTLY)
    [story] = await world.told(local=SPRING)
    assert (story.expected, story.plan_time, story.asked) == (True, GAP, "2027-03-28T02:30:00")
    clock = steps(story)[0]
    assert (clock.kind, clock.code, clock.plan_time) == ("clock", "gap", GAP)
    assert clock.said == (
        "28 March 2027 has no 02:30 in Europe/Paris: the clocks go from 02:00 to 03:00; "
        "it is moved to 03:00 (gap=shift)"
    )
    assert story.sentence.startswith("28 March 2027 has no 02:30 in Europe/Paris")
    by_instant = await world.story(GAP)
    assert [step.said for step in by_instant.steps if step.kind == "clock"] == [
        "02:30 does not exist that day: moved to 03:00"
    ]


async def test_a_skipped_time_that_is_left_out_says_so(world: World) -> None:
    await world.make(**NIGHTLY, gap="skip")
    [story] = await world.told(local=SPRING)
    assert (story.expected, story.status, kinds(story)) == (False, "not_expected", ["not_expected"])
    assert story.sentence.endswith("the clocks go from 02:00 to 03:00, and gap=skip leaves it out")
    assert (story.before, story.after) == (
        datetime(2027, 3, 27, 1, 30, tzinfo=UTC),
        datetime(2027, 3, 29, 0, 30, tzinfo=UTC),
    )


async def test_a_skipped_time_that_was_never_one_says_so(world: World) -> None:
    await world.make(cron="0 3 * * *", tz="Europe/Paris")
    [story] = await world.told(local=SPRING)
    assert (story.status, story.fires) == ("not_expected", [])
    assert "nor is it a time of the schedule (At 03:00 every day)" in story.sentence


@pytest.mark.parametrize(
    ("fold", "expected"), [("first", [True, False]), ("second", [False, True]), ("both", [True, True])]
)
async def test_a_time_that_comes_twice_has_two_stories(world: World, fold: str, expected: list[bool]) -> None:
    await world.make(**NIGHTLY, fold=fold)
    stories = await world.told(local=AUTUMN)
    assert [story.plan_time for story in stories] == PASSES
    assert [story.expected for story in stories] == expected
    for story, which, other in zip(stories, ("first", "second"), reversed(PASSES), strict=True):
        if story.expected:
            assert f"02:30 comes twice that day: this is the {which}" in story.said
        else:
            [why] = story.steps
            assert f"02:30 comes twice that day, and fold={fold} takes the {fold}" in why.said
            assert (why.code, why.plan_time) == ("fold", other)


async def test_an_interval_does_not_care_for_clocks(world: World) -> None:
    await world.make(every="30m", tz="Europe/Paris")
    assert [story.expected for story in await world.told(local=AUTUMN)] == [True, True]
    [story] = await world.told(local=SPRING)
    assert (story.expected, story.status) == (False, "not_expected")


async def test_a_local_time_is_read_by_the_clocks_of_the_schedule(world: World) -> None:
    await world.make(**NIGHTLY)
    [story] = await world.told(local="2026-07-01T02:30")
    assert (story.plan_time, story.asked) == (datetime(2026, 7, 1, 0, 30, tzinfo=UTC), None)
    with pytest.raises(ValidationError, match="is not an instant"):
        await world.told(local="soon")


# ── what is none ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("local", "why"),
    [
        ("2026-07-01T02:31", "it is no time of the schedule (At 02:30 every day)"),
        ("2026-06-12T02:30", "Friday 2026-06-12 is excluded by holidays"),
        ("2026-06-20T02:30", "it is after the schedule's end"),
        ("2026-06-10T02:30", "the schedule was made at 2026-06-10 14:00:00+02:00"),
    ],
)
async def test_what_was_not_expected_says_why(world: World, local: str, why: str) -> None:
    await calendars.put(world.conn, "holidays", ["2026-06-12"])
    end: dict[str, Any] = {} if local.startswith("2026-07") else {"end": "2026-06-15T00:00:00Z"}
    await world.make(**NIGHTLY, calendars=["holidays"], **end)
    [story] = await world.told(local=local)
    assert kinds(story) == ["not_expected"]
    assert why in story.sentence
    assert story.sentence.startswith("Not expected: ")
