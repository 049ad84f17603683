"""LeaseKeeper: what the watchdog of a server renews, and for how long."""

from __future__ import annotations

import mainspring
from mainspring.server.agents.lease_keeper import LeaseKeeper
from mainspring.store.postgres.database import Database
from mainspring.wire.clock import boottime

LEASE = 60.0  # seconds: the loops of the server itself renew nothing during the test


async def test_a_server_that_is_blocked_for_long_keeps_its_agent_and_hands_over_its_segments(
    dsn: str, database: Database
) -> None:
    app = mainspring.App("blocked", dsn=dsn, lease=LEASE)
    async with app.running():
        assert app.engine is not None
        server, agent = app.engine.server, app.engine.agent
        (session,) = server.gateway.sessions.values()
        kept: list[int] = []
        keeper = LeaseKeeper(
            database.for_thread(),
            server.membership,
            server.gateway,
            LEASE,
            lambda session, sent, seconds: kept.append(session),
        )
        await keeper.renew(5.0)
        assert kept == [], "renewed by the loop a moment ago"
        for blocked, is_kept in ((5.0, True), (2 * LEASE + 1, False)):
            long_ago = boottime() - LEASE / 2
            session.renewed_at, server.server_lease.trusted_until = long_ago, long_ago + LEASE * 0.9
            await keeper.renew(blocked)
            assert session.renewed_at > long_ago
            assert (server.membership.renewed_at > long_ago + 1) is is_kept
        assert kept == [session.id, session.id] == [agent.session, agent.session]
        await keeper.close()
