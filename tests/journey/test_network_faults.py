"""Whole stories over the network: agents and servers that are killed, frozen, cut off and lied to.

What must hold in the end is the same each time: tests/journey/invariants.py.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainspring.store.postgres.database import Connection
from tests.conftest import eventually
from tests.journey import invariants
from tests.journey.network import Network, open_network


@pytest.fixture
async def network(dsn: str, tmp_path: Path) -> AsyncIterator[Network]:
    async with open_network(dsn, tmp_path) as network:
        yield network


async def until_lost(conn: Connection, name: str) -> None:
    """The lease of this agent's session is over."""

    async def lost() -> bool:
        living = "select exists (select from mainspring.agent where name = $1 and lease_until > mainspring.now())"
        return not await conn.fetchval(living, name)

    await eventually(lost, timeout=30)


# ── processes that die or freeze ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("job", ["work", "load", "command"])
async def test_what_a_killed_agent_had_runs_again_on_another(network: Network, conn: Connection, job: str) -> None:
    server = await network.server()
    first = await network.agent(server.told["url"])
    args = () if job == "command" else (2.0,)
    tasks = await network.app[job].enqueue_many([args] * 5)
    await network.until_begun(tasks)

    async def are_known_to_run() -> bool:
        """Else the kill costs no attempt: nobody has heard that they began."""
        return bool(await conn.fetchval("select count(*) = $1 from mainspring.task where state = 3", len(tasks)))

    await eventually(are_known_to_run)
    await first.kill()  # at once: another one takes a while to start, and the tasks would end
    await network.agent(server.told["url"])
    await network.until_ended(tasks)
    await network.check(conn, tasks)
    assert {(task.attempt, task.state.label) for task in await invariants.ended(conn)} == {(2, "succeeded")}


async def test_an_at_most_once_task_of_a_killed_agent_is_lost_and_does_not_run_again(
    network: Network, conn: Connection
) -> None:
    server = await network.server()
    first = await network.agent(server.told["url"])
    tasks = await network.app["launch"].enqueue_many([(2.0,)] * 3)
    await network.until_begun(tasks)
    await first.kill()  # at once: what the agent had to report may not have been sent
    await network.agent(server.told["url"])
    await network.until_ended(tasks)
    await network.check(conn, tasks, at_most_once=tasks)
    assert {task.state.label for task in await invariants.ended(conn)} == {"lost"}


@pytest.mark.parametrize("job", ["work", "load", "command"])
async def test_an_agent_that_was_frozen_past_its_lease_changes_nothing_when_it_wakes(
    network: Network, conn: Connection, job: str
) -> None:
    server = await network.server()
    frozen = await network.agent(server.told["url"], name="frozen")
    args = () if job == "command" else (1.0,)
    tasks = await network.app[job].enqueue_many([args] * 5)
    await network.until_begun(tasks)
    frozen.freeze()
    await network.agent(server.told["url"])
    await until_lost(conn, "frozen")
    await network.until_ended(tasks)
    before = await invariants.snapshot(conn)
    frozen.thaw()
    await network.until_ended([after := await network.app["work"].enqueue()])
    await frozen.stop()
    assert (await invariants.snapshot(conn))[: len(before)] == before
    await network.check(conn, [*tasks, after])


async def test_a_handler_that_wakes_beyond_its_lease_takes_no_step(network: Network, conn: Connection) -> None:
    """Also while the next attempt runs already."""
    server = await network.server()
    frozen = await network.agent(server.told["url"], name="frozen")
    tasks = await network.app["work"].enqueue_many([(5.0,)] * 5)  # far from its end when it is frozen
    await network.until_begun(tasks)
    frozen.freeze()
    frozen_at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    await network.agent(server.told["url"])
    await until_lost(conn, "frozen")

    async def elsewhere() -> bool:
        return {task.id for task in tasks} <= {line.task for line in network.ledger() if line.pid != frozen.pid}

    await eventually(elsewhere, timeout=60)
    frozen.thaw()
    await network.until_ended(tasks)
    await frozen.stop()
    late = [line for line in network.ledger() if line.pid == frozen.pid and line.at > frozen_at]
    assert late == [], [(line.at - frozen_at) / 1e9 for line in late]  # seconds after it was frozen
    await network.check(conn, tasks)


async def test_agents_of_a_killed_server_go_on_with_another_and_no_attempt_is_lost(
    network: Network, conn: Connection
) -> None:
    first, second = await network.server(), await network.server()
    for _ in range(3):
        await network.agent(first.told["url"], second.told["url"])
    tasks = await network.app["work"].enqueue_many([(4.0,)] * 6)
    commands = await network.app["command"].enqueue_many([()] * 3)
    await network.until_begun([*tasks, *commands])
    await first.kill()
    later = await network.app["work"].enqueue_many([(0.1,)] * 20)
    everything = [*tasks, *commands, *later]
    await network.until_ended(everything)
    await network.check(conn, everything)
    assert {task.attempt for task in await invariants.ended(conn)} == {1}, "what ran has gone on"


