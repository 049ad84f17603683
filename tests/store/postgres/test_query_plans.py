"""Query plans: hot statements find their rows by index, whatever the planner believes of the tables.

The plans are those of the engine's own connections, once made for the arguments and once for any.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.cluster import OWNER
from tests.query_plans import nodes

from mainspring.model.messages import Ending
from mainspring.model.tasks.claim_floors import BOTTOM, Floor
from mainspring.model.tasks.jobs import PRIORITY_LEVELS, Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.store.batches import settling
from mainspring.store.followed import after
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import claim_order, claims, jobs, rescue, session_tasks, sticky, transitions

pytestmark = pytest.mark.usefixtures("dsn")  # statistics and pages of the test's own database

FULL = 20_000
FROM_BOTTOM: list[Floor] = [BOTTOM] * len(PRIORITY_LEVELS)

_MANY = "array_fill(7::bigint, array[1000])"
_TEXTS = "array_fill(null::text, array[1000])"
_FLOATS = "array_fill(1790000000::float8, array[1000])"
_SMALL = "array_fill(11::smallint, array[1000])"
_INTEGERS = "array_fill(1, array[1000])"
_POOLS = "array_fill(1, array[10])"
_LEVELS = "'{9,8,7,6,5,4,3,2,1,0}', array_fill(0::float8, array[10]), array_fill(0::bigint, array[10])"

BY_NUMBER = ("Index Scan", "task_pkey", ("id",))
BY_TIME = ("Index Scan", "task_claim", ("pool", "priority"))
BY_PLACE = ("Tid Scan", None, ())
BY_BATCH = ("Index Scan", "task_batch", ())
BY_CANCEL, BY_PAUSE = ("Index Scan", "task_cancel", ()), ("Index Scan", "task_paused", ())

HOT: dict[str, tuple[str, str, set[tuple[str, str | None, tuple[str, ...]]]]] = {
    "claim": (claims._FOR_ONE, f"1, {_LEVELS}, 0, '{{1}}', 1000, '{OWNER}'", {BY_TIME, BY_PLACE}),
    "claim_for_several": (claims._FOR_SEVERAL, f"1, {_LEVELS}, 0, '{{1,2}}', 1000, '{OWNER}'", {BY_TIME, BY_PLACE}),
    "sticky_claim": (
        sticky._CLAIM,
        f"1, {_LEVELS}, 0, 1000, '{{a,b,c}}', '{{1,2,null}}', '{{10,10,0}}', 'customer', 1, '{OWNER}'",
        {BY_TIME, BY_PLACE},
    ),
    "turns": (
        claim_order._TURNS,
        f"{_POOLS}, array_fill(100, array[10]), array_fill(0::float8, array[10]), {_LEVELS}, '{OWNER}', 100, 60",
        {BY_TIME},
    ),
    "sticky_left": (claim_order._LEFT, f"{_POOLS}, {_LEVELS}, '{OWNER}'", {BY_TIME}),
    "stragglers": (claim_order._STRAGGLERS, f"{_POOLS}, {_LEVELS}, '{OWNER}'", {BY_TIME}),
    "give_back": (claims._GIVE_BACK, f"{_MANY}, {_MANY}", {BY_NUMBER}),
    "start": (transitions._START, f"{_MANY}, {_MANY}, {_FLOATS}", {BY_NUMBER}),
    "finish": (
        transitions._FINISH,
        f"{_MANY}::text, {_MANY}::text, {_FLOATS}::text, {_FLOATS}::text, {_SMALL}, {_TEXTS}, {_TEXTS}, {_TEXTS}, "
        f"{_INTEGERS}, {_FLOATS}::text",
        {BY_NUMBER},
    ),
    "retry": (
        transitions._RETRY,
        f"{_MANY}, {_MANY}, {_SMALL}, {_FLOATS}, {_FLOATS}, {_TEXTS}, {_TEXTS}, {_INTEGERS}, {_FLOATS}, {_FLOATS}, "
        f"{_INTEGERS}, {_INTEGERS}",
        {BY_NUMBER},
    ),
    "live_in_batch": (settling._LIVE, "17, 0, true", {BY_BATCH}),
    "commands_of_batches": (settling._COMMANDS, "20", {BY_BATCH}),
    "any_asked": (session_tasks._ANY_ASKED, "'{1,2}'", {BY_CANCEL, BY_PAUSE}),
    "note": (session_tasks._NOTE, f"{_MANY}, {_MANY}, {_TEXTS}, {_TEXTS}, array[]::boolean[]", {BY_NUMBER}),
}


HASHING = {"finish_many"}  # on a connection that hashes: the rows of a batch meet its arrays in one pass

HOT["finish_many"] = (transitions._FINISH_MANY, *HOT["finish"][1:])


def scans_of_task(plan: dict[str, Any]) -> set[tuple[str, str | None, tuple[str, ...]]]:
    """(how, by which index, the columns that bound it) of every scan of mainspring.task."""
    found = set()
    for node in nodes(plan):
        if node.get("Relation Name") == "task" and "Scan" in node["Node Type"]:
            bounds = node.get("Index Cond", "")
            columns = tuple(name for name in ("pool", "priority", "id") if re.search(rf"\b{name} = ", bounds))
            found.add((node["Node Type"], node.get("Index Name"), columns))
    return found


async def plans(conn: Connection) -> dict[tuple[str, str], set[tuple[str, str | None, tuple[str, ...]]]]:
    found = {}
    for name, (sql, arguments, _) in HOT.items():
        hashes = name in HASHING
        await conn.execute(f"set enable_hashjoin = {hashes}; set enable_nestloop = {not hashes}")
        await conn.execute(f"prepare {name} as {sql}")
        for mode in ("force_custom_plan", "force_generic_plan"):
            await conn.execute(f"set plan_cache_mode = {mode}")
            [plan] = json.loads(await conn.fetchval(f"explain (format json) execute {name}({arguments})"))
            found[name, mode] = scans_of_task(plan["Plan"])
            assert not hashes or "Nested Loop" not in {node["Node Type"] for node in nodes(plan["Plan"])}
        await conn.execute(f"deallocate {name}")
    return found


EXPECTED = {(name, mode): HOT[name][2] for name in HOT for mode in ("force_custom_plan", "force_generic_plan")}


async def fill(conn: Connection, count: int = FULL) -> int:
    """Pending tasks, due; returns their pool."""
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await conn.execute(
        "select mainspring.enqueue_many('job', array_fill('{}'::jsonb, array[$1::int]), run_at => '2026-01-01Z')", count
    )
    return int(await conn.fetchval("select pool from mainspring.job"))


async def believed_rows(conn: Connection) -> float:
    return float(await conn.fetchval("select reltuples from pg_class where oid = 'mainspring.task'::regclass"))


async def test_plans_are_right_for_a_table_that_was_never_analysed(conn: Connection) -> None:
    assert await believed_rows(conn) <= 0
    assert await plans(conn) == EXPECTED


async def test_plans_are_right_for_a_table_that_was_empty_when_analysed(conn: Connection) -> None:
    await conn.execute("analyze mainspring.task")
    await fill(conn)
    assert await believed_rows(conn) == 0
    assert await plans(conn) == EXPECTED


async def test_plans_are_right_for_a_table_that_holds_a_few(conn: Connection) -> None:
    """A plan for any arguments is kept while the table grows."""
    await fill(conn, 3)
    assert await plans(conn) == EXPECTED
    await conn.execute("vacuum analyze mainspring.task")
    assert await plans(conn) == EXPECTED


async def test_plans_are_right_for_a_table_that_was_full_when_analysed(conn: Connection) -> None:
    await fill(conn)
    await conn.execute("analyze mainspring.task")
    assert await plans(conn) == EXPECTED
    await conn.execute("delete from mainspring.task")
    assert await believed_rows(conn) == FULL
    assert await plans(conn) == EXPECTED


# ── and what they cost ──────────────────────────────────────────────────────────────────────────


async def claim_cost(conn: Connection, pool: int, limit: int, floors: list[Floor]) -> tuple[int, int]:
    """(rows, pages touched) of a claim that is made."""
    starts = [at for at, _ in floors], [id for _, id in floors]
    arguments = (pool, list(PRIORITY_LEVELS), *starts, 0.0, [1], limit, OWNER)
    [explained] = json.loads(
        await conn.fetchval(f"explain (analyze, buffers, format json) {claims._FOR_ONE}", *arguments)
    )
    plan = explained["Plan"]
    return int(plan["Actual Rows"]), int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_a_claim_touches_few_pages_when_statistics_say_the_table_is_empty(conn: Connection) -> None:
    pool = await fill(conn)
    await conn.execute("delete from mainspring.task")
    await conn.execute("vacuum analyze mainspring.task")
    await fill(conn)
    rows, pages = await claim_cost(conn, pool, 1000, FROM_BOTTOM)
    assert rows == 1000
    assert pages < 30 * rows


async def test_an_old_snapshot_does_not_make_claims_walk_what_was_claimed_before(dsn: str, conn: Connection) -> None:
    pool = await fill(conn)
    elsewhere = await Database(dsn).connect()
    await elsewhere.execute("begin isolation level repeatable read")
    await elsewhere.fetchval("select count(*) from mainspring.task")
    floors = list(FROM_BOTTOM)
    done = 0
    while (claim := await claims.claim(conn, OWNER, pool, [1], 1000, floors, ahead=0.0)).size:
        floors[PRIORITY_LEVELS.index(5)] = claim.positions[5]
        ended = [Ending(a.task, a.token, a.job, 1, TaskState.SUCCEEDED, 1.0, 2.0) for a in claim.tasks[1]]
        done += len(await transitions.finish(conn, ended))
    assert done == FULL
    await fill(conn, 20)
    rows, from_the_tip = await claim_cost(conn, pool, 10, floors)
    assert rows == 10
    rows, from_the_bottom = await claim_cost(conn, pool, 10, FROM_BOTTOM)
    assert rows == 10
    await elsewhere.close()
    assert from_the_tip < 150
    assert from_the_bottom > 450, "every page of what has ended, or this test shows nothing"


@pytest.mark.parametrize("name", ["start", "note", "give_back", "finish", "retry"])
async def test_the_work_of_a_batch_grows_with_its_size_and_no_faster(conn: Connection, name: str) -> None:
    """No report is compared with another one's task: that would be a million comparisons for a thousand."""
    size = 300
    pool = await fill(conn, size)
    claim = await claims.claim(conn, OWNER, pool, [1], size, FROM_BOTTOM, ahead=0.0)
    tasks, tokens = zip(*((armed.task, armed.token) for armed in claim.tasks[1]), strict=True)
    sql, arguments, _ = HOT[name]
    given = arguments.replace("1000]", f"{size}]")
    for column in (tasks, tokens):  # the first two arguments
        given = given.replace(f"array_fill(7::bigint, array[{size}])", f"'{{{','.join(map(str, column))}}}'", 1)
    await conn.execute(f"prepare {name} as {sql}")
    [explained] = json.loads(await conn.fetchval(f"explain (analyze, format json) execute {name}({given})"))
    found = list(nodes(explained["Plan"]))
    moved = [node["Actual Rows"] for node in found if node["Node Type"] == "Nested Loop"]
    assert max(moved) == size
    assert sum(node.get("Rows Removed by Join Filter", 0) for node in found) == 0


