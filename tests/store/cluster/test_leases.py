"""Leases when the database's clock is set back: the dead are found as soon as ever."""

from __future__ import annotations

import pytest
from tests.cluster import add_server, shift_clock

from mainspring.store.cluster import agents, leases
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import rescue

pytestmark = pytest.mark.usefixtures("no_servers")

HOUR = 3600.0
_LEFT = """
    select extract(epoch from lease_until - mainspring.now())::float8 as lasts from mainspring.server
     union all
    select extract(epoch from lease_until - mainspring.now())::float8 from mainspring.agent where ended_at is null
"""


async def left(conn: Connection) -> list[float]:
    """Seconds that leases still last, of servers and then of sessions."""
    return [row["lasts"] for row in await conn.fetch(_LEFT)]


async def begin(conn: Connection, process: str | None = None) -> int:
    return await agents.begin(conn, agents.AgentInfo("agent", 1, {}, process), 15.0)


async def test_a_clock_that_is_set_back_makes_no_lease_longer(conn: Connection) -> None:
    await add_server(conn, "a", lease="15 s")
    session = await begin(conn)
    await agents.renew(conn, [agents.Vital(session, silent=3.0)], 15.0)
    await shift_clock(conn, -HOUR)
    assert min(await left(conn)) > HOUR, "so long nobody would be missed"
    assert await leases.restart_future_leases(conn) == 2
    server, agent = await left(conn)
    assert 14 < server <= 15, "all of it: nobody knows how much is left"
    assert 14 < agent <= 18.1
    assert await leases.restart_future_leases(conn) == 0, "once"


async def test_an_expired_lease_stays_expired(conn: Connection) -> None:
    session = await begin(conn, "a process")
    ended = await begin(conn)
    await agents.leave(conn, [ended])
    await shift_clock(conn, -HOUR)
    await leases.end(conn, ["a process"])
    await leases.restart_future_leases(conn)
    assert await rescue.gone(conn) == [session]


@pytest.mark.parametrize("seconds", [0.0, HOUR])
async def test_a_clock_that_is_not_set_back_changes_nothing(conn: Connection, seconds: float) -> None:
    await add_server(conn, "a", lease="15 s")
    await begin(conn)
    await shift_clock(conn, seconds)
    assert await leases.restart_future_leases(conn) == 0
