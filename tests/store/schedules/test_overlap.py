"""Overlap: which tasks of a group wait, and the guarded moves that release or skip them."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster import OWNER
from tests.schedules import Entry, at, claimed, create, finished, ledger, planned, set_clock, started

from mainspring.model.messages import Ending
from mainspring.model.schedules.overlap import LiveTask
from mainspring.model.tasks.states import CancelMode, TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import overlap, revoke
from mainspring.store.tasks import partitions, transitions


@pytest.fixture
async def report(conn: Connection) -> int:
    """Every five seconds, one after another. It is 0; 5 may run, 10 waits."""
    await set_clock(conn, 0)
    await partitions.make_ahead(conn, days=1)
    report = await create(conn, every=5, overlap="queue_all")
    await planned(conn)
    return report


async def ids(conn: Connection) -> list[int]:
    return [row["id"] for row in await conn.fetch("select id from mainspring.task order by plan_time, scope")]


async def states(conn: Connection) -> list[int]:
    return [row["state"] for row in await conn.fetch("select state from mainspring.task order by plan_time, scope")]


# ── lanes ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_group_has_released_and_waiting_tasks_in_order(conn: Connection, report: int) -> None:
    first, second = await ids(conn)
    assert await overlap.groups(conn, OWNER, within=5.0) == []
    await set_clock(conn, 5)
    assert await overlap.groups(conn, OWNER, within=5.0) == [
        overlap.Group("queue_all", [LiveTask(first, False, True), LiveTask(second, True, False)], 5.0)
    ]
    await set_clock(conn, 10)
    [group] = await overlap.groups(conn, OWNER, within=0.0)
    assert [turn.is_due for turn in group.turns] == [True, True]


async def test_each_scope_is_a_group_and_a_group_without_a_waiting_task_is_none(conn: Connection) -> None:
    await set_clock(conn, 0)
    await create(conn, "a", every=5, overlap="skip", scopes=["x", "y"])
    await create(conn, "b", every=9, overlap="queue")
    await create(conn, "c", every=5)
    await planned(conn)
    await set_clock(conn, 5)
    found = await overlap.groups(conn, OWNER, within=5.0)
    assert [(group.overlap, [turn.waits for turn in group.turns]) for group in found] == [("skip", [False, True])] * 2


async def test_the_policy_is_the_one_in_force_now(conn: Connection, report: int) -> None:
    await conn.execute("""update mainspring.schedule set policies = '{"overlap": "skip"}'""")
    [group] = await overlap.groups(conn, OWNER, within=60.0)
    assert group.overlap == "skip"
    await conn.execute("update mainspring.schedule set policies = '{}'")
    [group] = await overlap.groups(conn, OWNER, within=60.0)
    assert group.overlap == "allow"


async def test_a_task_that_depends_on_another_is_in_no_group(conn: Connection, report: int) -> None:
    """It is blocked too, and has no schedule."""
    await conn.execute("update mainspring.task set schedule_id = null, scope = null where state = 0")
    assert await overlap.groups(conn, OWNER, within=60.0) == []


async def test_a_long_queue_hides_no_other_group(conn: Connection) -> None:
    await set_clock(conn, 0)
    for name in ("a", "b"):
        await create(conn, name, every=1, overlap="queue_all", catch_up="all", max_per_tick=1000)
    await set_clock(conn, 300)
    await planned(conn)
    found = await overlap.groups(conn, OWNER, within=5.0)
    assert [len(group.turns) for group in found] == [1 + overlap.WAITING_OF_A_GROUP] * 2


async def stopping(conn: Connection) -> list[bool]:
    [group] = await overlap.groups(conn, OWNER, within=60.0)
    return [turn.is_stopping for turn in group.turns]


async def test_one_that_was_asked_to_stop_is_seen_so(conn: Connection, report: int) -> None:
    [armed] = await claimed(conn)
    assert await stopping(conn) == [False, False]
    assert await overlap.stop(conn, [armed.task], kill=False) == 1
    assert await stopping(conn) == [True, False]


# ── moves ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_is_released_when_its_group_is_free(conn: Connection, report: int) -> None:
    _, second = await ids(conn)
    assert len(await overlap.release(conn, [second])) == 0, "the first is there"
    assert await states(conn) == [1, 0]
    [armed] = await claimed(conn)
    assert len(await overlap.release(conn, [second])) == 0
    await started(conn, [armed])
    assert len(await overlap.release(conn, [second])) == 0
    await finished(conn, [armed])
    assert len(await overlap.release(conn, [second])) == 1
    assert len(await overlap.release(conn, [second])) == 0
    assert [armed.task for armed in await claimed(conn, ahead=20)] == [second]


async def test_a_task_that_waits_for_its_retry_keeps_its_group_busy(conn: Connection, report: int) -> None:
    _, second = await ids(conn)
    [armed] = await claimed(conn)
    failed = Ending(armed.task, armed.token, armed.job, 1, TaskState.FAILED, 1.0, 2.0)
    await transitions.retry(conn, [Again(failed, 600.0, True, False)])
    assert len(await overlap.release(conn, [second])) == 0


async def test_another_scope_or_schedule_does_not_keep_a_group_busy(conn: Connection) -> None:
    await set_clock(conn, 0)
    await create(conn, "a", every=5, overlap="skip", scopes=["x", "y"])
    await planned(conn)
    await conn.execute("delete from mainspring.task where scope = 'x' and state = 1")
    [waiting] = [r["id"] for r in await conn.fetch("select id from mainspring.task where scope = 'x'")]
    assert len(await overlap.release(conn, [waiting])) == 1


async def test_where_overlap_is_allowed_now_all_are_released(conn: Connection, report: int) -> None:
    assert len(await overlap.release(conn, await ids(conn), beside_others=True)) == 1
    assert await states(conn) == [1, 1]


async def test_concurrent_releases_of_one_group_release_one_task(dsn: str, conn: Connection) -> None:
    await set_clock(conn, 0)
    await create(conn, every=2, overlap="queue_all")
    await planned(conn)
    await conn.execute("delete from mainspring.task where state = 1")
    waiting = await ids(conn)
    hands = [await Database(dsn).connect() for _ in range(4)]
    released = await asyncio.gather(*(overlap.release(hand, waiting[:1]) for hand in hands))
    assert sorted(len(passed) for passed in released) == [0, 0, 0, 1]
    assert await states(conn) == [1, *[0] * (len(waiting) - 1)]
    for hand in hands:
        await hand.close()


async def test_a_skip_is_kept_in_the_ledger_and_in_the_history(conn: Connection, report: int) -> None:
    await set_clock(conn, 10)
    first, second = await ids(conn)
    assert await overlap.skip(conn, [first, second]) == 1, "only one that waits can be skipped"
    assert await states(conn) == [1]
    assert await ledger(conn, report) == [Entry(5, "", None), Entry(10, "", "overlap")]
    row = await conn.fetchrow(
        "select id, state, error_code, finished_at, pool > 0 as open from mainspring.task_history"
    )
    assert tuple(row) == (second, 14, "overlap", at(10), True)
    assert await overlap.skip(conn, [second]) == 0


async def test_one_that_was_released_in_the_meantime_is_not_skipped(conn: Connection, report: int) -> None:
    _, second = await ids(conn)
    await overlap.release(conn, [second], beside_others=True)
    assert await overlap.skip(conn, [second]) == 0
    assert await ledger(conn, report) == [Entry(5, "", None), Entry(10, "", None)]


@pytest.mark.parametrize("kill", [False, True])
async def test_those_that_run_are_asked_to_stop(conn: Connection, report: int, kill: bool) -> None:
    [armed] = await claimed(conn)
    await started(conn, [armed])
    assert await overlap.stop(conn, await ids(conn), kill=kill) == 1
    rows = await conn.fetch("select cancel_at, cancel_mode from mainspring.task order by plan_time")
    assert [tuple(row) for row in rows] == [(at(0), CancelMode.KILL if kill else None), (None, None)], (
        "not one that waits its turn"
    )
    assert await overlap.stop(conn, [armed.task], kill=kill) == 0, "once"


async def test_one_that_waits_for_a_retry_is_cancelled_at_once(conn: Connection, report: int) -> None:
    [armed] = await claimed(conn)
    failed = Ending(armed.task, armed.token, armed.job, 1, TaskState.FAILED, 1.0, 2.0)
    await transitions.retry(conn, [Again(failed, 600.0, True, False)])
    assert await overlap.stop(conn, [armed.task], kill=False) == 1
    row = await conn.fetchrow("select id, state, error_code, attempt from mainspring.task_history")
    assert tuple(row) == (armed.task, 13, "cancelled", 1)
    assert await states(conn) == [0]


@pytest.mark.parametrize("kill", [False, True])
async def test_one_that_was_asked_back_in_vain_can_still_be_stopped(conn: Connection, report: int, kill: bool) -> None:
    """It started before the recall arrived, and runs on: the next one may take its place all the same."""
    [armed] = await claimed(conn)
    async with conn.transaction():
        await revoke.recall(conn, report, at=at(0), after=at(0))
    await planned(conn)
    await conn.execute("update mainspring.schedule set next_plan_at = $1, look_at = $1", at(10))
    await planned(conn)
    assert await states(conn) == [2, 0]
    assert await overlap.stop(conn, [armed.task], kill=kill) == 0, "the agent is asked for it already"
    await started(conn, [armed])
    assert await stopping(conn) == [False, False]
    assert await overlap.stop(conn, [armed.task], kill=kill) == 1
    row = await conn.fetchrow("select cancel_at, cancel_mode from mainspring.task where id = $1", armed.task)
    assert (row["cancel_at"] is not None, row["cancel_mode"]) == (True, CancelMode.KILL if kill else None)
    assert await stopping(conn) == [True, False]
