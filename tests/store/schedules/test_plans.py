"""Plans: each plan time is decided once, by the first planner; a planner that comes late writes nothing."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from tests.cluster import OWNER
from tests.query_plans import nodes, rows_read
from tests.schedules import Entry, at, claimed, create, ledger, live, planned, set_clock

from mainspring.model.tasks.jobs import Definition, Python
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import overlap, plans, revoke, schedules, skips
from mainspring.store.schedules.plans import Advance, Fire
from mainspring.store.tasks import jobs


@pytest.fixture
async def report(conn: Connection) -> int:
    """Every ten seconds; it is 12:00:15, and 20 is due soon."""
    await set_clock(conn, 10)
    report = await create(conn, every=10)
    await set_clock(conn, 15)
    return report


async def written(conn: Connection) -> tuple[Any, ...]:
    """All that a plan writes."""
    schedule = await conn.fetch("select id, next_plan_at, look_at, runs, version, problem from mainspring.schedule")
    return (
        [tuple(row) for row in schedule],
        await conn.fetchval("select count(*) from mainspring.fire"),
        await conn.fetchval("select count(*) from mainspring.task"),
    )


# ── compare and set ─────────────────────────────────────────────────────────────────────────────


async def test_what_is_due_is_planned_and_the_cursor_moves(conn: Connection, report: int) -> None:
    assert await planned(conn) == {report}
    assert await ledger(conn, report) == [Entry(20, "", None)]
    stored = await schedules.find(conn, "report")
    assert (stored.next_plan_at, stored.runs) == (at(30), 1)
    assert await plans.due(conn, OWNER, 10) == []
    [task] = await conn.fetch("select * from mainspring.task")
    fire = await conn.fetchrow("select * from mainspring.fire")
    assert (task["scope"], task["args"]) == ("", "{}")
    assert (task["id"], task["run_at"], task["created_at"], fire["decided_at"]) == (
        fire["task_id"],
        at(20),
        at(15),
        at(15),
    )


async def test_fires_with_and_without_what_most_lack_are_written_together(conn: Connection, report: int) -> None:
    [due] = await plans.due(conn, OWNER, 10)
    advance = plans.Advance(due.id, due.number, due.cursor, at(40), at(35), due.epoch)
    fires = [
        plans.Fire(report, at(20), "", at(20), None),
        plans.Fire(report, at(20), "north", at(21), None, '{"day": 1}'),
        plans.Fire(report, at(30), "", at(30), "misfire"),
    ]
    assert await plans.plan(conn, OWNER, [advance], fires) == {report}
    rows = await conn.fetch("select scope, run_at, args::text from mainspring.task order by scope")
    assert [tuple(row) for row in rows] == [("", at(20), "{}"), ("north", at(21), '{"day": 1}')]
    assert await ledger(conn, report) == [Entry(20, "", None), Entry(20, "north", None), Entry(30, "", "misfire")]


async def test_plan_times_without_a_task_take_no_room_in_a_queue(conn: Connection) -> None:
    await set_clock(conn, 10)
    report = await create(conn, every=10, when_full="skip")
    await jobs.register(conn, {"job": Definition(Python("job"), max_queued=2)})
    await set_clock(conn, 15)
    [due] = await plans.due(conn, OWNER, 10)
    advance = plans.Advance(due.id, due.number, due.cursor, at(90), at(85), due.epoch)
    fires = [plans.Fire(report, at(second), "", at(second), "coalesced") for second in (20, 30, 40, 50)]
    fires += [plans.Fire(report, at(second), "", at(second), None) for second in (60, 70, 80)]
    assert await plans.plan(conn, OWNER, [advance], fires) == {report}
    assert [entry.reason for entry in await ledger(conn, report)] == ["coalesced"] * 4 + [None, None, "queue_full"]


CHANGES = {
    "another planner was quicker": "update mainspring.schedule set next_plan_at = next_plan_at + interval '10 s'",
    "its cursor was taken back": "update mainspring.schedule set next_plan_at = next_plan_at - interval '10 s'",
    "it has ended": "update mainspring.schedule set next_plan_at = null",
    "it was edited": "update mainspring.schedule set version = version + 1",
    "a plan time was skipped": "update mainspring.schedule set skips = skips + 1",
    "it was paused": "update mainspring.schedule set enabled = false",
    "it was deleted": "delete from mainspring.schedule",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_plan_of_an_outdated_schedule_writes_nothing(conn: Connection, report: int, change: str) -> None:
    found = await plans.due(conn, OWNER, 10)
    await conn.execute(CHANGES[change])
    before = await written(conn)
    assert await planned(conn, found) == set()
    assert await written(conn) == before


async def test_of_several_schedules_those_that_changed_stay_behind(conn: Connection, report: int) -> None:
    others = [await create(conn, name, every=5) for name in ("a", "b")]
    found = await plans.due(conn, OWNER, 10)
    assert len(found) == 3
    await schedules.change(conn, "a", lambda schedule: schedule, enabled=False)
    assert await planned(conn, found) == {report, others[1]}
    assert await ledger(conn, others[0]) == []


@pytest.mark.parametrize("count", [2, 6])
async def test_the_same_moves_from_many_at_once_count_once(dsn: str, conn: Connection, report: int, count: int) -> None:
    names = [f"s{number}" for number in range(20)]
    for name in names:
        await create(conn, name, every=5, scopes=["a", "b"], overlap="skip")
    await set_clock(conn, 24)
    connections = [await Database(dsn).connect(hash_joins=True) for _ in range(count)]
    try:
        found = await plans.due(conn, OWNER, 100)
        given = [found if number % 2 else found[::-1] for number in range(count)]
        moved = await asyncio.gather(*(planned(c, due) for c, due in zip(connections, given, strict=True)))
    finally:
        for connection in connections:
            await connection.close()
    assert sum(len(ids) for ids in moved) == 21, "each moved for one of them"
    for name in names:
        stored = await schedules.find(conn, name)
        seconds = [20, 25, 30]
        assert [(e.at, e.scope) for e in await ledger(conn, stored.id)] == [(s, x) for s in seconds for x in "ab"]
        assert len(await live(conn, stored.id)) == 6
        assert stored.runs == 3


async def test_planners_that_hold_overlapping_schedules_in_opposite_orders_do_not_wait_for_each_other(
    dsn: str, conn: Connection, report: int
) -> None:
    """A row that is held is left out, so that nobody waits and nobody can wait in a circle."""
    other = await create(conn, "other", every=10)
    found = await plans.due(conn, OWNER, 10)
    one, two = [await Database(dsn).connect(hash_joins=True) for _ in range(2)]
    async with one.transaction(), two.transaction():
        assert await planned(one, [due for due in found if due.id == report]) == {report}
        assert await asyncio.wait_for(planned(two, found), 20) == {other}
        assert await asyncio.wait_for(planned(one, found), 20) == set()
    await one.close()
    await two.close()
    assert await ledger(conn, report) == await ledger(conn, other) == [Entry(20, "", None)]


async def test_a_fire_that_is_in_the_ledger_makes_no_second_task(conn: Connection, report: int) -> None:
    await planned(conn)
    before = await live(conn, report)
    await conn.execute("update mainspring.schedule set next_plan_at = $1, look_at = $1", at(15))  # as a recall does
    assert await planned(conn) == {report}
    assert await live(conn, report) == before
    assert await ledger(conn, report) == [Entry(20, "", None)]
    stored = await schedules.find(conn, "report")
    assert (stored.runs, stored.next_plan_at) == (1, at(30))


async def test_a_skip_that_is_in_the_ledger_stays_one(conn: Connection, report: int) -> None:
    await conn.execute(
        "insert into mainspring.fire (schedule_id, plan_time, scope, reason) values ($1, $2, '', 'misfire')",
        report,
        at(20),
    )
    await planned(conn)
    assert await ledger(conn, report) == [Entry(20, "", "misfire")]
    assert await live(conn, report) == []
    assert (await schedules.find(conn, "report")).runs == 0


async def test_a_reason_makes_no_task_and_no_run(conn: Connection, report: int) -> None:
    [due] = await plans.due(conn, OWNER, 10)
    move = Advance(due.id, due.number, due.cursor, at(40), at(35))
    fires = [Fire(report, at(20), "", at(20), "coalesced"), Fire(report, at(30), "", at(30), None)]
    assert await plans.plan(conn, OWNER, [move], fires) == {report}
    assert await ledger(conn, report) == [Entry(20, "", "coalesced"), Entry(30, "", None)]
    assert [second for second, _ in await live(conn, report)] == [30]
    assert (await schedules.find(conn, "report")).runs == 1


async def test_fires_of_days_without_a_partition_are_kept_all_the_same(conn: Connection) -> None:
    await set_clock(conn, at(10 * 365 * 86400))
    await create(conn, every=10)
    await set_clock(conn, at(10 * 365 * 86400 + 10))
    await planned(conn)
    assert await conn.fetchval("select count(*) from mainspring.fire_default") == 2
    with pytest.raises(Exception, match="duplicate key"):
        await conn.execute("insert into mainspring.fire select * from mainspring.fire_default")


async def test_trouble_keeps_the_cursor_and_is_over_when_it_is_planned(conn: Connection, report: int) -> None:
    [due] = await plans.due(conn, OWNER, 10)
    await plans.trouble(conn, due, "no\x00pe", again_in=timedelta(seconds=20))
    stored = await schedules.find(conn, "report")
    assert (stored.problem, stored.next_plan_at) == ("no�pe", at(20))
    assert await plans.due(conn, OWNER, 10) == []
    await set_clock(conn, 35)
    assert await planned(conn) == {report}
    assert (await schedules.find(conn, "report")).problem is None
    await plans.trouble(conn, due, "too late", again_in=timedelta(seconds=20))
    assert (await schedules.find(conn, "report")).problem is None


# ── who takes turns ─────────────────────────────────────────────────────────────────────────────


async def test_a_task_whose_group_is_free_is_pending_and_all_behind_it_wait(conn: Connection) -> None:
    await set_clock(conn, 0)
    report = await create(conn, every=5, overlap="queue_all", scopes=["a", "b"])
    await planned(conn)
    states = await conn.fetch("select scope, plan_time, state, pool > 0 as open from mainspring.task order by 1, 2")
    assert [(row["scope"], row["state"], row["open"]) for row in states] == [
        ("a", 1, True),
        ("a", 0, False),
        ("b", 1, True),
        ("b", 0, False),
    ]
    await set_clock(conn, 9)
    await planned(conn)
    assert [int(state) for _, state in await live(conn, report)] == [1, 1, 0, 0, 0, 0]


async def test_no_claim_sees_one_that_waits(conn: Connection) -> None:
    await set_clock(conn, 0)
    await create(conn, every=5, overlap="skip")
    await planned(conn)
    await set_clock(conn, 100)
    assert len(await claimed(conn)) == 1


# ── query plans ─────────────────────────────────────────────────────────────────────────────────

IDLE = 12_000
_IDS = "array_fill({}, array[200])"
_TIMES = "array_fill('2031-03-29 12:00Z'::timestamptz, array[200])"
_TEXTS = "array_fill(null::text, array[200])"

HOT = {
    "due": (plans._DUE, f"null, 200, 0, '{OWNER}', '0 s'"),
    "due_with_provider": (plans._DUE, f"'{{shop}}', 200, 0, '{OWNER}', '0 s'"),
    "plan": (
        plans._PLAN,
        f"{_IDS.format(7)}, {_IDS.format(1)}, {_TIMES}, {_TIMES}, {_TIMES}, "
        f"{_IDS.format(7)}, {_TIMES}, array_fill(''::text, array[200]), {_TIMES}, {_TEXTS}, {_TEXTS}, "
        f"{_IDS.format(1)}, '{OWNER}', {_IDS.format(0)}",
    ),
    "skips": (skips._OF_DUE, f"{_IDS.format(7)}, {_TIMES}"),
    "confirm": (revoke._CONFIRM, "array_fill(7::bigint, array[100]), array_fill(7::bigint, array[100])"),
    "versions": (plans._VERSIONS, "7, '2031-03-29 12:00Z'"),
    "groups": (overlap._GROUPS, f"5, 100, '{OWNER}'"),
    "release": (overlap._RELEASE, "array_fill(7::bigint, array[100]), false"),
}


def walks(plan: dict[str, Any]) -> list[str]:
    """Scans of our large tables that no index bounds."""
    return [
        f"{node['Node Type']} of {node['Relation Name']} by {node.get('Index Name')}: {node.get('Index Cond')}"
        for node in nodes(plan)
        if "Scan" in node["Node Type"]
        and re.match("schedule|task|job|fire_default", node.get("Relation Name", ""))  # other days are empty here
        and ("Index" not in node["Node Type"] or not _is_bounded(node))
    ]


def _is_bounded(node: dict[str, Any]) -> bool:
    # The first group is where the index begins; it holds only those that wait.
    return bool(node.get("Index Cond")) or node.get("Index Name") == "task_overlap"


async def unbounded(conn: Connection) -> dict[str, list[str]]:
    found = {}
    for name, (sql, arguments) in HOT.items():
        # Only the planner's own line may join by hash.
        await conn.execute(
            f"set enable_hashjoin = {'on' if sql in (plans._DUE, plans._PLAN, skips._OF_DUE) else 'off'}"
        )
        await conn.execute(f"prepare {name} as {sql}")
        for mode in ("force_custom_plan", "force_generic_plan"):
            await conn.execute(f"set plan_cache_mode = {mode}")
            [explained] = json.loads(await conn.fetchval(f"explain (format json) execute {name}({arguments})"))
            if bad := walks(explained["Plan"]):
                found[f"{name} {mode}"] = bad
        await conn.execute(f"deallocate {name}")
    return found


async def fill(conn: Connection) -> None:
    """Schedules that are not due for long, and tasks of other schedules."""
    await create(conn, "first", every=3600)
    await conn.execute(
        """
        insert into mainspring.schedule (name, job_id, kind, expression, enabled, segment, next_plan_at, look_at)
        select 'idle ' || n, (select id from mainspring.job), 'every', '86400', true, 0, $1, $1
          from generate_series(1, $2::int) n
        """,
        at(86400),
        IDLE,
    )
    await conn.execute(
        """
        insert into mainspring.schedule_skip (schedule_id, start, stop, actor, made_at)
        select id, $1, $1, 'test', $1 from mainspring.schedule
        """,
        at(86400),
    )
    await conn.execute(
        """
        insert into mainspring.task (run_at, created_at, job_id, pool, state, priority, args, schedule_id, plan_time,
                                     scope)
        select $1, $1, 1, case when n % 2 = 1 then 1 else -1 end, n % 2, 5, '{}', n, $1, ''
          from generate_series(1, $2::int) n
        """,
        at(86400),
        IDLE,
    )
    await conn.execute(
        """
        insert into mainspring.fire (schedule_id, plan_time, scope, reason)
        select n, day.at + n * interval '1 s', '', 'misfire'
          from generate_series(1, $1::int) n,
               (select $2::timestamptz) day(at)
        """,
        IDLE,
        at(0),
    )


@pytest.fixture
async def planners_conn(dsn: str) -> Any:
    """With the settings of the planner's own line."""
    conn = await Database(dsn).connect(hash_joins=True)
    yield conn
    await conn.close()


