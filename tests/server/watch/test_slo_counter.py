"""SloCounter: each plan time of a schedule with an SLO counts once, good or bad, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.operations.conftest import ACTOR, same_in_json
from tests.server.watch.conftest import HOUR, MINUTE, NOON, plan, set_clock, start

from mainspring.errors import Conflict
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.tasks.states import TaskState
from mainspring.operations.definitions import schedules as operations
from mainspring.operations.planning import plan_times
from mainspring.server.planning.planner import Planner
from mainspring.server.watch.slo_counter import SloCounter
from mainspring.store.followed import slo
from mainspring.store.followed.slo import SloState
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import overlap, schedules

SLO = {"lateness": "2s", "target": 0.9}


@pytest.fixture
def counter(database: Database) -> SloCounter:
    return SloCounter(database)


async def make(conn: Connection, **when: Any) -> None:
    given: Any = {"every": "1m", "slo": SLO, **when}
    assert await schedules.create(conn, define_schedule("s", "job", given), enabled=True)


async def count(conn: Connection, counter: SloCounter, at: datetime | None = None) -> tuple[int, int, int]:
    """Good, bad, and missed of the bad."""
    if at is not None:
        await set_clock(conn, at)
    while await counter.step():
        pass
    state = await plan_times.slo(conn, ACTOR, "s")
    return state.good, state.bad, state.missed


async def test_starts_in_time_are_good_and_late_ones_bad(
    conn: Connection, planner: Planner, counter: SloCounter
) -> None:
    await make(conn)
    for number, late in enumerate((0.001, 2.0, 2.1), 1):
        await plan(conn, planner, NOON + number * MINUTE - timedelta(seconds=5))
        await start(conn, late)
        assert await count(conn, counter) == ((number - 1, 0, 0) if number < 4 else ()), "not before it can be judged"
        expected = {1: (1, 0, 0), 2: (2, 0, 0), 3: (2, 1, 0)}[number]
        assert await count(conn, counter, NOON + number * MINUTE + timedelta(seconds=10)) == expected
    assert counter.tally == {("s", True): 2, ("s", False): 1}
    rows = await conn.fetch("select minute, good, bad from mainspring.slo_minute order by minute")
    assert [(row["minute"], row["good"], row["bad"]) for row in rows] == [
        (NOON + MINUTE, 1, 0),
        (NOON + 2 * MINUTE, 1, 0),
        (NOON + 3 * MINUTE, 0, 1),
    ]
    state = await plan_times.slo(conn, ACTOR, "s")
    assert state.compliance == pytest.approx(2 / 3)
    assert state.budget_left == pytest.approx(1 - 1 / 0.3)
    assert same_in_json(state, SloState)
    assert (await operations.show(conn, ACTOR, "s")).slo == state


async def test_what_nobody_planned_for_an_hour_is_missed_before_and_after_the_planner_is_back(
    conn: Connection, planner: Planner, counter: SloCounter
) -> None:
    await make(conn)
    assert await count(conn, counter, NOON + HOUR + timedelta(seconds=30)) == (0, 60, 60), "no planner was there"
    await plan(conn, planner, NOON + HOUR + timedelta(seconds=31))
    await start(conn, 31.0)
    assert await count(conn, counter, NOON + HOUR + timedelta(seconds=40)) == (0, 60, 60), "each once"
    await plan(conn, planner, NOON + HOUR + MINUTE - timedelta(seconds=5))
    await start(conn, 0.0)
    assert await count(conn, counter, NOON + HOUR + MINUTE + timedelta(seconds=10)) == (1, 60, 60)


async def test_plan_times_that_were_coalesced_are_missed_and_the_one_that_ran_is_late(
    conn: Connection, planner: Planner, counter: SloCounter
) -> None:
    await make(conn)
    await plan(conn, planner, NOON + HOUR + timedelta(seconds=30))
    await start(conn, 30.0)
    assert await count(conn, counter, NOON + HOUR + timedelta(seconds=40)) == (0, 60, 59)


async def test_what_a_policy_or_a_person_skips_does_not_count(
    conn: Connection, planner: Planner, counter: SloCounter
) -> None:
    await make(conn, overlap="skip")
    await plan(conn, planner, NOON + MINUTE - timedelta(seconds=5))
    [task] = await conn.fetch("update mainspring.task set state = 3, token = id, started_at = plan_time returning id")
    await plan(conn, planner, NOON + 2 * MINUTE - timedelta(seconds=5))
    [waits] = await conn.fetch("select id from mainspring.task where state = 0")
    assert await count(conn, counter, NOON + 2 * MINUTE + timedelta(seconds=10)) == (1, 0, 0), "its policy decides yet"
    await overlap.skip(conn, [waits["id"]])
    assert await count(conn, counter, NOON + 2 * MINUTE + timedelta(seconds=20)) == (1, 0, 0)
    await conn.execute("delete from mainspring.task where id = $1", task["id"])
    await plan(conn, planner, NOON + 3 * MINUTE - timedelta(seconds=5))
    await schedules.change(conn, "s", lambda schedule: schedule, enabled=False)
    assert await count(conn, counter, NOON + 9 * MINUTE + timedelta(seconds=20)) == (1, 0, 0), "it was disabled"
    await schedules.change(conn, "s", lambda schedule: schedule, enabled=True)
    await plan(conn, planner, NOON + 10 * MINUTE - timedelta(seconds=5))
    await start(conn)
    assert await count(conn, counter, NOON + 10 * MINUTE + timedelta(seconds=10)) == (2, 0, 0)


async def test_an_agent_that_was_cut_off_may_report_a_start_in_time_later(
    conn: Connection, planner: Planner, counter: SloCounter
) -> None:
    await make(conn)
    await plan(conn, planner, NOON + MINUTE - timedelta(seconds=5))
    await conn.execute("update mainspring.task set state = 2, token = id, attempt = 1")
    assert await count(conn, counter, NOON + MINUTE + timedelta(seconds=50)) == (0, 0, 0)
    await conn.execute("update mainspring.task set state = 3, started_at = plan_time + interval '1 s'")
    assert await count(conn, counter, NOON + MINUTE + timedelta(seconds=56)) == (1, 0, 0)


async def test_a_task_that_waits_for_an_agent_is_missed(
    conn: Connection, planner: Planner, counter: SloCounter
) -> None:
    await make(conn)
    await plan(conn, planner, NOON + MINUTE - timedelta(seconds=5))
    assert await count(conn, counter, NOON + MINUTE + timedelta(seconds=10)) == (0, 1, 1)
    await start(conn, 30.0)
    assert await count(conn, counter, NOON + MINUTE + timedelta(seconds=40)) == (0, 1, 1)


async def test_the_first_attempt_counts_whatever_its_end(
    conn: Connection, planner: Planner, counter: SloCounter
) -> None:
    await make(conn)
    await plan(conn, planner, NOON + MINUTE - timedelta(seconds=5))
    await start(conn, 1.0, state=TaskState.FAILED)
    await conn.execute(
        """
        insert into mainspring.attempt (task_id, token, number, state, started_at, finished_at, recorded_at, run_at)
        select id, 1, 1, 11, plan_time, plan_time, mainspring.now(), plan_time from mainspring.task_history
        """
    )
    await conn.execute("update mainspring.task_history set started_at = started_at + interval '20 s'")
    assert await count(conn, counter, NOON + MINUTE + timedelta(seconds=50)) == (1, 0, 0)


async def test_delay_and_jitter_are_wanted(conn: Connection, planner: Planner, counter: SloCounter) -> None:
    await make(conn, delay="90s", jitter="20s")
    await plan(conn, planner, NOON + MINUTE + timedelta(seconds=85))
    due = await conn.fetchval("select run_at from mainspring.task")
    assert due > NOON + MINUTE + timedelta(seconds=90)
    await start(conn, (due - NOON - MINUTE).total_seconds() + 1.5)
    assert await count(conn, counter, due + timedelta(seconds=3)) == (0, 0, 0)
    assert await count(conn, counter, due + timedelta(seconds=25)) == (1, 0, 0)
    assert await conn.fetchval("select minute from mainspring.slo_minute") == due.replace(second=0, microsecond=0)


async def test_every_scope_counts(conn: Connection, planner: Planner, counter: SloCounter) -> None:
    await make(conn, scopes=["eu", "us"])
    await plan(conn, planner, NOON + MINUTE - timedelta(seconds=5))
    await start(conn)
    assert await count(conn, counter, NOON + 2 * MINUTE + timedelta(seconds=10)) == (2, 2, 2)


async def test_two_leaders_and_a_repeated_answer_count_once(
    conn: Connection, database: Database, planner: Planner
) -> None:
    await make(conn)
    await set_clock(conn, NOON + 30 * MINUTE + timedelta(seconds=30))
    counters = [SloCounter(database) for _ in range(4)]
    await asyncio.gather(*(counter.step() for counter in counters))
    assert await count(conn, counters[0]) == (0, 30, 30)
    assert sum(sum(counter.tally.values()) for counter in counters) == 30
    [cursor] = await conn.fetch("select * from mainspring.slo")
    before = [slo.Advance(cursor["schedule_id"], NOON, NOON + HOUR, NOON)]
    assert await slo.add(conn, before, [slo.Events(cursor["schedule_id"], NOON, 7, 7, 7)]) == set()
    assert await count(conn, counters[0]) == (0, 30, 30)


async def test_a_long_outage_is_counted_in_bounded_steps(
    conn: Connection, counter: SloCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.server.watch.slo_counter.PLAN_TIMES", 7)
    await make(conn, every="10s")
    await set_clock(conn, NOON + 5 * MINUTE + timedelta(seconds=8))
    await counter.step()
    assert await conn.fetchval("select sum(bad) from mainspring.slo_minute") == 7
    assert await count(conn, counter) == (0, 30, 30)


async def test_burn_rates_need_both_windows(conn: Connection, planner: Planner, counter: SloCounter) -> None:
    await make(conn, slo={"lateness": "2s", "target": 0.99})
    for minute in range(1, 31):
        await plan(conn, planner, NOON + minute * MINUTE - timedelta(seconds=5))
        await start(conn)
    await count(conn, counter, NOON + 30 * MINUTE + timedelta(seconds=10))
    fast, slow = (await plan_times.slo(conn, ACTOR, "s")).burn_rates
    assert (fast.long_rate, fast.is_burning, slow.is_burning) == (0.0, False, False)
    await count(conn, counter, NOON + 40 * MINUTE + timedelta(seconds=10))
    fast, slow = (await plan_times.slo(conn, ACTOR, "s")).burn_rates
    assert (fast.threshold, fast.long_rate, fast.short_rate, fast.is_burning) == (14.4, 25.0, 100.0, True)
    assert slow.is_burning
    await plan(conn, planner, NOON + 40 * MINUTE + timedelta(seconds=11))
    await start(conn, 11.0)
    for minute in range(41, 50):
        await plan(conn, planner, NOON + minute * MINUTE - timedelta(seconds=5))
        await start(conn)
    await count(conn, counter, NOON + 49 * MINUTE + timedelta(seconds=10))
    fast, slow = (await plan_times.slo(conn, ACTOR, "s")).burn_rates
    assert (fast.is_burning, fast.short_rate, slow.is_burning) == (False, 0.0, True), "the short window ends it"
    [budget] = await slo.spending(conn, ["s"], NOON + 50 * MINUTE, limit=10)
    assert (budget.name, budget.job, budget.since, budget.counts[21600.0].bad) == ("s", "job", NOON + 31 * MINUTE, 10)
    assert await slo.spending(conn, ["x%"], NOON + 50 * MINUTE, limit=10) == []


async def test_an_objective_can_be_added_changed_and_taken_away(
    conn: Connection, planner: Planner, counter: SloCounter
) -> None:
    assert await schedules.create(conn, define_schedule("s", "job", {"every": "1m"}), enabled=True)
    with pytest.raises(Conflict, match="has no SLO"):
        await plan_times.slo(conn, ACTOR, "s")
    assert (await operations.show(conn, ACTOR, "s")).slo is None
    await set_clock(conn, NOON + 10 * MINUTE + timedelta(seconds=20))
    await operations.edit(conn, ACTOR, "s", {"slo": {"lateness": "1s"}})
    assert await count(conn, counter, NOON + 11 * MINUTE + timedelta(seconds=20)) == (0, 1, 1), "from then on"
    await operations.edit(conn, ACTOR, "s", {"slo": {"target": 0.95}})
    assert (await plan_times.slo(conn, ACTOR, "s")).target == 0.95
    assert await count(conn, counter) == (0, 1, 1), "what was counted stays"
    await operations.edit(conn, ACTOR, "s", {"slo": None})
    assert not await conn.fetchval("select count(*) from mainspring.slo_minute")
    assert not await conn.fetchval("select count(*) from mainspring.slo")


async def test_a_schedule_without_an_objective_is_not_looked_at(conn: Connection, counter: SloCounter) -> None:
    assert await schedules.create(conn, define_schedule("s", "job", {"every": "1s"}), enabled=True)
    await set_clock(conn, NOON + HOUR)
    assert await slo.due(conn, 10) == []
    assert await counter.step() == 0
