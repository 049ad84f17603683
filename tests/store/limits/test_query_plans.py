"""Query plans of release and parked: the cost grows with the tasks that can move, not with those that wait."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cluster import OWNER
from tests.query_plans import nodes

from mainspring.model.tasks.define_job import Options, define
from mainspring.model.tasks.jobs import Python
from mainspring.store.limits import handover, parked, release
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import jobs

pytestmark = pytest.mark.usefixtures("dsn")  # statistics and pages of the test's own database

MANY = 20_000

STATEMENTS = {
    "look": (release._LOOK, "(null)"),
    "look_at_some": (release._LOOK, "('{2}')"),
    "release": (release._RELEASE, "(2, 1000, 0, 0)"),
    "ripe": (parked._RIPE, "(1000)"),
    "sweep": (parked._SWEEP, "('', 1000)"),
    "hand over": (
        handover._FINISH_AND_HAND_OVER,
        f"('{{1,2}}', '{{1,2}}', '{{1,2}}', '{{1,2}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', "
        f"'{{}}', '{OWNER}', '{{1}}', '{{0}}', '{{2}}', '{{1,1}}')",
    ),
}


async def define_job(conn: Connection, options: Options) -> int:
    """Returns its gate."""
    await jobs.register(conn, {"job": define(Python("job"), options)})
    return int(await conn.fetchval("select pool from mainspring.job"))


async def submit(conn: Connection, count: int, key: str) -> None:
    """`key` is an SQL expression over n."""
    await conn.execute(
        f"select mainspring.enqueue_many('job', array(select jsonb_build_object('k', {key})"
        " from generate_series(1, $1::int) n))",
        count,
    )


BOUNDS = {
    "task_claim": "pool = ",
    "task_job_slot": "job_id = ",
    "task_key_slot": "concurrency_key = ",
    "task_parked": "concurrency_key",
}


def bad_scans(plan: dict[str, Any]) -> list[tuple[str, str | None, str]]:
    """Scans of tasks that are not bounded by the first columns of an index; what is written is found by its place."""
    found = []
    for node in nodes(plan):
        written = node["Node Type"] == "ModifyTable" and node["Relation Name"] == "task"
        for scan in nodes(node) if written else [node]:
            if scan.get("Relation Name") != "task" or "Scan" not in scan["Node Type"]:
                continue
            how, index, bounds = scan["Node Type"], scan.get("Index Name"), scan.get("Index Cond", "")
            is_ended = (
                index == "task_pkey" and bounds == "(id = ANY (ARRAY[given.id]))"
            )  # see store/tasks/transitions.py
            if how != "Tid Scan" and not is_ended and (written or index not in BOUNDS or BOUNDS[index] not in bounds):
                found.append((how, index, bounds))
    return found


@pytest.mark.parametrize("state", ["never analysed", "full", "emptied"])
@pytest.mark.parametrize("name", STATEMENTS)
async def test_gates_find_their_tasks_by_index(conn: Connection, name: str, state: str) -> None:
    if state != "never analysed":
        await define_job(conn, {"max_running": 10, "concurrency_key": "{k}"})
        await submit(conn, 2000, "n")
        await conn.execute("analyze mainspring.task")
    if state == "emptied":
        await conn.execute("delete from mainspring.task")
    sql, arguments = STATEMENTS[name]
    await conn.execute(f"prepare statement as {sql}")
    for mode in ("force_custom_plan", "force_generic_plan"):
        await conn.execute(f"set plan_cache_mode = {mode}")
        [plan] = json.loads(await conn.fetchval(f"explain (format json) execute statement{arguments}"))
        assert bad_scans(plan["Plan"]) == [], mode


async def cost(conn: Connection, gate: int, beyond: int = 0) -> tuple[int, int]:
    """(tasks that went on or stood aside, pages touched) of a release that is made."""
    before = await conn.fetchval("select count(*) from mainspring.task where pool = $1", gate)
    [explained] = json.loads(
        await conn.fetchval(f"explain (analyze, buffers, format json) {release._RELEASE}", gate, 1000, 0.0, beyond)
    )
    moved = before - await conn.fetchval("select count(*) from mainspring.task where pool = $1", gate)
    plan = explained["Plan"]
    return moved, int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_a_full_job_with_many_waiting_keys_costs_nothing(conn: Connection) -> None:
    gate = await define_job(conn, {"max_running": 10, "concurrency_key": "{k}"})
    await submit(conn, MANY, "n")
    assert (await cost(conn, gate))[0] == 10
    moved, pages = await cost(conn, gate)
    assert (moved, pages < 100) == (0, True), pages
    await conn.execute("delete from mainspring.task where id in (select id from mainspring.task where job_slot = 0)")
    moved, pages = await cost(conn, gate)
    assert (moved, pages < 200) == (1, True), pages


async def test_a_busy_key_with_many_tasks_is_walked_once(conn: Connection) -> None:
    gate = await define_job(conn, {"concurrency_key": "{k}"})
    await submit(conn, MANY, "'hot'")
    while (await release.release(conn, gate, 1000, ahead=0.0, beyond=1000)).parked:
        pass
    await conn.execute("vacuum mainspring.task")
    await submit(conn, 1, "'cold'")
    moved, pages = await cost(conn, gate)
    assert (moved, pages < 200) == (1, True), pages


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("analysed", ["never", "before", "after"])
async def test_the_end_of_a_task_touches_only_the_first_task_parked_for_its_key(
    conn: Connection, mode: str, analysed: str
) -> None:
    gate = await define_job(conn, {"concurrency_key": "{k}"})
    await submit(conn, 5000, "n % 2")
    if analysed == "before":
        await conn.execute("analyze mainspring.task")  # no task has a key: the planner expects none
    while (await release.release(conn, gate, 1000, ahead=0.0, beyond=1000)).parked:
        pass
    if analysed == "after":
        await conn.execute("analyze mainspring.task")
    await conn.execute(f"set plan_cache_mode = {mode}")
    await conn.fetchval("select mainspring.unpark('none', 1)")
    for key in ("0", "1"):
        [explained] = json.loads(
            await conn.fetchval("explain (analyze, buffers, format json) select mainspring.unpark($1, 1)", key)
        )
        plan = explained["Plan"]
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 200
    assert await conn.fetchval("select count(*) from mainspring.task where pool = $1", gate) == 2
