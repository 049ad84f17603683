"""AgentPlacement, amounts and draining: which agent gets which task. The tests play the agents."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.cluster import server_lease
from tests.server.dispatch.played import PlayedAgent

from mainspring.model.limits.limits import Limits
from mainspring.model.messages import (
    Armed,
    AttemptId,
    Heartbeat,
    Hello,
    Recall,
    Refused,
    ServerMessage,
)
from mainspring.model.placement.placement import Requirements
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.tasks.jobs import Definition, Placement, Python
from mainspring.server.agents import registry as registry_module
from mainspring.server.agents.connection import AgentConnections
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.registry import Registry
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.dispatch import dispatcher as dispatcher_module
from mainspring.server.dispatch.daemons import DaemonsLoop
from mainspring.server.dispatch.dispatcher import Dispatcher
from mainspring.server.dispatch.placement import DEFERENCE
from mainspring.server.recording.recorder import Recorder
from mainspring.store.cluster import registry, settings
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules
from mainspring.store.submission.submissions import Submission
from mainspring.store.tasks import claims, jobs
from mainspring.wire.clock import Clock, boottime

Join = Callable[..., Awaitable["Agent"]]


class Server:
    def __init__(self, database: Database) -> None:
        self.clock = Clock()
        self.catalogue = Catalogue(database)
        self.recorder = Recorder(database, self.catalogue)
        self.gateway = Gateway(database, self.catalogue, self.recorder, self.clock, 60.0)
        self.agent_connections = AgentConnections(
            database, server_lease(), self.gateway, self.recorder, self.clock, 60.0
        )
        self.registry = Registry(database, self.catalogue, self.gateway)
        self.dispatcher = Dispatcher(
            database, server_lease(), self.catalogue, self.gateway, self.recorder, self.registry, self.clock
        )
        self.daemons = DaemonsLoop(database, self.catalogue, self.gateway)

    async def step(self) -> int:
        """All claims that there are to make."""
        claimed = 0
        while found := await self.dispatcher.step():
            claimed += found
        return claimed

    async def close(self) -> None:
        await self.gateway.close()


class Agent(PlayedAgent):
    """Gives back what it is asked for, and ends what the test says."""

    def __init__(self, server: Server, name: str) -> None:
        super().__init__(server, name)
        self.running: set[int] = set()  # tasks it does not give back
        self.recalls = 0

    async def join(self, slots: int, labels: dict[str, str], offers: dict[str, float]) -> Agent:
        await self.say_hello(Hello(self.name, slots, labels, offers=offers))
        return self

    async def heard(self, message: ServerMessage) -> None:
        if isinstance(message, Recall):
            self.recalls += 1
            back = [held for held in message.attempts if held.task not in self.running]
            await self._link.send([Refused(back, "recalled")])
            self.armed = [a for a in self.armed if AttemptId(a.task, a.token) not in back]

    async def has(self, count: int) -> list[Armed]:
        """What it was sent, once there are so many, and no more."""
        assert len(await self.holds(count)) == count
        return self.armed


@pytest.fixture
async def server(database: Database) -> AsyncIterator[Server]:
    server = Server(database)
    yield server
    await server.close()


@pytest.fixture
async def join(server: Server) -> AsyncIterator[Join]:
    joined: list[Agent] = []

    async def join(name: str, slots: int = 10, offers: dict[str, float] | None = None, **labels: str) -> Agent:
        joined.append(await Agent(server, name).join(slots, labels, offers or {}))
        return joined[-1]

    yield join
    for agent in joined:
        if not agent.serving.done():
            await agent.leave()


async def define(conn: Connection, server: Server, **placement: Any) -> int:
    """The job `job` with this placement; returns its pool."""
    requires = placement.pop("requires", {})
    await jobs.register(conn, {"job": Definition(Python("job"), requires=requires, placement=Placement(**placement))})
    await server.catalogue.refresh()
    return int(await conn.fetchval("select pool from mainspring.job where name = 'job'"))


async def enqueue(conn: Connection, count: int, *, due: str = "0", **args: Any) -> list[int]:
    ids: list[int] = await conn.fetchval(
        "select mainspring.enqueue_many('job', array_fill($1::jsonb, array[$2::int]), delay => $3::text::interval)",
        json.dumps(args),
        count,
        due,
    )
    return ids


async def other_server(conn: Connection, name: str, **labels: str) -> int:
    """An agent that is connected elsewhere; returns its session."""
    session: int = await conn.fetchval(
        """insert into mainspring.agent (name, slots, labels, lease_until)
           values ($1, 10, $2, mainspring.now() + interval '1 hour') returning session""",
        name,
        json.dumps(labels),
    )
    return session


async def make_overdue(conn: Connection) -> None:
    await conn.execute("update mainspring.task set run_at = run_at - $1 * interval '1 second'", DEFERENCE + 1)


# ── chunks ──────────────────────────────────────────────────────────────────────────────────────


async def define_chunk(conn: Connection, server: Server, size: int, **more: Any) -> None:
    await jobs.register(conn, {"job": Definition(Python("job", chunk=size), **more)})
    await jobs.register(conn, {"plain": Definition(Python("plain"))})
    await server.catalogue.refresh()


async def enqueue_plain(conn: Connection, count: int) -> None:
    await conn.execute("select mainspring.enqueue_many('plain', array_fill('{}'::jsonb, array[$1::int]))", count)


async def test_the_tasks_of_a_chunk_take_one_slot(conn: Connection, server: Server, join: Join) -> None:
    await define_chunk(conn, server, 100)
    agent = await join("agent", slots=3)
    await enqueue(conn, 500)
    assert await server.step() == 300
    await agent.has(300)
    session = server.gateway.sessions[agent.session]
    assert session.used(server.clock.now()) == 3
    assert session.load == 1.0


async def test_a_chunk_that_is_not_full_takes_a_slot_and_leaves_the_others(
    conn: Connection, server: Server, join: Join
) -> None:
    await define_chunk(conn, server, 100)
    agent = await join("agent", slots=3)
    await enqueue(conn, 101)
    assert await server.step() == 101
    await enqueue_plain(conn, 5)
    assert await server.step() == 1, "two of the three slots are for 101 tasks"
    await agent.has(102)


async def test_plain_tasks_leave_the_free_slots_to_chunks(conn: Connection, server: Server, join: Join) -> None:
    await define_chunk(conn, server, 10)
    agent = await join("agent", slots=3)
    await enqueue_plain(conn, 2)
    assert await server.step() == 2
    await enqueue(conn, 50)
    assert await server.step() == 10
    await agent.has(12)


async def test_slots_are_free_again_when_the_tasks_of_a_chunk_have_ended(
    conn: Connection, server: Server, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.server.agents.session.HORIZON", 1e-9)  # the window does not grow with the rate
    await define_chunk(conn, server, 10)
    agent = await join("agent", slots=1)
    await enqueue(conn, 25)
    assert await server.step() == 10
    await agent.finish(*(await agent.has(10))[:4])
    assert await server.step() == 0, "six of them may still run, in that slot"
    await agent.finish(*agent.armed)
    assert await server.step() == 10
    assert server.gateway.sessions[agent.session].used(server.clock.now()) == 1


async def test_chunks_that_are_armed_ahead_take_no_slot_yet(conn: Connection, server: Server, join: Join) -> None:
    await define_chunk(conn, server, 10)
    agent = await join("agent", slots=2)
    await enqueue(conn, 100, due="3s")
    assert await server.step() == 100
    session = server.gateway.sessions[agent.session]
    assert session.used(server.clock.now()) == 0
    await enqueue_plain(conn, 5)
    assert await server.step() == 2
    server.clock.offset += 10
    assert session.used(server.clock.now()) == 12


async def test_each_agent_gets_whole_chunks(conn: Connection, server: Server, join: Join) -> None:
    await define_chunk(conn, server, 10)
    first, second = await join("a"), await join("b")
    await enqueue(conn, 25)
    assert await server.step() == 25
    assert sorted([len(first.armed), len(second.armed)]) == [10, 15]


async def test_amounts_are_counted_for_each_task_of_a_chunk(conn: Connection, server: Server, join: Join) -> None:
    await define_chunk(conn, server, 10, placement=Placement(needs={"gpu": 1.0}))
    agent = await join("agent", offers={"gpu": 4.0})
    await enqueue(conn, 25)
    assert await server.step() == 4
    await agent.has(4)


async def test_tasks_of_a_chunk_are_claimed_at_their_birth(conn: Connection, server: Server, join: Join) -> None:
    await define_chunk(conn, server, 10)
    agent = await join("agent", slots=2)
    ids = await server.dispatcher.submit([Submission("job", "{}")] * 25)
    assert None not in ids
    await agent.has(20)
    assert server.gateway.sessions[agent.session].used(server.clock.now()) == 2


# ── strategies ──────────────────────────────────────────────────────────────────────────────────


async def test_tasks_that_come_one_by_one_go_round(conn: Connection, server: Server, join: Join) -> None:
    await define(conn, server)
    agents = [await join(name) for name in "abc"]
    for _ in range(6):
        await enqueue(conn, 1)
        assert await server.step() == 1
    assert [len(agent.armed) for agent in agents] == [2, 2, 2]


async def test_tasks_that_are_born_assigned_go_round_too(conn: Connection, server: Server, join: Join) -> None:
    await define(conn, server)
    agents = [await join(name) for name in "ab"]
    for _ in range(4):
        assert await server.dispatcher.submit([Submission("job", "{}")]) != [None]
    for agent in agents:
        await agent.has(2)


async def test_the_strategy_of_a_job_decides(conn: Connection, server: Server, join: Join) -> None:
    busy, idle = await join("busy"), await join("idle")
    server.gateway.sessions[busy.session].held.update(dict.fromkeys(range(-5, 0), 1))
    await define(conn, server, strategy="least_tasks")
    await enqueue(conn, 5)
    assert await server.step() == 5
    await idle.has(5)


async def test_the_strategy_of_the_whole_changes_without_a_restart(
    conn: Connection, server: Server, join: Join
) -> None:
    await define(conn, server)
    special, plain = await join("special", gpu="a100"), await join("plain")
    await settings.put(conn, "placement", "capability")
    await server.catalogue.refresh()
    await enqueue(conn, 4)
    assert await server.step() == 4
    await plain.has(4)
    assert special.armed == []


async def test_resources_follow_the_heartbeats(conn: Connection, server: Server, join: Join) -> None:
    await define(conn, server, strategy="resources")
    hot, cool = await join("hot"), await join("cool")
    server.gateway.sessions[hot.session].heartbeat = Heartbeat(0, cpu=0.95)
    await enqueue(conn, 5)
    await server.step()
    await cool.has(5)
    assert hot.armed == []


# ── amounts ─────────────────────────────────────────────────────────────────────────────────────


async def test_no_more_is_claimed_than_there_are_amounts_for(conn: Connection, server: Server, join: Join) -> None:
    await define(conn, server, needs={"gpu": 1.0})
    plain, able = await join("plain"), await join("able", offers={"gpu": 2.0})
    await enqueue(conn, 5)
    assert await server.step() == 2
    first, _ = await able.has(2)
    assert plain.armed == []
    await able.finish(first)
    assert await server.step() == 1, "what has ended gives its amount back"
    await able.has(3)
    assert await server.step() == 0


async def test_amounts_are_given_back_by_what_is_refused(conn: Connection, server: Server, join: Join) -> None:
    await define(conn, server, needs={"gpu": 2.0})
    able = await join("able", offers={"gpu": 2.0})
    await enqueue(conn, 1)
    assert await server.step() == 1
    [armed] = await able.has(1)
    session = server.gateway.sessions[able.session]
    assert session.amounts.free == {"gpu": 0.0}
    server.gateway._recorded([], [AttemptId(armed.task, armed.token)])
    assert session.amounts.free == {"gpu": 2.0}
    assert session.amounts.in_use == {}


async def test_what_is_armed_ahead_keeps_its_amount_until_it_has_ended(
    conn: Connection, server: Server, join: Join
) -> None:
    await define(conn, server, needs={"gpu": 1.0})
    able = await join("able", offers={"gpu": 1.0})
    await enqueue(conn, 2, due="4 s")
    assert await server.step() == 1
    await enqueue(conn, 1)
    assert await server.step() == 0, "or two would have it when the time comes"
    assert len(able.armed) == 1


async def test_jobs_that_need_different_amounts_share_what_there_is(
    conn: Connection, server: Server, join: Join
) -> None:
    await define(conn, server, needs={"memory_gb": 6.0})
    await jobs.register(conn, {"small": Definition(Python("x"), placement=Placement(needs={"memory_gb": 3.0}))})
    await server.catalogue.refresh()
    able = await join("able", offers={"memory_gb": 10.0})
    await enqueue(conn, 3)
    await conn.execute("select mainspring.enqueue_many('small', array_fill('{}'::jsonb, array[3]))")
    assert await server.step() == 2
    await able.has(2)
    assert server.gateway.sessions[able.session].amounts.free == {"memory_gb": 1.0}


async def test_a_task_that_needs_amounts_is_not_born_assigned(conn: Connection, server: Server, join: Join) -> None:
    """Two that are claimed at the same time could take the same amount."""
    await define(conn, server, needs={"gpu": 1.0})
    await join("able", offers={"gpu": 1.0})
    assert await server.dispatcher.submit([Submission("job", "{}")]) == [None]


async def settled(daemons_loop: DaemonsLoop) -> int:
    """Let it place what it can; returns how many replicas it has made and placed."""
    seen = 0
    while found := await daemons_loop.step():
        seen += found
    return seen


async def daemon(conn: Connection, server: Server, name: str, replicas: int, needs: dict[str, float]) -> None:
    await jobs.register(conn, {name: Definition(Python(name), placement=Placement(needs=needs))})
    await schedules.create(conn, define_schedule(name, name, {"daemon": replicas}), enabled=True)
    await server.catalogue.refresh()


async def test_a_replica_takes_no_amount_that_another_has_though_the_agent_has_room_for_others(
    conn: Connection, server: Server, join: Join
) -> None:
    able = await join("able", offers={"gpu": 1.0})
    await daemon(conn, server, "needy", 3, {"gpu": 1.0})
    assert await settled(server.daemons) == 3 + 1
    await daemon(conn, server, "modest", 2, {})
    assert await settled(server.daemons) == 2 + 2
    await able.has(3)
    assert server.gateway.sessions[able.session].amounts.free == {"gpu": 0.0}


async def test_a_replica_and_a_task_that_are_claimed_at_once_do_not_take_the_same_amount(
    conn: Connection, server: Server, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    await define(conn, server, needs={"gpu": 1.0})
    able = await join("able", offers={"gpu": 1.0})
    await daemon(conn, server, "needy", 1, {"gpu": 1.0})
    await enqueue(conn, 1)
    keeping: list[asyncio.Task[int]] = []
    claim = claims.claim

    async def claim_slowly(*given: Any, **options: Any) -> Any:
        keeping.append(asyncio.create_task(server.daemons.step()))
        await asyncio.wait(keeping, timeout=0.2)
        return await claim(*given, **options)

    monkeypatch.setattr(claims, "claim", claim_slowly)
    await server.dispatcher.step()
    await asyncio.gather(*keeping)
    await able.has(1)
    assert server.gateway.sessions[able.session].amounts.free == {"gpu": 0.0}


# ── preference ──────────────────────────────────────────────────────────────────────────────────


async def test_others_take_tasks_only_when_the_preferred_are_full(conn: Connection, server: Server, join: Join) -> None:
    await define(conn, server, prefer={"zone": "b"})
    other, preferred = await join("other", zone="a"), await join("preferred", 3, zone="b")
    await enqueue(conn, 2)
    await server.step()
    assert (len(other.armed), len(await preferred.has(2))) == (0, 2)
    await enqueue(conn, 4)
    await server.step()
    assert (len(await other.has(3)), len(await preferred.has(3))) == (3, 3)


async def test_a_task_is_left_for_a_moment_to_a_preferred_agent_of_another_server(
    conn: Connection, server: Server, join: Join
) -> None:
    await define(conn, server, prefer={"zone": "b"})
    other = await join("other", zone="a")
    await other_server(conn, "preferred", zone="b")
    await server.registry.refresh()
    await enqueue(conn, 2)
    await enqueue(conn, 2, due="4 s")
    assert await server.step() == 0
    await make_overdue(conn)
    assert await server.step() == 2, "it has not come for them; the others are not due"
    await other.has(2)


async def test_the_longest_lead_is_that_of_the_agents_that_fit(conn: Connection, server: Server) -> None:
    definition = Definition(Python("job"), requires={"zone": "b"}, gate=Limits(max_running=1))
    await jobs.register(conn, {"job": definition})
    await server.catalogue.refresh()
    gate, target = await conn.fetchrow("select id, target from mainspring.pool where target is not null")
    requirements = server.catalogue.pools[target]
    assert server.registry.longest_lead() == 5.0, "of no agent"
    for name, zone, lead in (("quick", "a", 6.0), ("slow", "a", 25.0), ("near", "b", 7.0), ("new", "b", None)):
        session = await other_server(conn, name, zone=zone)
        await conn.execute("update mainspring.agent set lead = $2 where session = $1", session, lead)
    await server.registry.refresh()
    assert server.registry.longest_lead() == 25.0
    assert server.registry.longest_lead([requirements]) == server.registry.lead_behind(gate) == 7.0


# ── a sticky argument ───────────────────────────────────────────────────────────────────────────


async def keys_of(agents: list[Agent]) -> dict[str, str]:
    """Which agent got each customer."""
    found: dict[str, str] = {}
    for agent in agents:
        for armed in agent.armed:
            customer = json.loads(armed.args)["customer"]
            assert found.setdefault(customer, agent.name) == agent.name, "one customer, one agent"
    return found


async def submit_for(conn: Connection, customers: range, times: int = 1) -> None:
    for _ in range(times):
        await conn.execute(
            """select mainspring.enqueue_many('job',
                   array(select jsonb_build_object('customer', 'c' || n) from unnest($1::int[]) n))""",
            list(customers),
        )


async def until_sent(agents: list[Agent], count: int) -> None:
    async with asyncio.timeout(20):
        while sum(len(agent.armed) for agent in agents) < count:
            await asyncio.sleep(0)


async def test_equal_values_go_to_the_same_agent_and_a_leaving_agent_moves_only_its_own(
    conn: Connection, server: Server, join: Join
) -> None:
    await define(conn, server, sticky="customer")
    agents = [await join(name, 1000) for name in ("a", "b", "c")]
    await submit_for(conn, range(60), times=3)
    assert await server.step() == 180
    await until_sent(agents, 180)
    before = await keys_of(agents)
    assert set(before.values()) == {"a", "b", "c"}, "and all have some"

    await agents[1].leave()
    left = [agents[0], agents[2]]
    for agent in left:
        agent.armed = []
    await submit_for(conn, range(60))
    assert await server.step() == 60
    await until_sent(left, 60)
    after = await keys_of(left)
    for customer, name in before.items():
        assert after[customer] == name or name == "b"
    assert {after[customer] for customer, name in before.items() if name == "b"} == {"a", "c"}, "spread over those left"

    back = await join("b", 1000)  # the same name, another session
    for agent in left:
        agent.armed = []
    await submit_for(conn, range(60))
    await server.step()
    await until_sent([*left, back], 60)
    assert await keys_of([*left, back]) == before


async def test_a_full_agent_leaves_its_tasks_to_the_next_and_nothing_is_forgotten(
    conn: Connection, server: Server, join: Join
) -> None:
    await define(conn, server, sticky="customer")
    agents = [await join("a", 3), await join("b", 100)]
    await enqueue(conn, 20, customer="c1")
    await enqueue(conn, 20, customer="c2")
    await submit_for(conn, range(20))
    assert await server.step() == 60
    await until_sent(agents, 60)
    assert len(agents[0].armed) == 3


async def test_tasks_without_the_argument_are_spread(conn: Connection, server: Server, join: Join) -> None:
    await define(conn, server, sticky="customer")
    agents = [await join("a", 100), await join("b", 100)]
    await enqueue(conn, 60, other=1)
    assert await server.step() == 60
    await until_sent(agents, 60)
    assert min(len(agent.armed) for agent in agents) > 5


async def test_servers_agree_on_the_winner_and_take_what_it_leaves(
    conn: Connection, server: Server, join: Join
) -> None:
    await define(conn, server, sticky="customer")
    both = [await join("a", 1000), await join("b", 1000)]
    await submit_for(conn, range(40))
    await server.step()
    await until_sent(both, 40)
    before = await keys_of(both)

    await both[1].leave()
    await conn.execute("delete from mainspring.agent where session = $1", both[1].session)
    await other_server(conn, "b")
    await server.registry.refresh()
    both[0].armed = []
    await submit_for(conn, range(40))
    ours = sum(name == "a" for name in before.values())
    assert await server.step() == ours
    await until_sent([both[0]], ours)
    assert set(await keys_of([both[0]])) == {customer for customer, name in before.items() if name == "a"}
    await make_overdue(conn)
    server.dispatcher._floors.clear()  # the test moved tasks to the past, which time never does
    assert await server.step() == 40 - ours, "the other server has not come for them"


async def test_what_is_left_to_another_server_is_found_later(
    conn: Connection, server: Server, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims go past it, and must not forget it, however far their floors have come since."""
    seconds = itertools.count(boottime())
    monkeypatch.setattr(dispatcher_module, "boottime", lambda: float(next(seconds)))
    await define(conn, server, sticky="customer")
    agent = await join("a", 1000)
    elsewhere = await other_server(conn, "b")
    await server.registry.refresh()
    await submit_for(conn, range(40))
    taken = await server.step()
    assert 0 < taken < 40
    for _ in range(3):
        assert await server.step() == 0
    await conn.execute("delete from mainspring.agent where session = $1", elsewhere)
    await server.registry.refresh()
    assert await server.step() == 40 - taken
    await agent.has(40)