async def test_a_claim_adds_no_entry_to_any_index(conn: Connection) -> None:
    if conn.get_server_version().major < 15:
        pytest.skip("this server cannot be told to write its statistics at once")
    pool = await fill(conn, 2000)
    await claims.claim(conn, OWNER, pool, [1], 1000, FROM_BOTTOM, ahead=0.0)
    await conn.fetchval("select pg_stat_force_next_flush()")
    counted = await conn.fetchrow(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'mainspring.task'::regclass"
    )
    assert tuple(counted) == (1000, 1000)


async def test_the_search_for_gone_sessions_does_not_read_those_that_ended_before(conn: Connection) -> None:
    """Ended sessions are kept for as long as the history."""
    await conn.execute(
        "insert into mainspring.agent (name, slots, lease_until, ended_at)"
        " select 'a', 1, now(), now() from generate_series(1, $1)",
        FULL,
    )
    await conn.execute("insert into mainspring.claim (session, batch, tasks) values (1, 1, '{}'), (2, 2, '{}')")
    [explained] = json.loads(await conn.fetchval(f"explain (analyze, buffers, format json) {rescue._GONE}", []))
    plan = explained["Plan"]
    assert plan["Actual Rows"] == 2
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 50


@pytest.mark.parametrize(("statement", "index"), [(after._ANY, "task_after"), (settling._ANY, "batch_commanded")])
async def test_whether_a_rare_thing_is_there_is_asked_of_its_own_index(
    conn: Connection, statement: str, index: str
) -> None:
    await fill(conn)
    [plan] = json.loads(await conn.fetchval(f"explain (format json) {statement}"))
    found = {(node["Relation Name"], node.get("Index Name")) for node in nodes(plan["Plan"]) if "Relation Name" in node}
    assert index in {name for _, name in found}
    assert all(name is not None for _, name in found), found