async def test_plans_are_right_for_tables_that_were_never_analysed(planners_conn: Connection) -> None:
    await set_clock(planners_conn, 0)
    await fill(planners_conn)
    assert await unbounded(planners_conn) == {}


async def test_plans_are_right_for_tables_that_were_empty_when_analysed(planners_conn: Connection) -> None:
    conn = planners_conn
    await set_clock(conn, 0)
    await conn.execute("analyze mainspring.schedule, mainspring.task, mainspring.fire, mainspring.schedule_version")
    await fill(conn)
    assert await unbounded(conn) == {}


async def test_plans_are_right_for_tables_that_were_full_when_analysed(planners_conn: Connection) -> None:
    conn = planners_conn
    await set_clock(conn, 0)
    await fill(conn)
    await conn.execute("analyze mainspring.schedule, mainspring.task, mainspring.fire, mainspring.schedule_version")
    assert await unbounded(conn) == {}


async def pages(conn: Connection, sql: str, *arguments: Any) -> int:
    [explained] = json.loads(await conn.fetchval(f"explain (analyze, buffers, format json) {sql}", *arguments))
    return int(explained["Plan"]["Shared Hit Blocks"] + explained["Plan"]["Shared Read Blocks"])


async def test_a_look_costs_what_is_due_and_not_what_is_stored(planners_conn: Connection) -> None:
    conn = planners_conn
    await set_clock(conn, 0)
    await fill(conn)
    for number in range(10):
        await create(conn, f"due {number}", every=5)
    assert len(await plans.due(conn, OWNER, 200)) == 10
    assert await pages(conn, plans._DUE, None, 200, 0, OWNER, timedelta(0)) < 60


