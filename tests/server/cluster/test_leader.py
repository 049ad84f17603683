"""Leader: one at a time, whatever happens to it; and two at once do no harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.cluster import shift_clock

from mainspring.errors import StoreUnavailable
from mainspring.model.placement.segments import SEGMENTS
from mainspring.server.cluster.coordinator import Coordinator
from mainspring.server.cluster.leader import Leader
from mainspring.server.cluster.lease import ServerLease
from mainspring.server.cluster.membership import Membership
from mainspring.store.cluster import leaders, segments
from mainspring.store.cluster.servers import ServerInfo
from mainspring.store.postgres.database import Connection, Database

Eventually = Callable[..., Awaitable[Any]]

LEASE = 1.5  # of a server; a leader's is a third of it


class Member:
    """What a server has of the cluster, with connections of its own; its loops are the test's."""

    def __init__(self, dsn: str, name: str, lease: float = LEASE) -> None:
        self.database = Database(dsn)
        self.server_lease = ServerLease(uuid4())
        newcomer = ServerInfo(self.server_lease.id, name, "1", "here")
        self.membership = Membership(self.database, self.server_lease, newcomer, lease, lambda: 0)
        self.leader = Leader(self.database, self.server_lease, lease)
        self.coordinator = Coordinator(self.database, self.server_lease, self.leader, lease)

    @property
    def id(self) -> UUID:
        return self.server_lease.id

    async def start(self) -> None:
        await self.membership.join()
        await self.leader.step()

    async def close(self) -> None:
        await self.leader.close()
        await self.membership.close()
        await self.database.close()


Join = Callable[..., Awaitable[Member]]


@pytest.fixture
async def join(dsn: str) -> AsyncIterator[Join]:
    """`await join("a")` is a server that has joined, and has run for the lead."""
    members = []

    async def make(name: str, lease: float = LEASE) -> Member:
        member = Member(dsn, name, lease)
        members.append(member)
        await member.start()
        return member

    yield make
    for member in members:
        await member.close()


async def owners(conn: Connection) -> dict[UUID | None, int]:
    rows = await conn.fetch("select owner, count(*) as count from mainspring.segment group by owner")
    return {row["owner"]: row["count"] for row in rows}


async def cut(conn: Connection) -> None:
    """The connection that holds the lead is gone, as after a kill -9 of its server."""
    await conn.execute("select pg_terminate_backend(backend, 5000) from mainspring.leader")  # and wait for its end


# ── one ─────────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_leads_and_the_others_do_not(join: Join) -> None:
    first, second = await join("a"), await join("b")
    assert (first.leader.term, second.leader.term) == (1, None)
    await second.leader.step()
    await first.leader.step()
    assert (first.leader.term, second.leader.term) == (1, None)


async def test_of_many_that_run_at_once_one_leads(dsn: str, join: Join) -> None:
    members = [Member(dsn, f"server {number}") for number in range(5)]
    try:
        await asyncio.gather(*(member.start() for member in members))
        assert sum(member.leader.term is not None for member in members) == 1
    finally:
        for member in members:
            await member.close()


async def test_whoever_is_elected_sees_to_the_segments_at_once(dsn: str) -> None:
    member = Member(dsn, "a")
    member.leader.on_elected.connect(member.coordinator.wake.set)
    try:
        await member.start()
        assert member.coordinator.wake.is_set()
        member.coordinator.wake.clear()
        await member.leader.step()
        assert not member.coordinator.wake.is_set(), "a renewal is no election"
    finally:
        await member.close()


async def test_a_leader_whose_connection_is_gone_leads_no_more_and_another_does_at_once(
    join: Join, conn: Connection
) -> None:
    first, second = await join("a"), await join("b")
    await cut(conn)
    await second.leader.step()
    assert second.leader.term == 2
    await first.leader.step()
    assert first.leader.term is None
    await first.leader.step()
    assert first.leader.term is None, "the other has the lock"


async def test_a_stranger_that_holds_the_lock_prevents_no_election(join: Join, dsn: str) -> None:
    """Any role that can connect may take an advisory lock, and keep it."""
    stranger = await Database(dsn).connect()
    await stranger.execute("select pg_advisory_lock($1, $2)", *leaders._LOCK)
    first, second = await join("a"), await join("b")
    assert (first.leader.term, second.leader.term) == (1, None)
    await second.leader.step()
    await first.leader.step()
    assert (first.leader.term, second.leader.term) == (1, None), "its lease holds"
    await first.leader.close()
    await second.leader.step()
    assert second.leader.term == 2
    await stranger.close()


