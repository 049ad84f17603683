"""Gating: limits that a job gets count for tasks that were there before."""

from __future__ import annotations

from unittest.mock import AsyncMock

import asyncpg
import pytest
from tests.store.limits.test_release import claim, define_job, settle, submit

from mainspring.model.messages import Ending
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.server.planning.limits import LimitsLoop
from mainspring.store.limits import gating
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import transitions


async def walk(conn: Connection, part: int) -> list[gating.Walked]:
    walked: list[gating.Walked] = []
    last: int | None = 0
    while last is not None:
        walked.append(await gating.walk(conn, last, part))
        last = walked[-1].last
    return walked


async def marked(conn: Connection) -> int:
    return int(await conn.fetchval("select count(*) from mainspring.pool where gating_since is not null"))


async def test_limits_that_a_job_gets_count_for_what_waits(conn: Connection) -> None:
    await define_job(conn)
    await define_job(conn, "other")
    [parent] = await submit(conn, "other")
    waiting = await submit(conn, count=5)
    blocked = await conn.fetchval("select mainspring.enqueue('job', after => array[$1::bigint])", parent)
    await define_job(conn, max_running=1)
    walked = await walk(conn, 2)
    assert [(part.found, part.moved) for part in walked] == [(1, 1), (2, 2), (2, 2), (1, 1)]
    assert set(await claim(conn)) == {parent}, "the other job has no limits"
    [first] = await settle(conn)
    assert first == waiting[0]
    gate = await conn.fetchval("select pool from mainspring.job where name = 'job'")
    assert await conn.fetchval("select pool from mainspring.task where id = $1", blocked) == -gate
    await define_job(conn, max_running=2)
    assert [part.found for part in await walk(conn, 100)] == [0], "one that has passed the gate stays where it is"
    assert len(await settle(conn)) == 1


async def test_a_task_that_an_agent_holds_returns_to_the_gate_when_it_is_retried(conn: Connection) -> None:
    await define_job(conn)
    [task] = await submit(conn)
    [held] = (await claim(conn)).values()
    await define_job(conn, max_running=1)
    assert [part.moved for part in await walk(conn, 100)] == [1]
    failed = Ending(held.task, held.token, held.job, held.attempt, TaskState.FAILED, 1.0, 2.0)
    await transitions.retry(conn, [Again(failed, 0.0, costs=True)])
    gate = await conn.fetchval("select pool from mainspring.job where name = 'job'")
    assert await conn.fetchval("select pool from mainspring.task where id = $1", task) == gate


async def test_the_mark_stays_until_every_task_of_before_is_gated(
    conn: Connection, database: Database, dsn: str
) -> None:
    """One task is locked during the first walk, another is added by a transaction that had read the old definition."""
    loop = LimitsLoop(database, lambda _: 5.0, 5.0)
    await define_job(conn)
    locked, waiting = await submit(conn, count=2)
    late = await asyncpg.connect(dsn)
    try:
        transaction = late.transaction()
        await transaction.start()
        await late.execute("select 1 from mainspring.task where id = $1 for update", locked)
        await late.execute("select mainspring.enqueue('job')")
        await define_job(conn, max_running=1)
        assert (await loop.gate_waiting(), await marked(conn)) == (1, 1)
        assert await settle(conn) == [waiting]
        assert (await loop.gate_waiting(), await marked(conn)) == (0, 1), "another transaction has locked it"
        await transaction.commit()
        assert (await loop.gate_waiting(), await marked(conn)) == (2, 1)
        assert (await loop.gate_waiting(), await marked(conn)) == (0, 0)
        assert await claim(conn)
        assert await settle(conn) == [], "one at a time"
    finally:
        await late.close()


async def test_an_open_transaction_keeps_the_mark_and_causes_no_second_walk(
    conn: Connection, database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = LimitsLoop(database, lambda _: 5.0, 5.0)
    await define_job(conn)
    late = await asyncpg.connect(dsn)
    try:
        transaction = late.transaction()
        await transaction.start()
        await late.execute("select mainspring.enqueue('job')")
        await define_job(conn, max_running=1)
        assert (await loop.gate_waiting(), await marked(conn)) == (0, 1)
        walks = AsyncMock()
        monkeypatch.setattr(gating, "walk", walks)
        assert (await loop.gate_waiting(), walks.call_count) == (0, 0)
        monkeypatch.undo()
        await transaction.commit()
        assert (await loop.gate_waiting(), await marked(conn)) == (1, 1)
        assert (await loop.gate_waiting(), await marked(conn)) == (0, 0)
    finally:
        await late.close()
