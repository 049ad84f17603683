"""Alerts of a whole engine: a server in this process, a receiver on loopback, and nothing in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.alerting import add_channel
from tests.cluster import shift_clock
from tests.conftest import Eventually
from tests.receiver import Receiver, receiving

from mainspring.compose.local import identity_of, make_server
from mainspring.config import load
from mainspring.server.alerting import evaluator
from mainspring.store.postgres.database import Connection, Database


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.mark.usefixtures("no_servers")
async def test_no_agents_is_told_without_agents(
    dsn: str, database: Database, conn: Connection, receiver: Receiver, eventually: Eventually, tmp_path: Any
) -> None:
    """One server, no agent, no job: the leader itself finds it, and tells it, by the rules that are there."""
    settings = load({"dsn": dsn, "data_directory": str(tmp_path), "http_allow": "127.0.0.0/8"})
    server = make_server(settings, database, identity_of(settings), None, {})
    await add_channel(conn, receiver.url)
    await server.start()
    try:

        async def fires() -> bool:
            return bool(await conn.fetchval("select exists (select from mainspring.alert where subject = 'cluster')"))

        await eventually(fires)
        for ahead in (61, 122):
            await conn.execute(
                "update mainspring.alert set seen_at = seen_at + interval '55 s' where state = 'pending'"
            )
            await conn.execute("update mainspring.server set lease_until = lease_until + interval '10 minutes'")
            await conn.execute("update mainspring.leader set lease_until = lease_until + interval '10 minutes'")
            await shift_clock(conn, ahead)
            before = await conn.fetchval("select evaluated_at from mainspring.alert_rule where name = 'no-agents'")
            server.evaluator.wake.set()

            async def looked(before: Any = before) -> bool:
                at = await conn.fetchval("select evaluated_at from mainspring.alert_rule where name = 'no-agents'")
                return bool(at > before)

            await eventually(looked)

        async def told() -> bool:
            return bool(receiver.got)

        await eventually(told)
        [message] = receiver.bodies
        assert (message["rule"], message["state"], message["severity"]) == ("no-agents", "firing", "critical")
        assert message["alerts"][0]["subject"] == "cluster"
    finally:
        await server.stop(patience=1.0)
    assert evaluator.EVALUATE_EVERY <= 10.0