# ── the network between them ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("way", "job"), [("up", "work"), ("down", "command")])
async def test_a_one_way_partition_past_the_lease_ends_attempts_before_others_begin(
    network: Network, conn: Connection, way: str, job: str
) -> None:
    server = await network.server()
    proxy = await network.proxy(server)
    cut_off = await network.agent(proxy.url, name="cut-off")
    tasks = await network.app[job].enqueue_many([(8.0,) if job == "work" else ()] * 3)
    once = await network.app["launch"].enqueue_many([(8.0,)] * 2)
    await network.until_begun([*tasks, *once])
    await network.agent(server.told["url"])
    getattr(proxy, way).drop = 1.0
    await network.until_ended([*tasks, *once])
    proxy.heal()
    await network.until_ended([after := await network.app["work"].enqueue()])
    await cut_off.stop()
    await network.check(conn, [*tasks, *once, after], at_most_once=once)


async def test_a_short_partition_costs_no_attempt(network: Network, conn: Connection) -> None:
    server = await network.server(lease=15.0)
    proxy = await network.proxy(server)
    await network.agent(proxy.url)
    tasks = await network.app["work"].enqueue_many([(1.0,)] * 10)
    await network.until_begun(tasks)
    proxy.partition()

    async def all_had_their_effect() -> bool:
        return sum(line.event == "effect" for line in network.ledger()) == len(tasks)

    await eventually(all_had_their_effect, timeout=30)
    proxy.heal()
    await proxy.cut()
    await network.until_ended(tasks)
    await network.check(conn, tasks)
    assert {task.attempt for task in await invariants.ended(conn)} == {1}, "the agent kept its reports"


async def test_repeated_reordered_and_lost_messages_change_nothing(network: Network, conn: Connection) -> None:
    server = await network.server()
    proxy = await network.proxy(server)
    await network.agent(proxy.url)
    for way in (proxy.up, proxy.down):
        way.duplicate, way.reorder, way.drop = 0.3, 0.2, 0.1
    tasks = await network.app["work"].enqueue_many([(0.1,)] * 200)
    once = await network.app["launch"].enqueue_many([(0.1,)] * 20)

    async def much_has_passed() -> bool:
        return proxy.up.dropped > 3 and proxy.down.dropped > 0 and len(network.ledger()) > 400

    await eventually(much_has_passed, timeout=90)
    proxy.heal()
    await network.until_ended([*tasks, *once])
    await network.check(conn, [*tasks, *once], at_most_once=once)


async def test_two_seconds_of_delay_are_no_death(network: Network, conn: Connection) -> None:
    server = await network.server(lease=15.0)
    proxy = await network.proxy(server)
    await network.agent(proxy.url)
    proxy.up.delay = proxy.down.delay = 2.0
    tasks = await network.app["work"].enqueue_many([(6.0,)] * 5)
    await network.until_ended(tasks)
    await network.check(conn, tasks)
    assert {task.attempt for task in await invariants.ended(conn)} == {1}


async def test_old_dispatches_and_reports_that_are_played_again_run_nothing(network: Network, conn: Connection) -> None:
    server = await network.server()
    proxy = await network.proxy(server)
    await network.agent(proxy.url)
    proxy.up.recording = proxy.down.recording = True
    tasks = await network.app["work"].enqueue_many([(0.1,)] * 10)
    await network.until_ended(tasks)
    proxy.up.recording = proxy.down.recording = False
    before, lines = await invariants.snapshot(conn), network.ledger()
    await proxy.replay(proxy.down, proxy.down.recorded)
    await proxy.replay(proxy.up, proxy.up.recorded)
    after = await network.app["work"].enqueue()
    await network.until_ended([after])
    assert [line for line in network.ledger() if line.task != after.id] == lines
    assert (await invariants.snapshot(conn))[:-1] == before
    await network.check(conn, [*tasks, after])


# ── time ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("offset", [30, -30])
async def test_an_agent_whose_clock_is_wrong_fires_on_the_databases_time(
    network: Network, conn: Connection, offset: int
) -> None:
    server = await network.server()
    await network.agent(server.told["url"], clock_offset=offset)
    instant = datetime.now(UTC) + timedelta(seconds=3)
    tasks = [await network.app["stamp"].using(run_at=instant).enqueue() for _ in range(5)]
    await network.until_ended(tasks)
    late = [await task.result() - instant.timestamp() for task in tasks]
    assert all(-0.05 < each < 10 for each in late), "not half a minute before or after"
    await network.check(conn, tasks)


async def test_a_fire_inside_the_lead_needs_neither_server_nor_network(network: Network, conn: Connection) -> None:
    server = await network.server(lease=15.0)
    proxy = await network.proxy(server)
    await network.agent(proxy.url)
    proxy.down.recording = True
    instant = datetime.now(UTC) + timedelta(seconds=4)
    tasks = await network.app["stamp"].using(run_at=instant).enqueue_many([()] * 5)

    async def armed() -> bool:
        held = await conn.fetchval("select count(*) from mainspring.task where state = 2")
        return held == len(tasks) and any("dispatch" in str(message) for message in proxy.down.recorded)

    await eventually(armed)
    proxy.partition()
    server.freeze()
    try:
        await network.until_begun(tasks)
    finally:
        server.thaw()
    proxy.heal()
    await network.until_ended(tasks)
    await network.check(conn, tasks)