async def test_a_leader_that_is_silent_does_not_trust_its_lead_and_loses_the_lock(
    join: Join, eventually: Eventually
) -> None:
    """As one that is stopped by a signal, or cut off from the database: its connection is still there."""
    first, second = await join("a"), await join("b")
    await asyncio.sleep(first.leader._lease)
    assert first.leader.term is None, "it stops by itself before it is asked"

    async def leads() -> bool:
        await second.membership.beat()
        await second.leader.step()
        return second.leader.term is not None

    await eventually(leads)
    await first.leader.step()
    assert first.leader.term is None
    assert second.leader.term == 2


async def test_a_leader_that_stops_leaves_the_lead_to_the_others(join: Join) -> None:
    first, second = await join("a"), await join("b")
    await first.leader.close()
    await second.leader.step()
    assert second.leader.term == 2


async def test_who_cannot_trust_its_lease_does_not_run(join: Join, conn: Connection) -> None:
    first, second = await join("a"), await join("b")
    await cut(conn)
    second.server_lease.trusted_until = 0.0
    await second.leader.step()
    assert second.leader.term is None
    await first.leader.step()
    await first.leader.step()
    assert first.leader.term == 2


async def test_a_silent_leader_is_replaced_though_the_clock_was_set_back(
    join: Join, conn: Connection, eventually: Eventually
) -> None:
    """By that clock its lease would last for another hour."""
    _, second = await join("a"), await join("b", 60.0)
    await shift_clock(conn, -3600)

    async def leads() -> bool:
        await second.leader.step()
        return second.leader.term is not None

    await eventually(leads)
    assert second.leader.term == 2


async def test_a_dead_server_is_found_though_the_clock_was_set_back(
    join: Join, conn: Connection, eventually: Eventually
) -> None:
    first, second = await join("a"), await join("b")
    await first.coordinator.step()
    await shift_clock(conn, -3600)

    async def is_buried() -> bool:
        for step in (first.membership.beat, first.leader.step, first.coordinator.step):
            await step()
        return await owners(conn) == {first.id: SEGMENTS}

    await eventually(is_buried)
    assert await conn.fetchval("select status from mainspring.server where id = $1", second.id) == "dead"


_AGENT = """
    insert into mainspring.agent (name, slots, server, lease_until, ended_at)
    values ($1, $2, $3, mainspring.now() + interval '1 hour', case when $4 then mainspring.now() end)
"""


async def test_segments_follow_the_slots_of_the_agents_and_not_their_coming_and_going(
    join: Join, conn: Connection
) -> None:
    first, second = await join("a", 60.0), await join("b", 60.0)
    await conn.execute("insert into mainspring.draining (name) values ('draining')")
    for name, slots, member, has_ended in (
        ("one", 10, first, False),
        ("two", 20, second, False),
        ("three", 10, second, False),
        ("ended", 100, first, True),
        ("draining", 100, first, False),
    ):
        await conn.execute(_AGENT, name, slots, member.id, has_ended)
    await first.coordinator.step()
    assert await owners(conn) == {first.id: 27, second.id: 73}
    before = await conn.fetch("select id, owner from mainspring.segment order by id")
    for has_ended in (True, False, True, False):
        ended_at = "mainspring.now()" if has_ended else "null"
        await conn.execute(f"update mainspring.agent set ended_at = {ended_at} where name = 'three'")
        first.coordinator._capacity._seen = {  # some minutes ago
            server: seen._replace(since=seen.since - 600, at=seen.at - 1, changed_at=seen.changed_at - 1)
            for server, seen in first.coordinator._capacity._seen.items()
        }
        await first.coordinator.step()
        assert await conn.fetch("select id, owner from mainspring.segment order by id") == before


async def test_nobody_dies_of_a_clock_that_is_set_forward(join: Join, conn: Connection) -> None:
    first, second = await join("a", 60.0), await join("b", 60.0)
    first.leader._elected_at -= 60
    await first.coordinator.step()
    await shift_clock(conn, 3600)
    await first.leader.step()
    await first.coordinator.step()
    for member in (first, second):
        await member.membership.beat()
    await first.coordinator.step()
    alive = "status = 'active' and incarnation = 1"
    assert await conn.fetchval(f"select count(*) from mainspring.server where {alive}") == 2
    assert await owners(conn) == {first.id: 50, second.id: 50}


_DISK_FULL = """
    create function pg_temp.fail() returns trigger language plpgsql as
        $$ begin raise exception 'no space' using errcode = '53100'; end $$;
    create trigger fail before update on mainspring.leader for each row execute function pg_temp.fail()
"""