async def test_what_others_win_does_not_stand_in_the_way(conn: Connection, server: Server, join: Join) -> None:
    """An agent with one slot finds its own among those of others, one after another."""
    await define(conn, server, sticky="customer")
    agent = await join("a", 1)
    await other_server(conn, "b")
    await server.registry.refresh()
    await submit_for(conn, range(40))
    ours = await conn.fetchval("""
        select count(*) from mainspring.task
         where hashtextextended(args->>'customer', hashtextextended('a', 0))
               > hashtextextended(args->>'customer', hashtextextended('b', 0))
    """)
    assert 5 < ours < 35
    done = 0
    while found := await server.step():
        await agent.has(done + found)
        await agent.finish(*agent.armed[done:])
        done += found
    assert done == ours


# ── draining ────────────────────────────────────────────────────────────────────────────────────


async def test_a_drained_agent_gives_back_what_has_not_started_and_takes_nothing_new(
    conn: Connection, server: Server, join: Join, eventually: Any
) -> None:
    await define(conn, server)
    leaving, staying = await join("leaving"), await join("staying")
    await enqueue(conn, 4)
    await enqueue(conn, 4, due="4 s")
    assert await server.step() == 8
    leaving.running = {(await leaving.has(4))[0].task}
    await registry.drain(conn, "leaving")
    await server.registry.refresh()

    async def recorded() -> bool:
        await server.recorder.flush()
        return server.gateway.holds == 5

    await eventually(recorded)
    assert await server.step() == 3
    await staying.has(7)
    assert [armed.task for armed in leaving.armed] == list(leaving.running), "what runs goes on"
    await enqueue(conn, 3)
    await server.step()
    await staying.has(10)
    await server.registry.refresh()
    await registry.undrain(conn, "leaving")
    await server.registry.refresh()
    await enqueue(conn, 2)
    await server.step()
    async with asyncio.timeout(20):
        while len(leaving.armed) == 1:
            await asyncio.sleep(0)
    assert leaving.recalls == 1, "by now it would have heard that it was asked again"


