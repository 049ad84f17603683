"""Autoscale: what is due, arrives, ends and comes, for the whole or a part of it, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.operations.conftest import ACTOR, echo, same_in_json

from mainspring.errors import ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.figures.buckets import DURATION, LATENESS, empty
from mainspring.model.figures.counts import Counts
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.model.tasks.states import TaskState
from mainspring.operations.condition import autoscale
from mainspring.operations.condition.autoscale import Autoscale
from mainspring.operations.definitions import holds, jobs, schedules
from mainspring.operations.parts import workload
from mainspring.operations.planning import skips
from mainspring.store.figures import queues, rollups, scaling
from mainspring.store.figures.rollups import Rollup
from mainspring.store.postgres.database import Connection


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    autoscale._kept.clear()
    yield
    autoscale._kept.clear()


@pytest.fixture(autouse=True)
async def a_job(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())


async def ask(conn: Connection, actor: Actor = ACTOR, **given: Any) -> Autoscale:
    autoscale._kept.clear()
    return await autoscale.autoscale(conn, actor, **given)


async def now(conn: Connection) -> datetime:
    at: datetime = await conn.fetchval("select mainspring.now()")
    return at


async def submit(conn: Connection, count: int = 1, job: str = "hello", **given: Any) -> None:
    extra = "".join(f", {name} => ${number}" for number, name in enumerate(given, 3))
    await conn.execute(f"select mainspring.enqueue($1{extra}) from generate_series(1, $2)", job, count, *given.values())


async def ended(conn: Connection, count: int, seconds: float, job: str = "hello", *, planned: bool = False) -> None:
    """So many attempts of this length ended in this minute, and the queues were empty a minute ago."""
    id = await conn.fetchval("select id from mainspring.job where name = $1", job)
    at = await now(conn)
    lateness = (count, *empty(LATENESS)[1:])
    counts = Counts(
        count, count * seconds, 0.0, 0.0, seconds, 0.0, 0.0,
        (count, *empty(DURATION)[1:]), lateness if planned else None, None if planned else lateness,
    )  # fmt: skip
    minute = int(at.timestamp()) // 60 * 60
    await rollups.write(conn, [Rollup(minute, UUID(int=1), id, TaskState.SUCCEEDED, False, counts)])
    earlier = datetime.fromtimestamp(minute - 60, UTC)
    await conn.execute(
        """insert into mainspring.queue_minute (minute, job_id, counted_at, created, waiting, due, active, is_estimated)
           values ($1, 0, $1, 0, 0, 0, 0, false) on conflict do nothing""",
        earlier,
    )


async def add_agent(conn: Connection, name: str, labels: str = "{}", *, running: int = 0, slots: int = 20) -> None:
    await conn.execute(
        """insert into mainspring.agent (name, slots, labels, running, lease_until)
           values ($1, $2, $3, $4, mainspring.now() + interval '1 hour')""",
        name,
        slots,
        labels,
        running,
    )


async def test_with_nothing_to_do_nothing_is_wanted(conn: Connection) -> None:
    found = await ask(conn)
    assert (found.wanted_slots, found.wanted_agents, found.due, found.oldest_age) == (0, 0, 0, None)
    assert found.why == "nothing is due, nothing runs, and nothing is planned within 5m"
    assert same_in_json(found, Autoscale)


async def test_one_due_task_wants_one_agent(conn: Connection) -> None:
    await submit(conn)
    found = await ask(conn)
    assert (found.due, found.wanted_slots, found.wanted_agents, found.mean_duration) == (1, 1, 1, None)
    assert "1 due task" in found.why


async def test_a_backlog_is_cleared_within_the_target_wait(conn: Connection) -> None:
    await ended(conn, 1, 3.0)
    await submit(conn, 200)
    found = await ask(conn)
    assert found.mean_duration == 3.0
    rates = found.arrival_rate * 3.0
    assert found.wanted_slots == pytest.approx((200 * 3.0 / 30.0 + rates) / 0.8, abs=1)
    slower = await ask(conn, target_wait=timedelta(minutes=10), slots_per_agent=5)
    assert slower.wanted_slots < found.wanted_slots
    assert slower.wanted_agents == -(-slower.wanted_slots // 5)


async def test_what_arrives_keeps_slots_busy(conn: Connection) -> None:
    await ended(conn, 600, 2.0)
    found = await ask(conn)
    assert 600 / 120 <= found.finish_rate <= 600 / 60, "over the one or two minutes since the last count"
    assert found.arrival_rate == found.finish_rate
    assert found.wanted_slots == pytest.approx(found.arrival_rate * 2.0 / 0.8, abs=1)


async def test_a_queue_that_grows_arrives_faster_than_it_ends(conn: Connection) -> None:
    await ended(conn, 60, 1.0)
    await submit(conn, 300)
    found = await ask(conn)
    assert found.arrival_rate > 300 / 125 + found.finish_rate * 0.99


async def test_tasks_that_wait_for_a_limit_want_no_slots(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "one by one", echo(max_running=1))
    await jobs.put(conn, ACTOR, "keyed", echo(concurrency_key="k"))
    await submit(conn, 500, "one by one")
    await submit(conn, 500, "keyed")
    found = await ask(conn)
    assert (found.due, found.wanted_slots) == (0, 0)
    counted = {queue.limited for queue in (await queues.count(conn, 1.0)).queues}
    assert counted == {500}


async def test_a_held_job_wants_no_slots_for_what_waits_arrives_or_comes(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "other", echo())
    await ended(conn, 60, 3.0)
    await submit(conn, 100)
    await submit(conn, 30, delay=timedelta(minutes=2))
    await put(conn, "often", every=1)
    await submit(conn, 1, "other")
    assert (await ask(conn)).wanted_slots > 30
    await holds.hold_job(conn, ACTOR, "hello")
    found = await ask(conn)
    assert (found.due, found.planned_starts, found.planned_peak) == (1, 0, 0.0)
    assert found.arrival_rate < 1 / 60 < found.finish_rate, "the one of the other job arrived"
    assert (found.wanted_slots, found.wanted_agents) == (1, 1)
    assert found.why.endswith("; 100 due tasks of held jobs are not counted")
    await holds.hold(conn, ACTOR)
    found = await ask(conn)
    assert (found.due, found.wanted_slots, found.wanted_agents) == (0, 0, 0)
    assert found.why.endswith("; 101 due tasks of held jobs are not counted")


async def test_what_runs_of_a_held_job_keeps_its_slots(conn: Connection) -> None:
    await put(conn, "mail", daemon=3, job="hello")
    await jobs.put(conn, ACTOR, "long", echo())
    await submit(conn, 10, "long")
    await submit(conn, 3)
    await conn.execute("update mainspring.task set state = 3, started_at = mainspring.now()")
    await conn.execute(
        "delete from mainspring.task where id = (select min(id) from mainspring.task where job_id = $1)",
        await conn.fetchval("select id from mainspring.job where name = 'hello'"),
    )
    before = (await ask(conn)).wanted_slots
    await holds.hold(conn, ACTOR)
    assert (before, (await ask(conn)).wanted_slots) == (13, 12), "a replica that has ended is not started again"


async def test_what_a_release_lets_go_bit_by_bit_is_planned(conn: Connection) -> None:
    await ended(conn, 6, 10.0)
    await holds.hold_job(conn, ACTOR, "hello")
    await submit(conn, 600)
    assert (await ask(conn)).wanted_slots == 0
    await holds.release_job(conn, ACTOR, "hello")
    found = await ask(conn)
    assert (found.due, found.planned_starts) == (0, 600)
    assert found.planned_peak == pytest.approx(100.0, abs=10.0), "ten a second, for ten seconds each"
    assert found.wanted_slots == pytest.approx(125, abs=15)


async def test_planned_starts_count_before_they_are_due(conn: Connection) -> None:
    at = await now(conn)
    herd = (at + timedelta(minutes=4)).replace(microsecond=0)
    for number in range(40):
        await put(conn, f"s{number}", once=herd.isoformat())
    await put(conn, "too late", once=(at + timedelta(minutes=20)).isoformat())
    await ended(conn, 10, 5.0, planned=True)
    found = await ask(conn)
    assert (found.planned_starts, found.planned_peak, found.wanted_slots, found.wanted_agents) == (40, 40.0, 50, 3)
    assert found.planned_peak_at == herd
    assert found.why.startswith("40 planned starts within 5m need 40 slots at ")
    assert (await ask(conn, horizon=timedelta(minutes=3))).planned_starts == 0
    assert (await ask(conn, horizon=timedelta(minutes=30))).planned_starts == 41


async def put(conn: Connection, name: str, **spec: Any) -> None:
    await schedules.put(conn, ACTOR, name, ScheduleSpec(**{"job": "hello", "enabled": True, **spec}))


async def test_delayed_tasks_are_planned_starts_too(conn: Connection) -> None:
    await submit(conn, 30, delay=timedelta(minutes=2))
    await submit(conn, 7, delay=timedelta(minutes=20))
    found = await ask(conn)
    assert (found.due, found.planned_starts, found.planned_peak, found.wanted_slots) == (0, 30, 30.0, 38)


async def test_plan_times_that_have_a_task_are_counted_once(conn: Connection) -> None:
    """The planner has planned up to the cursor: what comes before it is in the table of tasks."""
    at = await now(conn)
    await put(conn, "often", every=60)
    cursor = await conn.fetchval("select next_plan_at from mainspring.schedule")
    before = (await ask(conn)).planned_starts
    await submit(conn, run_at=cursor)
    await conn.execute("update mainspring.task set origin = 'plan'")
    await conn.execute(
        "update mainspring.schedule set next_plan_at = $1::timestamptz, look_at = $1::timestamptz - interval '7.5 s'",
        cursor + timedelta(minutes=1),
    )
    assert before == 5
    assert (await ask(conn)).planned_starts in (5, 6), f"6 if a minute passed since {at}"


async def test_runs_that_must_not_overlap_need_one_slot(conn: Connection) -> None:
    await put(conn, "often", every=5, overlap="skip")
    await ended(conn, 1, 100.0, planned=True)
    assert (await ask(conn)).planned_peak == 1.0
    await schedules.edit(conn, ACTOR, "often", {"overlap": "allow"})
    assert (await ask(conn)).planned_peak == pytest.approx(20.0, abs=1.0)


async def test_a_limit_bounds_what_is_planned(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo(max_running=3))
    for number in range(20):
        await put(conn, f"s{number}", every=60)
    found = await ask(conn)
    assert (found.planned_starts >= 80, found.planned_peak, found.wanted_slots) == (True, 3.0, 4)


async def test_quick_intervals_are_counted_by_arithmetic(conn: Connection) -> None:
    await put(conn, "ticks", every=0.1)
    found = await ask(conn, horizon=timedelta(minutes=2))
    assert found.planned_starts == pytest.approx(1200, abs=80), "the first seconds are those before its start"


async def test_plan_times_that_are_skipped_by_hand_start_nothing(conn: Connection) -> None:
    await put(conn, "often", every=60)
    assert (await ask(conn)).planned_starts == 5
    await skips.skip(conn, ACTOR, "often", next=3, note="release")
    assert (await ask(conn)).planned_starts in (2, 3), "3 if a minute has passed"
    await put(conn, "ticks", every=0.5)
    assert (await ask(conn)).planned_starts > 500
    await skips.skip(conn, ACTOR, "ticks", until=await now(conn) + timedelta(minutes=10))
    assert (await ask(conn)).planned_starts in (2, 3)


async def test_daemons_keep_their_slots(conn: Connection) -> None:
    await put(conn, "mail", daemon=3)
    found = await ask(conn)
    assert (found.wanted_slots, found.wanted_agents, found.why) == (3, 1, "3 replicas of daemons")


async def test_busy_slots_are_not_taken_away(conn: Connection) -> None:
    await add_agent(conn, "eve", running=12)
    found = await ask(conn)
    assert (found.agents, found.slots_busy, found.slots_free, found.wanted_slots) == (1, 12, 8, 12)
    assert found.why == "12 busy slots are kept"


async def test_labels_select_the_work_that_requires_them(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "train", echo(requires={"gpu": "a100"}))
    await jobs.put(conn, ACTOR, "shop.sell", echo(requires={"app": "shop"}))
    await submit(conn, 1)
    await submit(conn, 10, "train")
    await submit(conn, 100, "shop.sell")
    await add_agent(conn, "plain")
    await add_agent(conn, "fast", '{"gpu": "a100", "zone": "eu"}', slots=2)
    assert (await ask(conn)).due == 111
    gpu = await ask(conn, labels=["gpu=a100"])
    assert (gpu.due, gpu.agents, gpu.slots_free) == (10, 1, 2)
    assert gpu.why.endswith("1 due task that require fewer labels are not counted")
    assert (await ask(conn, labels=["gpu=a100,zone=eu"])).due == 0
    others = await ask(conn, labels=["!gpu", "!app"])
    assert (others.due, others.agents) == (1, 1)
    assert (await ask(conn, app="shop")).due == 100
    assert (await ask(conn, labels=[""], app="")).due == 111
    assert (await ask(conn, Actor("x", jobs=("shop.*",)))).due == 100
    for bad in (["gpu"], ["=x"], ["gpu="], [f"a{number}=b" for number in range(30)]):
        with pytest.raises(ValidationError):
            await ask(conn, labels=bad)


async def test_what_makes_no_sense_is_refused(conn: Connection) -> None:
    for given in (
        {"slots_per_agent": 0},
        {"target_wait": timedelta(0)},
        {"target_wait": timedelta(hours=2)},
        {"horizon": timedelta(seconds=-1)},
        {"horizon": timedelta(hours=2)},
    ):
        with pytest.raises(ValidationError):
            await ask(conn, **given)


async def test_an_earlier_duration_counts_where_there_is_no_recent_one(conn: Connection) -> None:
    await ended(conn, 10, 4.0)
    await conn.execute("update mainspring.figure set minute = minute - interval '90 minutes'")
    found = await ask(conn)
    assert (found.mean_duration, found.finish_rate) == (None, 0.0), "no job has any work"
    await submit(conn, 30)
    assert (await ask(conn)).mean_duration == 4.0
    await conn.execute(
        """insert into mainspring.figure_hour (hour, job_id, count, duration_sum, outcome, again, durations,
                                               planned_sum, due_sum, duration_max, planned_max, due_max)
           select date_trunc('hour', mainspring.now() - interval '3 days'), job_id, 10, 60, outcome, again, durations,
                  0, 0, 0, 0, 0 from mainspring.figure"""
    )
    await conn.execute("delete from mainspring.figure")
    assert (await ask(conn)).mean_duration == 6.0


async def test_without_time_for_all_schedules_it_is_an_estimate(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await put(conn, f"s{number}", every=60 + number)
    assert not (await ask(conn)).is_estimated
    monkeypatch.setattr(workload, "BUDGET", -1.0)
    monkeypatch.setattr("mainspring.operations.parts.slices.SLICE", 0.0)
    assert (await ask(conn)).is_estimated


async def test_what_is_read_is_kept_for_a_while(conn: Connection) -> None:
    await submit(conn, 3)
    assert (await ask(conn)).due == 3
    await submit(conn, 3)
    assert (await autoscale.autoscale(conn, ACTOR)).due == 3
    assert (await ask(conn)).due == 6


async def test_a_schedule_that_cannot_be_planned_here_counts_nothing(conn: Connection) -> None:
    await put(conn, "mars", every=60)
    await put(conn, "odd", every=60)
    await conn.execute("update mainspring.schedule set timezone = 'Mars/Base' where name = 'mars'")
    await conn.execute("update mainspring.schedule set policies = '{\"jitter\": \"x\"}' where name = 'odd'")
    assert (await ask(conn)).planned_starts == 0


async def test_equal_schedules_are_one_group(conn: Connection) -> None:
    for number in range(30):
        await put(conn, f"s{number}", cron="* * * * *")
        await put(conn, f"j{number}", cron="* * * * *", jitter=5)
    at = await now(conn)
    [text] = await scaling.cursors(conn, at + timedelta(minutes=5))
    assert sorted(cursor.schedules for cursor in scaling.decode(text)) == [1] * 30 + [30]
    assert 30 * 9 <= (await ask(conn)).planned_starts <= 60 * 6
