"""Whole stories of many servers: they are restarted, killed and frozen, and people's jobs do not notice."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Connection
from tests.conftest import eventually
from tests.journey import invariants
from tests.journey.load import under_load
from tests.journey.network import Network, Process, open_network

LEASE = 3.0
NEVER_OVER = 30.0  # a lease in a story in which nothing dies
DEADLINE = 60.0  # seconds: for what takes one or two on a quiet machine; how long it takes, benchmarks.cluster tells


@pytest.fixture
async def network(dsn: str, no_servers: None, tmp_path: Path) -> AsyncIterator[Network]:
    async with open_network(dsn, tmp_path) as network:
        yield network


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def a_leader_with_all_agents(network: Network, conn: Connection, lease: float = LEASE) -> tuple[Process, Process]:
    """The first server leads, and two agents have come before the second was there, which they know."""
    port = free_port()
    leader = await network.server(lease=lease)
    urls = [leader.told["url"], f"ws://127.0.0.1:{port}"]
    await network.token()
    await asyncio.gather(*(network.agent(*urls, name=name) for name in ("a", "b")))
    other = await network.server(lease=lease, port=port)
    await until_shared(conn, 2)
    return leader, other


async def until_shared(conn: Connection, servers: int, *, at_least: int = 1) -> None:
    """So many servers have all segments, each some: how many depends on their agents."""

    async def as_wanted() -> bool:
        rows = await conn.fetch("""
            select count(*) from mainspring.segment g join mainspring.server s on s.id = g.owner and s.status = 'active'
             group by g.owner
        """)
        shares = [row["count"] for row in rows]
        return len(shares) == servers and sum(shares) == 100 and min(shares) >= at_least

    await eventually(as_wanted, timeout=DEADLINE)


async def until_closed(conn: Connection, job: str) -> None:
    """No server lets others have its tasks of this job."""

    async def closed() -> bool:
        is_open = "select exists (select from mainspring.shared_pool join mainspring.job using (pool) where name = $1)"
        return not await conn.fetchval(is_open, job)

    await eventually(closed)


async def who_leads(conn: Connection) -> UUID | None:
    leader: UUID | None = await conn.fetchval(
        "select owner from mainspring.leader where lease_until > mainspring.now()"
    )
    return leader


async def until_another_leads(conn: Connection, old: UUID | None) -> None:
    async def another() -> bool:
        return await who_leads(conn) not in (None, old)

    await eventually(another, timeout=DEADLINE)


async def test_a_rolling_restart_of_all_servers_and_agents_loses_nothing_and_costs_no_attempt(
    network: Network, conn: Connection
) -> None:
    await network.token()
    servers = await asyncio.gather(*(network.server(lease=NEVER_OVER) for _ in range(2)))
    urls = [server.told["url"] for server in servers]
    agents = await asyncio.gather(*(network.agent(*urls, name=name) for name in ("a", "b")))
    async with under_load(network, conn) as load:
        await load.until_fired(1)
        for server, url in zip(servers, urls, strict=True):
            await server.stop()
            await network.server(lease=NEVER_OVER, port=int(url.rpartition(":")[2]))
        for agent, name in zip(agents, ("a", "b"), strict=True):
            await agent.stop()
            await network.agent(*urls, name=name)
        await load.until_fired(1)
    await load.check()


async def test_when_the_leader_is_killed_another_leads_and_what_runs_goes_on(
    network: Network, conn: Connection
) -> None:
    leader, other = await a_leader_with_all_agents(network, conn)
    old = await who_leads(conn)
    async with under_load(network, conn) as load:
        long = await network.app["work"].enqueue_many([(3 * LEASE,)] * 4)
        load.tasks += long
        await network.until_begun(long)
        await leader.kill()
        await until_another_leads(conn, old)
        await until_shared(conn, 1)
        await load.until_fired(1)
    await load.check()
    assert other.alive


async def test_a_leader_that_was_frozen_joins_again_and_nothing_is_planned_or_run_twice(
    network: Network, conn: Connection
) -> None:
    leader, _ = await a_leader_with_all_agents(network, conn, lease=8.0)  # its agents find the other one meanwhile
    old = await who_leads(conn)
    async with under_load(network, conn) as load:
        await load.until_fired(1)
        leader.freeze()
        await until_another_leads(conn, old)
        await until_shared(conn, 1)
        leader.thaw()
        await until_shared(conn, 2)
        await load.until_fired(2)
    await load.check()
    assert await who_leads(conn) != old
    assert "declared dead; it joins again" in leader.notes


async def test_replicas_of_a_worker_share_the_work_and_take_over_from_one_that_is_killed(
    network: Network, conn: Connection
) -> None:
    workers = await asyncio.gather(*(network.worker(lease=LEASE, agent_name=name) for name in "abc"))
    await until_shared(conn, 3, at_least=25)
    async with under_load(network, conn) as load:
        long = await network.app["work"].enqueue_many([(2.0,)] * 100)  # one in each segment
        load.tasks += long
        await network.until_begun(long)
        # One whose agent has just joined may have let the others run its tasks: see server/dispatch/overflow.py.
        begun = {line.pid for line in network.ledger()}
        killed = next(worker for worker in workers if worker.pid in begun)
        await killed.kill()
        await until_shared(conn, 2, at_least=40)
        await load.until_fired(2)
    await load.check(killed=killed)
    again = {task.id for task in await invariants.ended(conn) if task.attempt == 2}
    assert {line.task for line in network.ledger() if line.pid == killed.pid} >= again & {task.id for task in long}


async def test_tasks_do_not_wait_beside_idle_agents_of_another_server(network: Network, conn: Connection) -> None:
    """Neither where a server has no agent, nor where those it has are full."""
    _, other = await a_leader_with_all_agents(network, conn, lease=NEVER_OVER)
    tasks = await network.app["work"].enqueue_many([()] * 100)  # one in each segment
    await network.until_ended(tasks, timeout=40)
    full = await network.agent(other.told["url"], name="full", slots=1, labels="full=yes")
    await until_closed(conn, "work")
    hog = await network.app["hog"].enqueue(60.0)
    await network.until_begun([hog])
    tasks = await network.app["work"].enqueue_many([()] * 100)
    await network.until_ended(tasks, timeout=40)
    assert {line.pid for line in network.ledger() if line.task == hog.id} == {full.pid}


@pytest.mark.parametrize("is_asked_again", [True, False])
async def test_a_worker_that_is_asked_again_or_has_waited_long_enough_stops_what_runs_at_no_cost(
    network: Network, conn: Connection, is_asked_again: bool
) -> None:
    worker = await network.worker(lease=LEASE, stop_patience=60.0 if is_asked_again else 0.5)
    task = await network.app["work"].enqueue(60.0)
    await network.until_begun([task])
    worker.ask_to_stop()
    await worker.until_told("stopping; 1 task still runs")
    if is_asked_again:
        worker.ask_to_stop()
    await worker.ended()
    assert worker.notes.endswith("stopped\n")
    found = await conn.fetchrow("select state, attempt, crashes from mainspring.task")
    assert tuple(found) == (TaskState.PENDING, 0, 0)


async def test_a_server_that_is_asked_again_stops_at_once(network: Network) -> None:
    """Its drain waits for an agent that does not answer, for some seconds."""
    server = await network.server(lease=LEASE)
    agent = await network.agent(server.told["url"])
    agent.freeze()
    server.ask_to_stop()
    await server.until_told("stopping")
    server.ask_to_stop()
    await server.ended()
    assert server.notes.endswith("stopping\nstopped at once\n")
