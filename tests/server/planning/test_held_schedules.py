"""Planner: steps beside rows that others have locked, and steps that would be too large."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.cluster import server_lease
from tests.schedules import create, ledger, set_clock

from mainspring.server.planning import planner as planner_module
from mainspring.server.planning.planner import Planner
from mainspring.store.postgres.database import Connection, Database


@pytest.fixture
async def planner(database: Database) -> AsyncIterator[Planner]:
    planner = Planner(database, server_lease(), None, {})
    yield planner
    await planner.close()


async def test_schedules_that_others_hold_do_not_hide_those_behind_them(
    dsn: str, conn: Connection, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "BATCH", 3)
    await set_clock(conn, 0)
    for number in range(7):
        await create(conn, f"held {number}", every=5)
    await set_clock(conn, 1)
    free = await create(conn, "free", every=5)
    holder = await Database(dsn).connect()
    async with holder.transaction():
        await holder.execute("select from mainspring.schedule where name like 'held%' for update")
        for _ in range(4):
            await planner.step()
        assert len(await ledger(conn, free)) == 2
    await holder.close()
    while await planner.step():
        pass
    assert await conn.fetchval("select count(distinct schedule_id) from mainspring.fire") == 8


async def test_a_step_ends_when_it_has_enough(
    conn: Connection, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "STEP_FIRES", 10)
    await set_clock(conn, 0)
    for number in range(6):
        await create(conn, f"report {number}", every=2)
    assert await planner.step() == 2, "five plan times each"
    assert await planner.step() == 2
    assert await planner.step() == 2
    assert await planner.step() == 0
