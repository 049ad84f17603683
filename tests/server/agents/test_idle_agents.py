"""Agents that end when they are idle: never with a task, and a task that comes at that moment is not lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.server.agents.test_network import Eventually, Shop, agent, server, token

from mainspring.agent.run.runner import Runner
from mainspring.compose.network import RemoteAgent
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import tasks


async def test_an_agent_ends_after_it_has_held_nothing_for_a_while(
    shop: Shop, database: Database, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    secret = await token(conn)
    async with server(shop, database, dsn) as url, agent(shop, dsn, url, secret, exit_when_idle=1.0) as remote:
        ends = asyncio.create_task(remote.until(asyncio.Event()))
        task = await shop.hold.enqueue()
        async with asyncio.timeout(20):
            await eventually(lambda: _holds(remote))
        idle = asyncio.create_task(remote.agent.idle(0.01))
        done, _ = await asyncio.wait([ends, idle], timeout=1.5)
        assert not done, "it runs a task"
        idle.cancel()
        shop.gate.set()
        assert await task.result(timeout=20) == 1
        await asyncio.wait_for(ends, 20)
        assert remote.agent.runner.draining
    assert await conn.fetchval("select ended_at is not null from mainspring.agent")


async def _holds(remote: RemoteAgent) -> bool:
    return not remote.agent.runner.empty.is_set()


async def test_a_task_that_is_dispatched_as_the_agent_ends_runs_on_another(
    shop: Shop, database: Database, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatch arrives between the step that finds the agent idle and the message that it takes no more."""
    shop.gate.set()
    submitted: list[asyncio.Task[Any]] = []
    drain, arrived = Runner.drain, asyncio.Event()
    arm = Runner.arm

    def ending(runner: Runner) -> None:
        drain(runner)
        if runner.agent == "first" and not submitted:
            submitted.append(asyncio.create_task(shop.hold.enqueue()))

    def armed(runner: Runner, *given: Any) -> None:
        arm(runner, *given)
        if runner.agent == "first":
            arrived.set()

    monkeypatch.setattr(Runner, "drain", ending)
    monkeypatch.setattr(Runner, "arm", armed)
    secret = await token(conn)
    async with server(shop, database, dsn) as url:
        async with agent(shop, dsn, url, secret, agent_name="first", exit_when_idle=1.0) as remote:
            await asyncio.wait_for(remote.until(asyncio.Event()), 20)
            await asyncio.wait_for(arrived.wait(), 20)
            assert remote.agent.runner.empty.is_set(), "it was refused"
        task = await submitted[0]
        async with agent(shop, dsn, url, secret, agent_name="second"):
            assert await task.result(timeout=20) == 1, "the refusal costs no attempt"
    [attempt] = await tasks.attempts(conn, task.id)
    assert attempt.agent == "second"


async def test_an_agent_without_a_server_is_not_idle(
    shop: Shop, database: Database, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    secret = await token(conn)
    async with server(shop, database, dsn) as url, agent(shop, dsn, url, secret) as remote:
        remote.agent.welcomed.clear()
        idle = asyncio.create_task(remote.agent.idle(0.01))
        done, _ = await asyncio.wait([idle], timeout=0.3)
        assert not done, "it cannot know whether there is work"
        remote.agent.welcomed.set()
        await asyncio.wait_for(idle, 20)
