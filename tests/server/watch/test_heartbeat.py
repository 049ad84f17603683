"""Heartbeat: fetched while all is well, and not at all otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from msgspec.structs import replace
from tests.cluster import DISOWN_ALL
from tests.server.watch.conftest import HOUR, MINUTE, NOON, plan, set_clock
from tests.server.watch.listener import listening

from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.settings import DEFAULTS
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.planning.planner import Planner
from mainspring.server.watch.fetcher import Fetcher
from mainspring.server.watch.heartbeat import Heartbeat
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules

LOOPBACK = ("127.0.0.0/8",)


async def a_server(conn: Connection, at: datetime) -> None:
    await set_clock(conn, at)
    await conn.execute("update mainspring.server set status = 'active', lease_until = $1", at + HOUR)


@asynccontextmanager
async def heart(database: Database, url: str | None, allow: Sequence[str] = LOOPBACK) -> AsyncIterator[Heartbeat]:
    catalogue = Catalogue(database)
    catalogue.settings = replace(DEFAULTS, heartbeat_url=url)
    fetcher = Fetcher(allow)
    try:
        yield Heartbeat(database, catalogue, fetcher)
    finally:
        await fetcher.close()


async def test_it_is_fetched_while_the_cluster_is_well_and_nothing_is_overdue(
    conn: Connection, database: Database, planner: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    assert await schedules.create(conn, define_schedule("s", "job", {"every": "1m"}), enabled=True)
    await a_server(conn, NOON + 50 * MINUTE / 60)
    await plan(conn, planner, NOON + MINUTE)
    async with listening() as listener, heart(database, f"{listener.url}/ping/7") as heartbeat:
        await heartbeat.step()
        assert listener.paths == ["/ping/7"], "degraded, for there is no agent; that is no reason"
        await a_server(conn, NOON + 4 * MINUTE)
        await heartbeat.step()
        await heartbeat.step()
        assert len(listener.paths) == 1, "plan times are overdue"
        assert [record.message for record in caplog.records if "heartbeat" in record.message] == [
            "heartbeat: not sent, plan times are overdue or were passed over; `mainspring schedule check` lists them"
        ], "told once"
        await plan(conn, planner, NOON + 4 * MINUTE)
        await heartbeat.step()
        assert len(listener.paths) == 2
        await conn.execute(
            "insert into mainspring.ledger_hole (schedule_id, plan_time, scope) values (1, $1, '')", NOON + MINUTE
        )
        await heartbeat.step()
        assert (len(listener.paths), heartbeat.tally) == (2, {("heartbeat", "ok"): 2}), "the ledger has a hole"
        await conn.execute("delete from mainspring.ledger_hole")
        await conn.execute(DISOWN_ALL)
        await conn.execute("update mainspring.server set lease_until = $1", NOON)
        await heartbeat.step()
        assert len(listener.paths) == 2, "no server is active: unhealthy"


async def test_without_an_address_nothing_is_asked(database: Database) -> None:
    async with heart(database, None) as heartbeat:
        await heartbeat.step()
        assert not heartbeat.tally


async def test_an_address_that_fails_or_is_refused_is_told_once_and_tried_again(
    conn: Connection, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mainspring")
    await a_server(conn, NOON)
    async with listening() as listener, heart(database, listener.url) as heartbeat:
        listener.status = 500
        await heartbeat.step()
        await heartbeat.step()
        listener.status = 200
        await heartbeat.step()
        assert (len(listener.paths), heartbeat.tally["heartbeat", "failed"]) == (3, 2)
        assert [record.message for record in caplog.records] == [
            "heartbeat: the address did not take it: it answered 500",
            "heartbeat: sent again",
        ]
        async with heart(database, listener.url, ()) as strict:
            await strict.step()
        assert len(listener.paths) == 3, "loopback, which nobody allowed"
        assert "127.0.0.1, a loopback address" in caplog.records[-1].message
