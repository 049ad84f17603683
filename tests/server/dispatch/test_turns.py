"""Which pool claims: priority holds over pools; within a priority the pool whose first task has waited longest is next.

A pool is a technical matter: two jobs that differ in one label are in two. So the order of starts must be that of one
queue, as far as the agents allow it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.server.dispatch.test_dispatcher import Agent, Server

from mainspring.model.messages import Armed, Hello
from mainspring.model.placement.placement import fits, requirements_of
from mainspring.model.tasks.jobs import Definition, Placement, Python
from mainspring.server.dispatch.dispatcher import Dispatcher
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.submission.submissions import Submission
from mainspring.store.tasks import claim_order, jobs

LOW, NORMAL, CRITICAL = "low", "normal", "critical"
DEFINITIONS = {
    "plain": Definition(Python("plain")),
    "gpu": Definition(Python("gpu"), requires={"gpu": "yes"}),
    "disk": Definition(Python("disk"), requires={"disk": "yes"}),
    "much": Definition(Python("much"), placement=Placement(needs={"memory": 4})),
    "little": Definition(Python("little"), placement=Placement(needs={"memory": 1})),
    "sticky": Definition(Python("sticky"), placement=Placement(sticky="shop")),
}
ABLE = {"gpu": "yes", "disk": "yes"}


@pytest.fixture
async def server(database: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr("mainspring.server.agents.session.HORIZON", 1e-9)  # an agent holds no more than it has slots
    await jobs.register(conn, DEFINITIONS)
    server = Server(database)
    await server.catalogue.refresh()
    yield server
    await server.close()


@pytest.fixture
async def join(server: Server) -> AsyncIterator[Callable[..., Any]]:
    joined: list[Agent] = []

    async def join(slots: int, name: str = "agent", **labels: str) -> Agent:
        joined.append(await Agent(server, name).join(slots, labels))
        return joined[-1]

    yield join
    for agent in joined:
        await agent.leave()


async def enqueue(conn: Connection, job: str, count: int, priority: str = NORMAL, age: float = 0.0) -> set[int]:
    """Tasks that have been due for `age` seconds, and a little more."""
    sql = """select mainspring.enqueue_many(
        $1, array_fill('{}'::jsonb, array[$2::int]), priority => $3,
        run_at => mainspring.now() - make_interval(secs => $4))"""
    return set(await conn.fetchval(sql, job, count, priority, age))


async def step(dispatcher: Dispatcher) -> int:
    """Steps until nothing more is claimed, as the loop does."""
    found = 0
    while size := await dispatcher.step():
        found += size
    return found


async def newly(agent: Agent, count: int) -> list[Armed]:
    """The next tasks that an agent is sent; it takes them off its list."""
    armed = list(await agent.holds(count))
    agent.armed.clear()
    return armed


def ids(armed: list[Armed]) -> set[int]:
    return {each.task for each in armed}


async def test_critical_tasks_do_not_wait_behind_the_backlog_of_another_pool(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(100, **ABLE)
    await enqueue(conn, "plain", 4000, LOW, age=10)
    assert await step(server.dispatcher) == 100
    running = await newly(agent, 100)
    assert {each.priority for each in running} == {2}, "by which the agent orders those that wait for a slot"
    critical = await enqueue(conn, "gpu", 300, CRITICAL)
    started: list[int] = []
    while len(started) < 300:
        done, running = running[:30], running[30:]
        await agent.finish(*done)
        size = await step(server.dispatcher)
        fresh = await newly(agent, size)
        started += [each.task for each in fresh]
        running += fresh
    assert set(started[:300]) == critical, "none of the low ones started before the last critical one"


async def test_a_critical_trickle_is_claimed_although_its_last_claim_was_full(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.server.dispatch.dispatcher.GATHER_ROOM", 0.0)
    agent = await join(100, **ABLE)
    await enqueue(conn, "plain", 1000, LOW, age=10)
    await step(server.dispatcher)
    running = await newly(agent, 100)
    for _ in range(5):
        critical = await enqueue(conn, "gpu", 2, CRITICAL)
        await agent.finish(running.pop())
        await step(server.dispatcher)
        [first] = await newly(agent, 1)
        await agent.finish(running.pop())
        await step(server.dispatcher)
        [second] = await newly(agent, 1)
        assert {first.task, second.task} == critical


async def test_one_freed_slot_of_many_is_used_although_a_backlog_waits_for_larger_batches(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(100)
    await enqueue(conn, "plain", 200)
    await step(server.dispatcher)
    running = await newly(agent, 100)
    await agent.finish(running[0])
    server.dispatcher.wake.clear()
    async with asyncio.timeout(10):
        while not (found := await server.dispatcher.step()):
            await server.dispatcher.wake.wait()  # no other slot is freed
            server.dispatcher.wake.clear()
    assert found == 1
    await newly(agent, 1)


async def test_pools_of_equal_priority_share_by_the_age_of_their_first_task(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(10, **ABLE)
    waves = [await enqueue(conn, job, 5, age=30 - n) for n, job in enumerate(["gpu", "disk", "plain"] * 4)]
    for older, newer in zip(waves[::2], waves[1::2], strict=True):
        assert await step(server.dispatcher) == 10
        armed = await newly(agent, 10)
        assert ids(armed) == older | newer
        await agent.finish(*armed)


async def test_under_a_steady_load_each_pool_gets_its_turn(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    """More of each comes than can run: whatever waits is older one day than all that comes."""
    agent = await join(4, **ABLE)
    wanted = await enqueue(conn, "disk", 1)
    for _ in range(20):
        await enqueue(conn, "plain", 5)
        await enqueue(conn, "gpu", 5)
        armed = await newly(agent, await step(server.dispatcher))
        await agent.finish(*armed)
        if ids(armed) & wanted:
            break
    else:
        pytest.fail("it never had its turn")


async def test_a_low_task_takes_no_place_that_a_normal_one_of_a_narrower_pool_needs(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    wide, narrow = await join(10, "one"), await join(10, "two", **ABLE)
    low = await enqueue(conn, "plain", 30, LOW, age=10)
    critical = await enqueue(conn, "plain", 1, CRITICAL)
    normal = await enqueue(conn, "gpu", 10)
    assert await step(server.dispatcher) == 20
    on_wide, on_narrow = ids(await newly(wide, 10)), ids(await newly(narrow, 10))
    assert critical <= on_wide | on_narrow
    assert len(on_narrow & normal) >= 9, "all but the place that the critical one may have taken"
    assert not on_narrow & low


async def test_tasks_that_wait_for_a_certain_agent_do_not_hold_up_other_pools(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    first, second = await join(5, "one"), await join(5, "two")
    sql = """select mainspring.enqueue_many('sticky', array_fill('{"shop": 1}'::jsonb, array[50]),
                                            run_at => mainspring.now() - interval '9 s')"""
    await conn.fetchval(sql)
    plain = await enqueue(conn, "plain", 5)
    assert await step(server.dispatcher) == 10
    assert plain in (ids(await newly(first, 5)), ids(await newly(second, 5)))


@pytest.mark.parametrize(("priority", "age"), [(CRITICAL, 0.0), (NORMAL, 20.0)])
async def test_a_task_that_needs_much_is_not_overtaken_by_those_that_need_little(
    conn: Connection, server: Server, priority: str, age: float
) -> None:
    agent = Agent(server)
    await agent.say_hello(Hello("agent", 10, {}, offers={"memory": 4.0}))
    await enqueue(conn, "little", 100, NORMAL, age=10)
    assert await step(server.dispatcher) == 4
    running = await newly(agent, 4)
    much = await enqueue(conn, "much", 1, priority, age)
    plain = await enqueue(conn, "plain", 1, LOW)
    server.dispatcher._floors.clear()
    started: set[int] = set()
    while running:
        await agent.finish(running.pop())
        started |= ids(await newly(agent, await step(server.dispatcher)))
    assert started == plain | much, "what needs no memory runs beside it; none of the little ones started"
    await agent.leave()


async def test_a_submission_takes_no_place_that_tasks_of_another_pool_wait_for(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(100, **ABLE)
    await enqueue(conn, "gpu", 200, CRITICAL)
    await step(server.dispatcher)
    await agent.finish((await newly(agent, 100))[0])
    assert await server.dispatcher.submit([Submission("plain", "{}")]) == [None]


async def test_with_work_in_one_pool_only_and_room_for_one_there_is_no_look_at_others(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def turns(*_: Any) -> Any:
        raise AssertionError("a statement more")

    await conn.execute("delete from mainspring.job where name = 'sticky'")
    await server.catalogue.refresh()
    server.catalogue.pools = {id: r for id, r in server.catalogue.pools.items() if r.placement.sticky is None}
    monkeypatch.setattr(claim_order, "turns", turns)
    await join(10)
    await enqueue(conn, "plain", 3)
    assert await step(server.dispatcher) == 3


@pytest.mark.parametrize("seed", range(12))
async def test_no_task_waits_while_a_less_important_one_starts_in_its_place(
    conn: Connection, server: Server, join: Callable[..., Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The invariant, over random pools, agents, arrivals and endings."""
    monkeypatch.setattr("mainspring.server.dispatch.dispatcher.GATHER_ROOM", 0.0)
    chance = random.Random(seed)
    agents = [
        await join(chance.randint(1, 12), str(number), **{k: v for k, v in ABLE.items() if chance.random() < 0.7})
        for number in range(chance.randint(1, 3))
    ]
    labels = {agent.session: server.gateway.sessions[agent.session].labels for agent in agents}
    running: dict[Agent, list[Armed]] = {agent: [] for agent in agents}
    for _ in range(12):
        for _ in range(chance.randint(0, 3)):
            job, priority = chance.choice(["plain", "gpu", "disk"]), chance.choice([LOW, NORMAL, CRITICAL])
            await enqueue(conn, job, chance.randint(1, 15), priority, age=chance.random() * 60)
        server.dispatcher._floors.clear()  # what comes late and old is another test's matter
        size = await step(server.dispatcher)
        if size:
            await conn.fetchval("select 1")
        fresh: dict[Agent, list[Armed]] = {agent: [] for agent in agents}
        while sum(map(len, fresh.values())) < size:
            for agent in agents:
                fresh[agent] += await newly(agent, 0)
            await conn.fetchval("select 1")
        waiting = await conn.fetch("""
            select j.name, t.priority from mainspring.task t join mainspring.job j on j.id = t.job_id
             where t.state = 1""")
        rank = {row["id"]: row["priority"] for row in await conn.fetch("select id, priority from mainspring.task")}
        for agent, started in fresh.items():
            could = [w for w in waiting if fits(requirements_of(DEFINITIONS[w["name"]]), labels[agent.session], {})]
            best = max((w["priority"] for w in could), default=-1)
            assert all(rank[each.task] >= best for each in started), "a more important one was left behind"
            running[agent] += started
            chance.shuffle(running[agent])
            over = running[agent][: chance.randint(0, len(running[agent]))]
            del running[agent][: len(over)]
            if over:
                await agent.finish(*over)