async def rows_touched(conn: Connection, dues: list[plans.DueSchedule]) -> float:
    """By all parts of the statement that plans one fire of each of these schedules. It is rolled back."""
    advances = [Advance(due.id, due.number, due.cursor, at(40), at(35), due.epoch) for due in dues]
    fires = [Fire(due.id, due.cursor, "", due.cursor, None) for due in dues]
    await conn.execute("begin")
    found = await rows_read(conn, plans._PLAN, *plans._parameters(OWNER, advances, fires))
    await conn.execute("rollback")
    return found


async def test_a_fire_costs_as_much_in_a_large_step_as_in_a_small_one(planners_conn: Connection) -> None:
    conn = planners_conn
    await set_clock(conn, 0)
    for number in range(80):
        await create(conn, f"due {number}", every=5)
    dues = await plans.due(conn, OWNER, 200)
    assert len(dues) == 80
    few, many = await rows_touched(conn, dues[:10]), await rows_touched(conn, dues)
    assert many < 9 * few, "eight times as many fires"


async def test_of_a_long_queue_only_the_first_are_looked_at(planners_conn: Connection) -> None:
    conn = planners_conn
    await set_clock(conn, 0)
    report = await create(conn, every=5, overlap="queue_all")
    await conn.execute(
        """
        insert into mainspring.task (run_at, created_at, job_id, pool, state, priority, args, schedule_id, plan_time,
                                     scope)
        select $1::timestamptz + n * interval '1 s', $1, 1, -1, 0, 5, '{}', $3, $1::timestamptz + n * interval '1 s', ''
          from generate_series(1, $2::int) n
        """,
        at(-IDLE),
        IDLE,
        report,
    )
    [group] = await overlap.groups(conn, OWNER, within=5.0)
    assert len(group.turns) == overlap.WAITING_OF_A_GROUP