async def test_what_a_claim_under_way_brought_to_a_drained_agent_is_asked_back_too(
    conn: Connection, server: Server, join: Join, eventually: Any
) -> None:
    await define(conn, server)
    leaving = await join("leaving")
    await enqueue(conn, 1)
    await registry.drain(conn, "leaving")
    assert await server.step() == 1, "its server has not looked yet"
    await leaving.has(1)
    await server.registry.refresh()

    async def given_back() -> bool:
        await server.recorder.flush()
        return server.gateway.holds == 0

    await eventually(given_back)
    assert await server.step() == 0


async def test_an_agent_that_connects_again_stays_drained(conn: Connection, server: Server, join: Join) -> None:
    await define(conn, server)
    first = await join("leaving")
    await registry.drain(conn, "leaving")
    await server.registry.refresh()
    await first.leave()
    await join("leaving")
    await enqueue(conn, 3)
    assert await server.step() == 0, "also before its server looks again"
    assert server.gateway.room_ahead(Requirements()) == {}


# ── what nobody can run ─────────────────────────────────────────────────────────────────────────


async def test_a_job_that_nobody_can_run_is_told_once_a_minute(
    conn: Connection,
    server: Server,
    join: Join,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry_module, "WARN_AFTER", 0.0)
    await define(conn, server, requires={"gpu": "a100"})
    await join("plain", zone="b")
    await server.registry.refresh()

    async def told() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "mainspring"):
            await server.registry.warn_unrunnable()
        return [record.getMessage() for record in caplog.records]

    assert await told() == [], "nothing waits"
    await enqueue(conn, 2)
    assert await told() == ["2 tasks of job wait: no agent has gpu=a100; agents there are: plain (zone=b)"]
    assert await told() == []
    monkeypatch.setattr(registry_module, "boottime", lambda: registry_module.WARN_EVERY + 1 + boottime())
    assert len(await told()) == 1
    await other_server(conn, "elsewhere", gpu="a100")
    await server.registry.refresh()
    monkeypatch.setattr(registry_module, "boottime", lambda: 3 * registry_module.WARN_EVERY + boottime())
    assert await told() == [], "an agent of another server can"


async def test_at_the_start_an_agent_has_a_moment_to_come(
    conn: Connection, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await define(conn, server)
    await enqueue(conn, 1)
    await server.registry.refresh()
    with caplog.at_level(logging.WARNING, "mainspring"):
        await server.registry.warn_unrunnable()
    assert caplog.records == []
