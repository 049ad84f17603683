"""Membership: a server acts while it can trust its lease, and joins again after it was marked dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from uuid import UUID, uuid4

import pytest
from tests.cluster import own

from mainspring.errors import StoreUnavailable
from mainspring.server.cluster.lease import ServerLease
from mainspring.server.cluster.membership import Membership
from mainspring.store.cluster import servers
from mainspring.store.cluster.servers import ServerInfo
from mainspring.store.postgres.database import Connection, Database
from mainspring.wire.clock import boottime

Make = Callable[..., Membership]


@pytest.fixture
async def make(database: Database) -> AsyncIterator[Make]:
    made = []

    def membership(
        server_lease: ServerLease, lease: float = 60.0, agents: int = 0, process: str | None = None
    ) -> Membership:
        newcomer = ServerInfo(server_lease.id, "a", "1.2", "host", None, "shop", process)
        made.append(Membership(database, server_lease, newcomer, lease, lambda: agents))
        return made[-1]

    yield membership
    for membership_ in made:
        await membership_.close()


async def row(conn: Connection, id: UUID, *columns: str) -> tuple[object, ...]:
    return tuple(await conn.fetchrow(f"select {', '.join(columns)} from mainspring.server where id = $1", id))


async def test_a_server_that_joined_is_active_and_may_act(make: Make, conn: Connection) -> None:
    server_lease = ServerLease(uuid4())
    assert not server_lease.may_act
    membership = make(server_lease)
    await membership.join()
    assert server_lease.may_act
    await membership.announce("ws://here:7070", "http://here:7070")
    assert await row(conn, server_lease.id, "name", "version", "host", "app", "url", "api_url", "status") == (
        "a",
        "1.2",
        "host",
        "shop",
        "ws://here:7070",
        "http://here:7070",
        "active",
    )


async def test_a_heartbeat_tells_what_the_server_has_done(make: Make, conn: Connection) -> None:
    server_lease = ServerLease(uuid4())
    membership = make(server_lease, agents=3)
    await membership.join()
    server_lease.tally.scan(7, 100.0, 100.25)
    server_lease.tally.planned, server_lease.tally.dispatched, server_lease.tally.recorded = 5, 4, 2
    server_lease.tally.claim_seconds = 0.125
    await membership.beat()
    told = await row(conn, server_lease.id, "agents", "scanned", "planned", "dispatched", "recorded", "scan_seconds")
    assert told == (3, 7, 5, 4, 2, 0.25)
    assert await row(conn, server_lease.id, "claim_seconds") == (0.125,)
    assert await conn.fetchval("select scanned_at < now() from mainspring.server where id = $1", server_lease.id)


async def test_without_heartbeats_a_server_stops_before_its_lease_is_over(make: Make) -> None:
    server_lease = ServerLease(uuid4())
    membership = make(server_lease, lease=0.5)
    await membership.join()
    assert server_lease.trusted_until < boottime() + 0.5, "the lease began in the database after it was asked for"
    while server_lease.may_act:
        await asyncio.sleep(0.005)
    assert server_lease.why_not is not None
    await membership.beat()
    assert server_lease.may_act, "nobody has declared it dead"


async def test_a_server_that_was_declared_dead_joins_again(make: Make, conn: Connection) -> None:
    server_lease = ServerLease(uuid4())
    membership = make(server_lease)
    await membership.join()
    await conn.execute("update mainspring.server set status = 'dead', ended_at = now() where id = $1", server_lease.id)
    await membership.beat()
    assert server_lease.may_act
    assert await row(conn, server_lease.id, "status", "incarnation", "ended_at") == ("active", 2, None)


async def test_of_two_processes_with_one_id_the_first_takes_another(make: Make, conn: Connection) -> None:
    """A directory was copied, or a process came back after somebody else took its place."""
    id = uuid4()
    first, second = ServerLease(id), ServerLease(id)
    await make(first).join()
    await make(second).join()
    beating = make(ServerLease(id))
    beating._server_lease, beating._incarnation = first, 1
    await beating.beat()
    assert first.id != second.id == id
    assert first.may_act
    assert await row(conn, id, "status", "incarnation") == ("active", 2)
    assert await row(conn, first.id, "status", "incarnation") == ("active", 1)


async def test_a_server_that_stopped_is_stopped_and_beats_no_more(make: Make, conn: Connection) -> None:
    server_lease = ServerLease(uuid4())
    membership = make(server_lease)
    await membership.join()
    await membership.drain()
    assert server_lease.why_not == "the server is stopping"
    await membership.close()
    await membership.beat()
    assert await conn.fetchval(
        "select status = 'stopped' and ended_at is not null from mainspring.server where id = $1", server_lease.id
    )


async def test_a_join_whose_answer_was_lost_is_no_other_process(make: Make, conn: Connection) -> None:
    id = uuid4()
    server_lease = ServerLease(id)
    membership = make(server_lease, process="boot namespace 7 1")
    await membership.join()
    await conn.execute("update mainspring.server set incarnation = 2 where id = $1", id)  # the answer never came
    await membership.beat()
    assert server_lease.id == id
    assert server_lease.may_act
    assert await row(conn, id, "status", "incarnation") == ("active", 3)


async def test_a_drain_that_did_not_come_through_is_told_with_the_next_heartbeat(
    make: Make, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its heartbeats would keep the segments, of which it serves none any more."""
    server_lease = ServerLease(uuid4())
    membership = make(server_lease)
    await membership.join()
    await own(conn, server_lease.id, range(100))

    async def away(*_: object) -> None:
        raise StoreUnavailable("PostgreSQL is away")

    with monkeypatch.context() as patched:
        patched.setattr(servers, "drain", away)
        await membership.drain()
    assert await row(conn, server_lease.id, "status") == ("active",)
    await membership.beat()
    assert await row(conn, server_lease.id, "status") == ("draining",)
    assert not await conn.fetchval("select count(*) from mainspring.segment where owner is not null")
