"""Holds: no statement dispatches what is held; what waits moves to a gate, and leaves it bit by bit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.cluster import OWNER
from tests.schedules import create, set_clock
from tests.store.limits.test_gating import marked, walk
from tests.store.limits.test_release import claim, define_job, end, ending, settle, step, submit

from mainspring.model.limits.holds import NO_HOLDS, SPREAD
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.define_job import define
from mainspring.model.tasks.jobs import PRIORITY_LEVELS, Command
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.store.cluster import holds
from mainspring.store.limits import handover, release
from mainspring.store.limits.waits import waits
from mainspring.store.postgres.database import Connection
from mainspring.store.submission import enqueue, submissions
from mainspring.store.tasks import broadcasts, claim_order, claims, jobs, transitions

FLOORS = [BOTTOM] * len(PRIORITY_LEVELS)


async def hold(conn: Connection, name: str | None = "job", **given: Any) -> int | None:
    async with conn.transaction():
        job = await holds.lock(conn, name)
        await holds.hold(conn, job, by="alice", note=given.get("note"), skips=given.get("skips", False))
        await jobs.mark_gates(conn, [] if name is None else [name])
    return job


async def let_go(conn: Connection, name: str | None = "job", *, at_once: bool = False) -> int:
    async with conn.transaction():
        return await holds.release(conn, await holds.lock(conn, name), at_once=at_once)


async def pool_of(conn: Connection, task: int) -> int:
    found: int = await conn.fetchval("select pool from mainspring.task where id = $1", task)
    return found


async def later(conn: Connection, seconds: float) -> None:
    await set_clock(conn, await conn.fetchval("select mainspring.now()") + timedelta(seconds=seconds))


# ── no statement dispatches what is held ────────────────────────────────────────────────────────


async def test_no_claim_takes_a_task_of_a_held_job_from_the_commit_on(conn: Connection) -> None:
    await define_job(conn)
    await define_job(conn, "other")
    await submit(conn, count=3)
    [free] = await submit(conn, "other")
    await hold(conn)
    assert set(await claim(conn)) == {free}, "no task has moved to the gate yet"
    assert await claim_order.stragglers(conn, OWNER, {await pool_of(conn, 1): [(9e9, 0)] * 10}) == []


async def test_no_claim_takes_anything_while_everything_is_held(conn: Connection) -> None:
    await define_job(conn)
    tasks = await submit(conn, count=3)
    await hold(conn, None)
    assert await claim(conn) == {}
    wanted = claim_order.Wanted(await pool_of(conn, tasks[0]), 10, FLOORS, 0.0)
    assert (await claim_order.turns(conn, OWNER, [wanted], 10)).order == []
    await let_go(conn, None)
    assert set(await claim(conn)) == set(tasks)


async def test_a_submission_to_a_held_job_is_not_claimed_by_its_own_insert(conn: Connection) -> None:
    await define_job(conn)
    known = await jobs.find(conn, "job")
    place = enqueue.Place(known.id, known.pool, 1, 5)

    async def is_claimed(job: str | None) -> bool:
        await hold(conn, job)
        given = [submissions.Submission("job", "{}")] * 2
        one = await enqueue.submit_and_claim(conn, given[:1], [place], OWNER)
        two = await enqueue.submit_and_claim(conn, given, [place, place], OWNER)
        return any(token is not None for _, token in [*one, *two])

    assert not await is_claimed("job")
    await let_go(conn, at_once=True)
    await later(conn, 3.0)
    await settle(conn)
    assert await holds.settle(conn) == 1
    assert not await is_claimed(None)


async def test_a_slot_of_a_held_job_is_not_handed_over(conn: Connection) -> None:
    await define_job(conn, max_running=1)
    await submit(conn, count=2)
    await settle(conn)
    [running] = (await claim(conn)).values()
    await hold(conn)
    served = await conn.fetchval("select pool from mainspring.task where id = $1", running.task)
    done = await handover.finish(conn, OWNER, [ending(running)], {served: [1]})
    assert (done.claim.size, done.released) == (0, [])
    assert await settle(conn) == []


async def test_a_broadcast_of_a_held_job_waits_and_is_not_ended_for_lack_of_agents(conn: Connection) -> None:
    await jobs.register(conn, {"all": define(Command(("id",)), {"broadcast": True})})
    await hold(conn, "all")
    [task] = await submit(conn, "all")
    await later(conn, 10.0)
    assert await broadcasts.look(conn, ahead=5.0) == []
    assert await broadcasts.expand(conn, task, notice=0.0) == 0
    assert await broadcasts.end_without_agents(conn, [task]) == []
    await let_go(conn, "all", at_once=True)
    assert await settle(conn) == [task]
    assert [parent.task for parent in await broadcasts.look(conn, ahead=5.0)] == [task]


# ── the gate ────────────────────────────────────────────────────────────────────────────────────


async def test_what_waits_and_what_comes_goes_to_a_gate_that_lets_nothing_pass(conn: Connection) -> None:
    await define_job(conn)
    waiting = await submit(conn, count=3)
    await hold(conn)
    [new] = await submit(conn)
    assert [part.moved for part in await walk(conn, 100)] == [3]
    gate = await conn.fetchval("select pool from mainspring.job where name = 'job'")
    assert {await pool_of(conn, task) for task in (*waiting, new)} == {gate}
    assert await release.look(conn) == {}, "servers need not come back for it"
    assert (await release.release(conn, gate, 100, ahead=0.0)).released == []


async def test_a_retry_and_a_task_that_an_agent_gives_back_return_to_the_gate(conn: Connection) -> None:
    await define_job(conn)
    await submit(conn, count=2)
    fails, recalled = (await claim(conn)).values()
    await hold(conn)
    await walk(conn, 100)
    await transitions.retry(conn, [Again(ending(fails, TaskState.FAILED), 0.0, costs=True)])
    assert await claims.give_back(conn, [recalled.task], [recalled.token]) == 1
    gate = await conn.fetchval("select pool from mainspring.job where name = 'job'")
    rows = await conn.fetch("select pool, attempt from mainspring.task order by id")
    assert [tuple(row) for row in rows] == [(gate, 1), (gate, 0)], "a recall costs no attempt"


async def test_a_task_with_slots_gives_them_up_while_its_job_is_held(conn: Connection) -> None:
    """Else a task of another job with the same key would wait for one that cannot start."""
    await define_job(conn, concurrency_key="k")
    await define_job(conn, "other", concurrency_key="k")
    [armed_task] = await submit(conn)
    await settle(conn)
    [armed] = (await claim(conn)).values()
    [other] = await submit(conn, "other")
    assert await settle(conn) == [], "it is parked"
    await hold(conn)
    await claims.give_back(conn, [armed.task], [armed.token])
    assert await settle(conn) == [other]
    gate = await conn.fetchval("select pool from mainspring.job where name = 'job'")
    assert await pool_of(conn, armed_task) == gate


async def test_an_unclaimed_task_that_has_passed_its_gate_returns_to_it(conn: Connection) -> None:
    await define_job(conn, max_running=2)
    passed = await submit(conn, count=2)
    assert await settle(conn) == passed
    await hold(conn)
    assert [part.moved for part in await walk(conn, 100)] == [2]
    assert await conn.fetchval("select count(*) from mainspring.task where job_slot is not null") == 0
    assert (await marked(conn), await claim(conn)) == (1, {})


async def test_a_job_stays_held_when_it_is_defined_anew(conn: Connection) -> None:
    await define_job(conn)
    await hold(conn)
    gate = await conn.fetchval("select pool from mainspring.job")
    version = await conn.fetchval("select version from mainspring.job")
    await define_job(conn)
    assert await conn.fetchval("select version from mainspring.job") == version, "nothing has changed"
    for options in ({"priority": "high"}, {"requires": {"zone": "b"}}, {"max_running": 1}, {}):
        await define_job(conn, **options)
        assert await conn.fetchval(
            "select p.target is not null from mainspring.job j join mainspring.pool p on p.id = j.pool"
        )
        await submit(conn)
    await walk(conn, 100)
    assert (await settle(conn), await claim(conn)) == ([], {})
    assert await conn.fetchval("select pool from mainspring.job") == gate


# ── the release ─────────────────────────────────────────────────────────────────────────────────


async def test_what_waited_is_spread_over_a_minute(conn: Connection) -> None:
    await define_job(conn)
    await hold(conn)
    await submit(conn, count=600)
    await set_clock(conn, await conn.fetchval("select mainspring.now()"))
    assert await let_go(conn) == 600
    gone = []
    for _ in range(70):
        passed = await step(conn)
        await end(conn, list((await claim(conn)).values()))
        gone.append(len(passed))
        await later(conn, 1.0)
    assert sum(gone) == 600
    assert max(gone) <= 20, "ten a second, and a second's worth more at the start"
    assert sum(gone[:30]) == pytest.approx(300, abs=20)


async def test_a_few_do_not_take_the_whole_minute(conn: Connection) -> None:
    await define_job(conn)
    await hold(conn)
    await submit(conn, count=3)
    await set_clock(conn, await conn.fetchval("select mainspring.now()"))
    await let_go(conn)
    gone = []
    for _ in range(3):
        gone.append(len(await step(conn)))
        await end(conn, list((await claim(conn)).values()))
        await later(conn, 1.0)
    assert gone == [1, 1, 1]


async def test_a_release_at_once_lets_all_go(conn: Connection) -> None:
    await define_job(conn)
    await hold(conn)
    tasks = await submit(conn, count=50)
    await let_go(conn, at_once=True)
    assert await settle(conn) == tasks


async def test_a_task_that_had_not_reached_the_gate_is_spread_as_well(conn: Connection) -> None:
    await define_job(conn)
    stray, *_ = await submit(conn, count=3)
    await hold(conn)
    assert await let_go(conn) == 3
    assert await claim(conn) == {}, "none has passed the gate"
    await walk(conn, 100)
    assert await step(conn) == [stray]
    assert set(await claim(conn)) == {stray}


async def test_a_released_job_is_as_it_was_once_nothing_waits(conn: Connection) -> None:
    await define_job(conn)
    before = await jobs.find(conn, "job")
    await hold(conn)
    await submit(conn)
    await let_go(conn)
    assert await holds.settle(conn) == 0, "a task waits, and its minute is not over"
    assert len(await settle(conn)) == 1
    await later(conn, SPREAD + 1)
    assert await holds.settle(conn) == 1
    assert await jobs.find(conn, "job") == before
    assert await holds.load(conn) == NO_HOLDS
    assert await conn.fetchval("select held from mainspring.job") is None
    [new] = await submit(conn)
    assert await pool_of(conn, new) == before.pool


async def test_a_job_that_is_held_again_while_it_is_let_go_is_held(conn: Connection) -> None:
    await define_job(conn)
    job = await hold(conn)
    await submit(conn, count=5)
    await let_go(conn)
    await hold(conn, note="again")
    await later(conn, SPREAD + 5)
    assert (await holds.settle(conn), await step(conn), await claim(conn)) == (0, [], {})
    found = await holds.of_job(conn, job)
    assert found is not None
    assert (found.is_in_force, found.note) == (True, "again")


async def test_a_settle_that_overlaps_a_new_hold_ends_nothing(conn: Connection, dsn: str) -> None:
    await define_job(conn)
    await hold(conn)
    await let_go(conn, at_once=True)
    await later(conn, 5.0)
    other = await asyncpg.connect(dsn)
    try:
        async with other.transaction():
            await holds.lock(other, "job")
            assert await holds.settle(conn) == 0
        assert await holds.settle(conn) == 1
    finally:
        await other.close()


async def test_a_release_takes_back_no_decision_of_another_hold(conn: Connection) -> None:
    schedule = await create(conn, every=3600)
    await hold(conn, skips=True)
    await let_go(conn)
    await hold(conn, None, skips=True)
    await conn.execute(
        """insert into mainspring.fire (schedule_id, plan_time, reason, decided_at)
           values ($1, mainspring.now() + interval '1 hour', 'paused', mainspring.now())""",
        schedule,
    )
    assert await holds.undecide(conn) == 0, "everything is held, and skips"
    await let_go(conn, None)
    assert await holds.undecide(conn) == 1, "nothing is held any more"
    assert await conn.fetchval("select count(*) from mainspring.fire") == 0


async def test_a_deleted_job_takes_its_hold_along(conn: Connection) -> None:
    await define_job(conn)
    await hold(conn)
    assert await jobs.delete(conn, "job")
    assert await holds.load(conn) == NO_HOLDS


# ── what people see ─────────────────────────────────────────────────────────────────────────────


async def test_a_task_says_who_holds_it_and_why(conn: Connection) -> None:
    await define_job(conn)
    [task] = await submit(conn)
    await hold(conn, None, note="a release night")
    assert (await waits(conn, [task]))[task].what.endswith(": a release night")
    await hold(conn, note="the warehouse is down")
    wait = (await waits(conn, [task]))[task]
    assert (wait.code, wait.more) == ("held", "`mainspring job release job` lets it go on")
    assert wait.what.startswith("job 'job' is held by alice since ")
    assert wait.what.endswith(": the warehouse is down")
    await let_go(conn, None, at_once=True)
    await let_go(conn)
    assert (await waits(conn, [task]))[task].code == "released"


# ── plans ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_table_of_holds_costs_a_claim_one_look(conn: Connection) -> None:
    """It is empty as a rule, and read once for each statement, however many tasks there are."""
    await define_job(conn)
    await submit(conn, count=200)
    plan = await conn.fetch(
        f"explain (analyze, buffers off, costs off, timing off, summary off) {claims._FOR_ONE}".replace("$1", "1")
        .replace("$2", "array[9,8,7,6,5,4,3,2,1,0]")
        .replace("$3", "array_fill(0.0::float8, array[10])")
        .replace("$4", "array_fill(0::bigint, array[10])")
        .replace("$5", "0.0")
        .replace("$6", "array[1]")
        .replace("$7", "100")
        .replace("$8", f"'{OWNER}'::uuid")
    )
    lines = [row[0] for row in plan]
    assert any("task_claim" in line for line in lines)
    [scan] = [line for line in lines if " on hold" in line]
    assert "loops=1" in scan
