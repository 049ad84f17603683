"""The cluster as people see it: servers, the leader, segments with their load, how they changed hands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from tests.cluster import add_server, lead, note_move, own

from mainspring.errors import Conflict, NotFound
from mainspring.model.tasks.states import TaskState
from mainspring.store.cluster import cluster_views, leases
from mainspring.store.postgres.database import Connection

pytestmark = pytest.mark.usefixtures("no_servers")

MakeTask = Callable[..., Awaitable[int]]

HOURS_AGO = "mainspring.now() - interval '3 h'"


async def end_long_ago(conn: Connection, server: UUID) -> None:
    await conn.execute(
        f"""update mainspring.server
               set started_at = {HOURS_AGO}, heartbeat_at = {HOURS_AGO}, ended_at = {HOURS_AGO} where id = $1""",
        server,
    )


# ── servers ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_is_shown_with_what_it_owns_and_has_done(conn: Connection) -> None:
    figures: dict[str, Any] = {
        "scanned": 1,
        "planned": 2,
        "dispatched": 3,
        "recorded": 4,
        "scan_seconds": 0.5,
        "claim_seconds": 0.25,
        "agents": 2,
    }
    alpha = await add_server(conn, "alpha", host="a.example", url="ws://a.example:7070", **figures)
    await own(conn, alpha, [3, 1, 2])
    await conn.execute(
        """update mainspring.server set started_at = mainspring.now() - interval '1 h',
                  heartbeat_at = mainspring.now() - interval '2 s', scanned_at = mainspring.now() - interval '5 s'"""
    )
    [view] = await cluster_views.servers(conn)
    assert (view.id, view.name, view.status, view.host) == (alpha, "alpha", "active", "a.example")
    assert (view.segments, view.agents, view.leadership) == ([1, 2, 3], 2, None)
    assert (view.scanned, view.planned, view.dispatched, view.recorded, view.scan_seconds) == (1, 2, 3, 4, 0.5)
    assert view.claim_seconds == 0.25
    assert 2 <= view.heartbeat_age < 4
    assert view.scan_age is not None
    assert 5 <= view.scan_age < 7
    assert view.uptime == pytest.approx(3598, abs=1)
    assert msgspec.json.decode(msgspec.json.encode(view))["id"] == str(alpha)


@pytest.mark.parametrize("status", ["active", "draining"])
async def test_a_server_with_an_expired_lease_is_silent_and_has_no_agents(conn: Connection, status: str) -> None:
    await add_server(conn, "alpha", status=status, lease="-1 s", agents=3)
    [view] = await cluster_views.servers(conn)
    assert (view.status, view.agents) == ("silent", 0)


@pytest.mark.parametrize("status", ["stopped", "dead"])
async def test_a_server_that_ended_is_shown_for_an_hour_and_then_when_asked_for(conn: Connection, status: str) -> None:
    beta = await add_server(conn, "beta", lease="-2 h")
    ended = await add_server(conn, "alpha", status=status, lease="-1 s", ended_at=None)
    assert [view.status for view in await cluster_views.servers(conn)] == ["silent", status], (
        "those that are there first"
    )
    await end_long_ago(conn, ended)
    assert [view.id for view in await cluster_views.servers(conn)] == [beta], "nobody has declared it dead"
    assert [view.id for view in await cluster_views.servers(conn, everything=True)] == [beta, ended]


async def test_the_leader_is_marked_while_its_lease_holds(conn: Connection) -> None:
    alpha, beta = await add_server(conn, "alpha"), await add_server(conn, "beta")
    await lead(conn, beta, term=7)
    first, second = await cluster_views.servers(conn)
    assert first.leadership is None
    assert second.leadership is not None
    assert second.leadership.term == 7
    leader = (await cluster_views.summary(conn)).leader
    assert leader is not None
    assert (leader.id, leader.name, leader.term) == (beta, "beta", 7)
    await lead(conn, alpha, term=8, lease="-1 s")
    assert not any(view.leadership for view in await cluster_views.servers(conn))
    assert (await cluster_views.summary(conn)).leader is None


async def test_servers_are_counted_by_status(conn: Connection) -> None:
    assert await cluster_views.summary(conn) == cluster_views.Summary({}, None)
    await add_server(conn, "alpha")
    await add_server(conn, "beta")
    await add_server(conn, "gamma", status="draining")
    await add_server(conn, "delta", lease="-1 s")
    await add_server(conn, "omega", status="dead")
    assert (await cluster_views.summary(conn)).servers == {"active": 2, "draining": 1, "silent": 1}


# ── one of them ─────────────────────────────────────────────────────────────────────────────────


async def test_a_server_is_found_by_its_name_and_by_the_beginning_of_its_id(conn: Connection) -> None:
    alpha = await add_server(conn, "alpha", id=UUID("abcdef00-0000-4000-8000-000000000000"))
    await add_server(conn, "beta", id=UUID("abcd0000-0000-4000-8000-000000000000"))
    for given in ("alpha", "abcdef00", "ABCDEF", str(alpha)):
        assert (await cluster_views.server(conn, given)).server.id == alpha
    with pytest.raises(Conflict, match="'abcd' may be any of 2 servers; give the id of one: abcdef00, abcd0000"):
        await cluster_views.server(conn, "abcd")
    for given in ("abc", "gamma", "%", "abcdef00-%"):
        with pytest.raises(NotFound, match="mainspring servers --all"):
            await cluster_views.server(conn, given)


async def test_of_servers_with_one_name_the_running_one_is_meant(conn: Connection) -> None:
    old = await add_server(conn, "alpha", status="dead")
    last = await add_server(conn, "alpha", status="stopped")
    await end_long_ago(conn, old)
    assert (await cluster_views.server(conn, "alpha")).server.id == last
    silent = await add_server(conn, "alpha", lease="-1 s")
    assert (await cluster_views.server(conn, "alpha")).server.id == silent
    there = await add_server(conn, "alpha", status="draining")
    assert (await cluster_views.server(conn, "alpha")).server.id == there
    await add_server(conn, "alpha")
    with pytest.raises(Conflict):
        await cluster_views.server(conn, "alpha")


async def test_a_server_has_its_agents_and_the_pools_it_has_opened(conn: Connection) -> None:
    alpha, beta = await add_server(conn, "alpha"), await add_server(conn, "beta")
    pool = await conn.fetchval(
        """insert into mainspring.pool (requirements) values ('{"gpu": "a100", "@needs": {"memory_gb": 2}}')
           returning id"""
    )
    await conn.execute("insert into mainspring.shared_pool (server, pool) values ($1, $2)", alpha, pool)
    for name, server, lease in (("one", alpha, "1 min"), ("two", beta, "1 min"), ("gone", alpha, "-1 s")):
        await conn.execute(
            """insert into mainspring.agent (name, slots, lease_until, server)
               values ($1, 10, mainspring.now() + $2::text::interval, $3)""",
            name,
            lease,
            server,
        )
    found = await cluster_views.server(conn, "alpha")
    assert [(agent.name, agent.slots) for agent in found.agents] == [("one", 10)]
    [opened] = found.shared_pools
    assert (opened.pool, opened.requirements.labels) == (pool, {"gpu": "a100"})
    assert opened.requirements.placement.needs == {"memory_gb": 2.0}
    assert (await cluster_views.server(conn, "beta")).shared_pools == []


# ── segments ────────────────────────────────────────────────────────────────────────────────────


async def test_each_segment_has_its_owner_and_its_load(conn: Connection, make_task: MakeTask) -> None:
    alpha = await add_server(conn, "alpha")
    await own(conn, alpha, range(100))
    later = (await conn.fetchval("select mainspring.now()")) + timedelta(hours=1)
    await conn.execute("alter sequence mainspring.task_id restart with 142 increment by 100")
    await make_task(TaskState.PENDING)
    await make_task(TaskState.PENDING, run_at=later)
    await make_task(TaskState.BLOCKED)
    for state in (TaskState.ASSIGNED, TaskState.RUNNING, TaskState.RUNNING):
        await make_task(state)
    await conn.execute(
        """insert into mainspring.schedule (name, job_id, kind, expression, enabled, segment)
           select 'every ' || number, (select id from mainspring.job), 'every', '60', number < 3, 42
             from generate_series(1, 3) as number"""
    )
    found = await cluster_views.segments(conn)
    assert [view.id for view in found] == list(range(100))
    assert {(view.owner, view.owner_name, view.owner_status, view.epoch, view.problem) for view in found} == {
        (alpha, "alpha", "active", 1, None)
    }
    loaded = found[42]
    assert (loaded.schedules, loaded.due, loaded.waiting, loaded.armed, loaded.running) == (2, 1, 2, 1, 2)
    others = [view for view in found if view.id != 42]
    assert not any(view.schedules + view.due + view.waiting + view.armed + view.running for view in others)
    assert await leases.now(conn) - found[0].since.timestamp() < 3600


async def test_a_segment_without_an_active_owner_says_why(conn: Connection) -> None:
    async def problem(segment: int) -> str:
        return (await cluster_views.segments(conn))[segment].problem or ""

    gamma = await add_server(conn, "gamma", lease="-1 s")
    await own(conn, gamma, [1])
    for segment in (0, 1):
        assert (await problem(segment)).startswith("no server is active; start one with")
    alpha = await add_server(conn, "alpha")
    assert await problem(0) == "there is no leader to assign an owner; one is being elected"
    assert await problem(1) == "there is no leader to assign an owner; one is being elected"
    await lead(conn, alpha)
    assert await problem(0) == "the leader, alpha, has assigned no owner yet"
    assert await problem(1) == "the owner, gamma, is silent, and the leader, alpha, has assigned no other yet"
    await own(conn, alpha, [0])
    assert await problem(0) == ""


async def test_moves_are_listed_newest_first_with_the_names_that_are_known(conn: Connection) -> None:
    alpha, beta, forgotten = await add_server(conn, "alpha"), await add_server(conn, "beta"), uuid4()
    await note_move(conn, range(100), None, alpha, "free", term=1)
    await note_move(conn, [0, 1], alpha, beta, "balance", term=2)
    await note_move(conn, [5], forgotten, None, "released", term=0)
    last, before = await cluster_views.moves(conn, limit=2)
    assert (last.old_owner, last.old_name, last.new_owner, last.reason, last.term) == (
        forgotten,
        None,
        None,
        "released",
        0,
    )
    assert (before.segments, before.old_name, before.new_name, before.reason) == ([0, 1], "alpha", "beta", "balance")
    assert len(await cluster_views.moves(conn, limit=10)) == 3
