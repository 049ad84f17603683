"""ServerConnection: a dispatch counts only for the session that the agent has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.agent.commands import no_descriptors
from tests.conftest import eventually

from mainspring.agent import attempt as base
from mainspring.agent.agent import Agent
from mainspring.agent.attempt import Attempt
from mainspring.agent.connection.connection import ARMED_AT_ONCE, ServerConnection
from mainspring.model.messages import AgentMessage, Armed, Configure, Dispatch, Hello, ServerMessage, Welcome
from mainspring.model.tasks.jobs import Definition, Job, Python
from mainspring.wire.channel import Channel, memory_pair
from mainspring.wire.link import Link


class Executor(base.Executor):
    def __init__(self) -> None:
        self.began: list[int] = []

    def prepare(self, attempt: Attempt) -> None:
        return

    async def run(self, attempt: Attempt) -> str | None:
        self.began.append(attempt.armed.task)
        return None


class Bench:
    """An agent with one connection, and the server's end of it."""

    def __init__(self) -> None:
        ours, theirs = memory_pair()
        self.executor = Executor()
        self.agent = Agent(self._dial, hello=Hello("agent", 3, {}), executors={Python: self.executor})
        self.connection = ServerConnection(self.agent, ours)
        self.server: Link[ServerMessage, AgentMessage] = Link(theirs)

    async def _dial(self, _: str | None) -> Channel[AgentMessage, ServerMessage]:
        raise AssertionError("there is one connection only")

    async def dispatch(self, task: int, session: int) -> None:
        armed = Armed(task, task * 10, 1, 1, self.agent.clock.now(), "{}", None)
        await self.server.send([Dispatch([Job(1, "job", 1, 1, Definition(Python("job")))], [armed], session)])


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    running = asyncio.create_task(bench.connection.run())
    await bench.server.send([Welcome(session=7, lease=15.0, now=bench.agent.clock.now())])
    async with asyncio.timeout(20):
        await bench.agent.welcomed.wait()
    yield bench
    running.cancel()
    await asyncio.wait([running])
    bench.agent.runner.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan"), 1e18, -1.0])
async def test_times_that_make_no_sense_end_the_task_or_the_connection_and_never_the_agent(
    bench: Bench, bad: float
) -> None:
    job = Job(1, "job", 1, 1, Definition(Python("job")))
    armed = [Armed(1, 10, 1, 1, bad, "{}"), Armed(2, 20, 1, 1, 1.0, "{}", plan_time=bad), Armed(3, 30, 1, 1, 1.0, "{}")]
    await bench.server.send([Dispatch([job], armed, 7)])

    async def last() -> bool:
        return 3 in bench.executor.began

    await eventually(last)
    assert bench.executor.began == [3]
    timer = bench.agent.timers.at(bad, lambda _: None)  # as of a job with a grace that makes no sense
    bench.agent.timers.disarm(timer)
    for message in (Configure(bad, 1.0, 0.0), Configure(15.0, bad, 0.0), Welcome(session=7, lease=bad, now=1.0)):
        ours, theirs = memory_pair()
        connection = ServerConnection(bench.agent, ours)
        server: Link[ServerMessage, AgentMessage] = Link(theirs)
        running = asyncio.create_task(connection.run())
        await server.send([message])
        async with asyncio.timeout(20):
            await running  # closed, and raises nothing


async def test_an_agent_without_descriptors_keeps_its_session(bench: Bench) -> None:
    with no_descriptors():
        await bench.connection._beat()


async def test_a_dispatch_for_a_session_that_the_agent_has_given_up_runs_nothing(bench: Bench) -> None:
    """Frames that were under way while the lease ended are read after that."""

    async def began() -> list[int]:
        return bench.executor.began

    await bench.dispatch(1, session=7)
    await eventually(began)
    await bench.agent._lose_session()
    await bench.dispatch(2, session=7)
    bench.agent.session_began(8)
    await bench.dispatch(3, session=7)
    await bench.dispatch(4, session=8)

    async def last() -> bool:
        return 4 in bench.executor.began

    await eventually(last)
    assert bench.executor.began == [1, 4]


async def test_a_session_that_is_lost_while_a_large_dispatch_is_armed_gets_no_more_of_it(bench: Bench) -> None:
    """A dispatch is armed in slices, between which other parts of the agent run: here, the first of its tasks."""
    first = bench.executor.run

    async def lose(attempt: Attempt) -> str | None:
        await bench.agent._lose_session()
        return await first(attempt)

    bench.executor.run = lose  # type: ignore[method-assign]
    armed = [Armed(task, task * 10, 1, 1, 1.0, "{}") for task in range(1, 2 * ARMED_AT_ONCE)]
    await bench.server.send([Dispatch([Job(1, "job", 1, 1, Definition(Python("job")))], armed, 7)])

    async def began() -> bool:
        return bool(bench.executor.began)

    await eventually(began)
    await asyncio.sleep(0)
    assert bench.agent.session is None
    assert max(bench.executor.began) <= ARMED_AT_ONCE
    assert not bench.agent.runner.holdings()
