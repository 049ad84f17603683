"""Segments: planners and dispatchers get what their server owns, and nothing else, whatever they believe."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from tests.cluster import OWNER
from tests.schedules import at, create, set_clock

from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.store.cluster import servers
from mainspring.store.cluster.servers import ServerInfo
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import overlap, plans
from mainspring.store.schedules.plans import Advance, Fire
from mainspring.store.tasks import claim_order, claims, jobs, sticky
from mainspring.store.tasks.sticky import Contest

FROM_BOTTOM = [BOTTOM] * 10


@pytest.fixture
async def other(conn: Connection) -> UUID:
    """Another server, which owns the odd segments."""
    id = uuid4()
    await servers.join(conn, ServerInfo(id, "other", "1", "there"), 60.0)
    await conn.execute("update mainspring.segment set owner = $1, epoch = epoch + 1 where id % 2 = 1", id)
    return id


@pytest.fixture
async def pool(conn: Connection) -> int:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await conn.execute("select mainspring.enqueue_many('job', array_fill('{}'::jsonb, array[100]))")
    return int(await conn.fetchval("select pool from mainspring.job"))


async def claimed(conn: Connection, server: UUID, pool: int) -> list[int]:
    claim = await claims.claim(conn, server, pool, [1], 1000, FROM_BOTTOM, ahead=60.0)
    return sorted(armed.task for tasks in claim.tasks.values() for armed in tasks)


async def test_a_claim_takes_tasks_of_owned_segments_only(conn: Connection, pool: int, other: UUID) -> None:
    evens, odds = await claimed(conn, OWNER, pool), await claimed(conn, other, pool)
    assert len(evens) == len(odds) == 50
    assert {id % 2 for id in evens} == {0}
    assert {id % 2 for id in odds} == {1}


async def test_a_server_without_segments_claims_nothing(conn: Connection, pool: int) -> None:
    assert await claimed(conn, uuid4(), pool) == []


async def test_a_task_goes_to_whom_its_segment_has_gone(conn: Connection, pool: int, other: UUID) -> None:
    await conn.execute("update mainspring.segment set owner = $1, epoch = epoch + 1", other)
    assert await claimed(conn, OWNER, pool) == []
    assert len(await claimed(conn, other, pool)) == 100


async def test_a_pool_that_its_owner_has_opened_is_everybodys(conn: Connection, pool: int, other: UUID) -> None:
    await servers.shared_pools(conn, other, [pool, 4711])
    assert len(await claimed(conn, OWNER, pool)) == 100


async def test_a_pool_that_was_closed_again_is_its_owners(conn: Connection, pool: int, other: UUID) -> None:
    await servers.shared_pools(conn, other, [pool])
    await servers.shared_pools(conn, other, [4711])
    assert len(await claimed(conn, OWNER, pool)) == 50


async def test_a_server_that_nobody_knows_opens_nothing(conn: Connection, pool: int) -> None:
    """It was declared dead and forgotten, or is about to join under another number."""
    await servers.shared_pools(conn, uuid4(), [pool])
    assert await conn.fetchval("select count(*) from mainspring.shared_pool") == 0


async def test_a_sticky_claim_takes_tasks_of_owned_segments_only(conn: Connection, pool: int, other: UUID) -> None:
    contest = Contest("customer", [("a", 1, 1000)], 1.0)
    assert len(await claim_order.left(conn, other, {pool: FROM_BOTTOM})) == 1
    claim = await sticky.claim(conn, OWNER, pool, contest, 1000, FROM_BOTTOM, ahead=60.0)
    assert {armed.task % 2 for armed in claim.tasks[1]} == {0}
    assert await claim_order.left(conn, OWNER, {pool: FROM_BOTTOM}) == []


async def test_stragglers_of_others_are_not_looked_for(conn: Connection, pool: int, other: UUID) -> None:
    top = [(4e9, 0)] * 10
    assert len(await claimed(conn, OWNER, pool)) == 50
    assert await claim_order.stragglers(conn, OWNER, {pool: top}) == []
    assert len(await claim_order.stragglers(conn, other, {pool: top})) == 1


# ── schedules ───────────────────────────────────────────────────────────────────────────────────


async def test_a_planner_looks_at_schedules_of_owned_segments_only(conn: Connection) -> None:
    await set_clock(conn, 0)
    report = await create(conn, every=5)
    assert [due.id for due in await plans.due(conn, OWNER, 10)] == [report]
    assert await plans.due(conn, uuid4(), 10) == []


async def test_a_planner_that_lost_the_segment_meanwhile_writes_nothing(conn: Connection, other: UUID) -> None:
    await set_clock(conn, 0)
    await create(conn, every=5)
    await conn.execute("update mainspring.segment set owner = $1", OWNER)
    [due] = await plans.due(conn, OWNER, 10)
    move = Advance(due.id, due.number, due.cursor, at(60), at(60), due.epoch)
    fires = [Fire(due.id, at(5), "", at(5), None)]
    await conn.execute("update mainspring.segment set owner = $1", other)
    assert await plans.plan(conn, OWNER, [move], fires) == set()
    await conn.execute("update mainspring.segment set owner = $1, epoch = epoch + 1", OWNER)
    assert await plans.plan(conn, OWNER, [move], fires) == set(), "it was another's in between"
    assert await conn.fetchval("select count(*) from mainspring.fire") == 0
    [due] = await plans.due(conn, OWNER, 10)
    assert await plans.plan(conn, OWNER, [move._replace(epoch=due.epoch)], fires) == {due.id}


async def test_lanes_are_those_of_owned_segments(conn: Connection) -> None:
    await set_clock(conn, 0)
    report = await create(conn, every=5, overlap="queue_all")
    [due] = await plans.due(conn, OWNER, 10)
    fires = [Fire(report, at(second), "", at(second), None) for second in (5, 10)]
    await plans.plan(conn, OWNER, [Advance(report, due.number, due.cursor, at(60), at(60), due.epoch)], fires)
    assert len(await overlap.groups(conn, OWNER, within=60.0)) == 1
    assert await overlap.groups(conn, uuid4(), within=60.0) == []
