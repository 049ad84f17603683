"""AfterLoop: a plan time waits for that of another schedule, whatever their cadences, and whatever becomes of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cluster import server_lease
from tests.operations.conftest import ACTOR
from tests.query_plans import rows_read
from tests.server.watch.conftest import plan, set_clock

from mainspring.errors import Conflict, ScheduleNotFound, ValidationError
from mainspring.model.messages import Ending
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.operations.work import tasks as task_operations
from mainspring.server.planning import after as after_module
from mainspring.server.planning.after import AfterLoop
from mainspring.server.planning.dependencies import DependenciesLoop
from mainspring.server.planning.overlap import OverlapLoop
from mainspring.server.planning.planner import Planner
from mainspring.store.followed import after as after_store
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import explain, schedules, synchronise
from mainspring.store.tasks import jobs, partitions, transitions

NOON = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture(autouse=True)
async def at_noon(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await set_clock(conn, NOON)
    await partitions.make_ahead(conn, days=3)


@pytest.fixture
async def planner(database: Database) -> Any:
    planner = Planner(database, server_lease(), None, {})
    yield planner
    await planner.close()


class World:
    def __init__(self, conn: Connection, database: Database, planner: Planner) -> None:
        self.conn = conn
        self._planner = planner
        self._after = AfterLoop(database)
        self._dependencies = DependenciesLoop(database)
        self._overlap = OverlapLoop(database, server_lease(), lambda: 5.0)

    async def make(self, name: str, **when: Any) -> None:
        assert await schedules.create(self.conn, define_schedule(name, "job", when), enabled=True)  # type: ignore[arg-type]

    async def at(self, after_noon: timedelta, *, plans: bool = True) -> None:
        """All loops run at this time."""
        if plans:
            await plan(self.conn, self._planner, NOON + after_noon)
        else:
            await set_clock(self.conn, NOON + after_noon)
        await self._overlap.step()
        await self._after.step()
        self._dependencies._searched_at = 0.0
        await self._dependencies.step()

    async def end(self, schedule: str, state: TaskState = TaskState.SUCCEEDED) -> None:
        """The released tasks of a schedule end."""
        rows = await self.conn.fetch(
            """update mainspring.task t set state = 2, token = t.id, attempt = 1 from mainspring.schedule s
                where s.id = t.schedule_id and s.name = $1 and t.state = 1 returning t.id, t.job_id, t.plan_time""",
            schedule,
        )
        for row in rows:
            at = row["plan_time"].timestamp()
            ending = Ending(row["id"], row["id"], row["job_id"], 1, state, at, at + 1)
            await partitions.write(self.conn, lambda ending=ending: transitions.finish(self.conn, [ending]))  # type: ignore[misc]

    async def states(self, schedule: str) -> dict[str, str]:
        """By plan time after noon, and scope."""
        rows = await self.conn.fetch(
            """select f.plan_time, f.scope, coalesce(h.state, t.state) as state, h.error
                 from mainspring.fire f join mainspring.schedule s on s.id = f.schedule_id and s.name = $1
                 left join mainspring.task t on t.id = f.task_id
                 left join mainspring.task_history h on h.id = f.task_id
                where f.task_id is not null order by 1, 2""",
            schedule,
        )
        return {
            f"{row['plan_time'] - NOON}{row['scope']}": TaskState(row["state"]).label
            + (f": {row['error']}" if row["error"] else "")
            for row in rows
        }


@pytest.fixture
def world(conn: Connection, database: Database, planner: Planner) -> World:
    return World(conn, database, planner)


async def test_the_same_plan_time_of_the_other_must_succeed_first(world: World) -> None:
    await world.make("load", every="5m")
    await world.make("report", every="5m", after="load")
    await world.at(5 * MINUTE - 5 * SECOND)
    assert await world.states("report") == {"0:05:00": "blocked"}
    await world.at(5 * MINUTE + 2 * SECOND)
    assert (await world.states("load"), await world.states("report")) == (
        {"0:05:00": "pending"}, {"0:05:00": "blocked"}
    )  # fmt: skip
    await world.end("load")
    await world.at(5 * MINUTE + 4 * SECOND)
    assert await world.states("report") == {"0:05:00": "pending"}
    assert await world.conn.fetchval("select run_at from mainspring.task") == NOON + 5 * MINUTE + 4 * SECOND


async def test_another_cadence_waits_for_the_latest_earlier_plan_time_and_is_released_ahead(world: World) -> None:
    await world.make("load", every="1h", anchor=(NOON + 10 * MINUTE).isoformat())
    await world.make("report", every="15m", after="load")
    await world.at(10 * MINUTE)
    await world.end("load")
    await world.at(15 * MINUTE - 5 * SECOND)
    assert await world.states("report") == {"0:15:00": "pending"}, "ahead of its time: the other has ended long ago"
    assert await world.conn.fetchval("select run_at from mainspring.task") == NOON + 15 * MINUTE


async def test_a_failure_of_the_other_skips_it_and_the_next_one_waits_for_the_next(world: World) -> None:
    await world.make("load", every="5m")
    await world.make("report", every="5m", after="load")
    await world.at(5 * MINUTE)
    await world.at(5 * MINUTE + SECOND)
    await world.end("load", TaskState.FAILED)
    await world.at(5 * MINUTE + 2 * SECOND)
    [(_, told)] = (await world.states("report")).items()
    assert told.startswith("skipped: task ")
    assert told.endswith(", which it waits for, did not succeed")
    await world.at(10 * MINUTE)
    await world.end("load")
    await world.at(10 * MINUTE + 2 * SECOND)
    assert (await world.states("report"))["0:10:00"] == "pending"


async def test_one_that_ended_before_it_was_looked_up_counts_too(world: World) -> None:
    await world.make("load", every="5m")
    await world.make("report", every="5m", after="load", delay="1m")
    await world.at(5 * MINUTE - 5 * SECOND)
    await world.end("load", TaskState.TIMED_OUT)
    await world.at(6 * MINUTE)
    assert list((await world.states("report")).values()) == [
        "skipped: task 1 for 2026-06-10 12:05:00 UTC of schedule load, which it waits for, did not succeed"
    ]


async def test_the_other_that_nobody_has_planned_yet_is_waited_for(world: World) -> None:
    await world.make("load", every="5m")
    await world.make("report", every="5m", after="load")
    await world.conn.execute("update mainspring.schedule set look_at = $1 where name = 'load'", NOON + HOUR)
    await world.at(5 * MINUTE + 30 * SECOND)
    assert await world.states("report") == {"0:05:00": "blocked"}
    task = await world.conn.fetchval("select id from mainspring.task")
    shown = await task_operations.show(world.conn, ACTOR, task)
    assert shown.waits is not None
    assert (shown.waits.code, shown.waits.reason) == ("after", "schedule load: its next plan time must succeed first")
    [story] = await explain.explain(world.conn, await schedules.find(world.conn, "report"), NOON + 5 * MINUTE)
    assert "waits for schedule load, whose plan time up to this one must succeed first" in " ".join(story.fires[0].said)
    await world.conn.execute("update mainspring.schedule set look_at = $1 where name = 'load'", NOON)
    await world.at(5 * MINUTE + 40 * SECOND)
    await world.end("load")
    await world.at(5 * MINUTE + 42 * SECOND)
    assert await world.states("report") == {"0:05:00": "pending"}


async def test_a_plan_time_that_the_other_has_skipped_or_missed_skips_it(world: World) -> None:
    await world.make("load", every="5m", catch_up="skip")
    await world.make("report", every="5m", after="load", catch_up="all")
    await world.at(7 * MINUTE)
    await world.at(7 * MINUTE + SECOND)
    assert list((await world.states("report")).values()) == [
        "skipped: 2026-06-10 12:05:00 UTC of schedule load, which it waits for, was skipped (misfire)"
    ]


async def test_a_disabled_other_skips_what_it_would_have_run_and_not_what_it_has(world: World) -> None:
    await world.make("load", every="1h", anchor=(NOON + 2 * MINUTE).isoformat())
    await world.make("report", every="5m", after="load")
    await world.at(2 * MINUTE)
    await world.end("load")
    await schedules.change(world.conn, "load", lambda schedule: schedule, enabled=False)
    await world.at(5 * MINUTE + SECOND)
    assert await world.states("report") == {"0:05:00": "pending"}, "its last plan time has succeeded"
    await world.end("report")
    await world.at(HOUR + 5 * MINUTE - 5 * SECOND)
    assert (await world.states("report"))["1:05:00"] == "blocked", "it may be enabled yet"
    await world.at(HOUR + 5 * MINUTE + SECOND)
    assert (await world.states("report"))["1:05:00"] == "skipped: schedule load, which it waits for, is disabled"


async def test_without_an_earlier_plan_time_it_is_skipped(world: World) -> None:
    await world.make("load", daily="03:00")
    await world.make("report", every="5m", after="load")
    await world.at(5 * MINUTE + SECOND)
    assert list((await world.states("report")).values()) == ["skipped: schedule load had no plan time before it"]


async def test_an_edit_of_the_other_before_its_instant_costs_nothing(world: World) -> None:
    await world.make("load", every="5m")
    await world.make("report", every="5m", after="load")
    await world.at(5 * MINUTE - 5 * SECOND)
    change = define_schedule("load", "job", {"every": "5m"}, description="new")
    await schedules.change(world.conn, "load", lambda _: change)
    await world.at(5 * MINUTE - 3 * SECOND)
    await world.at(5 * MINUTE + SECOND)
    await world.end("load")
    await world.at(5 * MINUTE + 3 * SECOND)
    assert (await world.states("report"))["0:05:00"] == "pending"


async def test_the_same_scope_where_the_other_has_it_else_all(world: World) -> None:
    await world.make("load", every="5m", scopes=["eu", "us"])
    await world.make("report", every="5m", scopes=["eu", "us"], after="load")
    await world.make("sum", every="5m", after="load")
    await world.at(5 * MINUTE)
    await world.at(5 * MINUTE + SECOND)
    await world.conn.execute("update mainspring.task set state = 3 where scope = 'us' and state = 1")
    await world.end("load")
    await world.at(5 * MINUTE + 2 * SECOND)
    assert await world.states("report") == {"0:05:00eu": "pending", "0:05:00us": "blocked"}
    assert await world.states("sum") == {"0:05:00": "blocked"}


async def test_a_clock_change_between_two_zones_waits_for_what_came_before_it(world: World) -> None:
    """Paris leaves out 02:30 on that day; its plan time moves to 03:00, which is 01:00 UTC."""
    night = datetime(2026, 3, 29, tzinfo=UTC)
    await set_clock(world.conn, night)
    await partitions.make_ahead(world.conn, days=3)
    await world.make("load", daily="02:30", tz="Europe/Paris")
    await world.make("report", daily="01:00", after="load")
    await world.at(night + HOUR - NOON)
    await world.at(night + HOUR + SECOND - NOON)
    await world.end("load")
    await world.at(night + HOUR + 2 * SECOND - NOON)
    assert list((await world.states("report")).values()) == ["pending"]


async def test_circles_and_what_cannot_be_waited_for_are_refused(world: World, conn: Connection) -> None:
    await world.make("a", every="5m")
    await world.make("b", every="5m", after="a")
    await world.make("c", every="5m", after="b")
    for name, other in (("a", "c"), ("a", "b")):
        edited = define_schedule(name, "job", {"every": "5m", "after": other})
        with pytest.raises(ValidationError, match="is a circle"):
            await schedules.change(conn, name, lambda _, edited=edited: edited)  # type: ignore[misc]
    with pytest.raises(ScheduleNotFound, match="no schedule named 'x'; make it first"):
        await world.make("d", every="5m", after="x")
    await schedules.create(conn, define_schedule("pump", "job", {"daemon": 1}), enabled=False)
    with pytest.raises(ValidationError, match="keeps replicas running"):
        await world.make("d", every="5m", after="pump")
    with pytest.raises(Conflict, match="b waits for it; first `mainspring schedule edit b --clear after`"):
        await schedules.delete(conn, "a")
    for options, why in (
        ({"after": "d"}, "wait for itself"),
        ({"after": "a", "overlap": "skip"}, "does not go with overlap=skip"),
        ({"after": "a", "first": "latest"}, "which runs at once"),
    ):
        with pytest.raises(ValidationError, match=why):
            define_schedule("d", "job", {"every": "5m", **options})  # type: ignore[typeddict-item]


async def test_one_that_no_longer_waits_is_released(world: World, conn: Connection) -> None:
    await world.make("load", every="5m")
    await world.make("report", every="5m", after="load")
    await world.conn.execute("update mainspring.schedule set look_at = null where name = 'load'")
    await world.at(5 * MINUTE)
    await schedules.change(conn, "report", lambda _: define_schedule("report", "job", {"every": "5m"}))
    await world.at(5 * MINUTE + SECOND, plans=False)
    assert (await world.states("report"))["0:05:00"] == "pending"


async def test_an_application_makes_what_others_wait_for_first(conn: Connection) -> None:
    given = [
        define_schedule("a", "job", {"every": "5m", "after": "c"}),
        define_schedule("b", "job", {"every": "5m"}),
        define_schedule("c", "job", {"every": "5m", "after": "b"}),
    ]
    assert await synchronise.synchronise(conn, "shop", 1, given) == ["b", "c", "a"]


async def test_tasks_that_stay_undecided_do_not_hold_up_those_of_other_schedules(
    world: World, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_module, "BATCH", 2)
    await world.make("down", every="5m")
    await conn.execute("update mainspring.schedule set look_at = null")
    for name in ("a", "b"):
        await world.make(name, every="5m", after="down")
    await world.at(5 * MINUTE)
    await conn.execute("update mainspring.schedule set look_at = null")
    await world.make("load", every="5m")
    for name in ("c", "d", "e"):
        await world.make(name, every="5m", after="load")
    await plan(conn, world._planner, NOON + 10 * MINUTE)
    assert [await world._after.step() for _ in range(3)] == [2, 0, 0], "two depend, then one; then it begins again"
    await world.end("load")
    await world.at(10 * MINUTE + SECOND)
    states = [list((await world.states(name)).values()) for name in "abcde"]
    assert states == [["blocked"], ["blocked"], ["pending"], ["pending"], ["pending"]]


async def test_to_find_that_nothing_waits_reads_no_tasks_whatever_the_statistics_say(
    conn: Connection, database: Database
) -> None:
    await conn.execute("analyze mainspring.task")  # while it is empty
    await conn.execute("select count(*) from (select mainspring.enqueue('job') from generate_series(1, 2000)) made")
    loop = AfterLoop(database)
    assert await loop.step() == 0
    async with loop._dedicated as its:
        assert await rows_read(its, after_store._ANY) < 10