async def test_who_cannot_write_its_term_does_not_keep_the_lock(join: Join, conn: Connection) -> None:
    """A lock of the session outlives the statement that failed: with it and without a term, nobody would lead."""
    first, second = await join("a"), await join("b")
    await first.leader.close()
    await conn.execute(_DISK_FULL)
    with pytest.raises(StoreUnavailable):
        await second.leader.step()
    held = """
        select count(*) from pg_locks l join pg_database d on d.oid = l.database
         where l.locktype = 'advisory' and l.objsubid = 2 and d.datname = current_database()
    """
    assert await conn.fetchval(held) == 0
    await conn.execute("drop trigger fail on mainspring.leader")
    await second.leader.step()
    assert second.leader.term == 2


async def test_steps_of_the_leader_do_nothing_elsewhere(join: Join) -> None:
    first, second = await join("a"), await join("b")
    done: list[str] = []

    async def step(name: str) -> int:
        done.append(name)
        return 1

    assert await first.leader.only(lambda: step("first"))() == 1
    assert await second.leader.only(lambda: step("second"))() == 0
    assert done == ["first"]


# ── two ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_leader_of_an_old_term_moves_nothing_and_buries_nobody(join: Join, conn: Connection) -> None:
    old = await join("a")
    await old.coordinator.step()
    assert await owners(conn) == {old.id: SEGMENTS}
    await conn.execute("update mainspring.leader set term = term + 1, owner = $1", uuid4())
    assert old.leader.term == 1, "it does not know yet"
    await join("b")
    await conn.execute("update mainspring.server set lease_until = now() - interval '1 hour'")
    await asyncio.sleep(LEASE / 3)
    assert await segments.declare_dead(conn, old.id, 1) == {}
    await old.coordinator.step()
    assert await owners(conn) == {old.id: SEGMENTS}


async def test_two_leaders_at_once_give_each_segment_to_one_server(join: Join, conn: Connection) -> None:
    """Even with the very same term: the epoch of a segment makes each move one leader's."""
    first, second = await join("a", 60.0), await join("b", 60.0)
    second.leader._term, second.leader._trusted_until = first.leader.term, float("inf")
    second.coordinator._server_lease = first.server_lease
    await asyncio.gather(*(member.coordinator.step() for member in (first, second) * 5))
    assert await owners(conn) == {first.id: 50, second.id: 50}
    moved = await conn.fetchval("select sum(cardinality(segments)) from mainspring.segment_move")
    epochs = await conn.fetchval("select sum(epoch) from mainspring.segment")
    assert moved == epochs == SEGMENTS, "no segment moved twice"


# ── segments ────────────────────────────────────────────────────────────────────────────────────


async def test_servers_that_join_get_even_shares_and_the_least_moves(join: Join, conn: Connection) -> None:
    first = await join("a", 60.0)
    await first.coordinator.step()
    second = await join("b", 60.0)
    await first.coordinator.step()
    assert await owners(conn) == {first.id: 50, second.id: 50}
    third = await join("c", 60.0)
    await first.coordinator.step()
    assert sorted((await owners(conn)).values()) == [33, 33, 34]
    [last] = await conn.fetch("select * from mainspring.segment_move order by id desc limit 1")
    assert (last["new_owner"], last["reason"], last["term"]) == (third.id, "balance", 1)


async def test_a_server_that_stops_gives_its_segments_away_by_itself(join: Join, conn: Connection) -> None:
    first, second = await join("a", 60.0), await join("b", 60.0)
    await first.coordinator.step()
    await second.membership.drain()
    assert await owners(conn) == {first.id: 50, None: 50}
    await first.coordinator.step()
    assert await owners(conn) == {first.id: SEGMENTS}
    assert not second.server_lease.may_act
    status = await conn.fetchval("select status from mainspring.server where id = $1", second.id)
    assert status == "draining"


async def test_the_segments_of_a_dead_server_move_once_its_lease_is_over(join: Join, conn: Connection) -> None:
    first, second = await join("a"), await join("b")
    await first.coordinator.step()
    async with asyncio.timeout(20):
        while await owners(conn) != {first.id: SEGMENTS}:  # the second says nothing more
            await first.membership.beat()
            await first.leader.step()
            await first.coordinator.step()
            await asyncio.sleep(0.05)
    assert not second.server_lease.may_act, "it has stopped by itself"
    assert await conn.fetchval("select status from mainspring.server where id = $1", second.id) == "dead"


async def test_a_new_leader_lets_the_others_beat_before_it_declares_them_dead(join: Join, conn: Connection) -> None:
    """After an outage of the database all leases are over."""
    first, second = await join("a", 60.0), await join("b", 60.0)
    await first.coordinator.step()
    await conn.execute("update mainspring.server set lease_until = now() - interval '1 minute'")
    await first.coordinator.step()
    await second.membership.beat()
    await first.membership.beat()
    assert await owners(conn) == {first.id: 50, second.id: 50}
