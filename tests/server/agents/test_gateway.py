"""Gateway: sessions, room, and when a frame is acknowledged. The tests play the agent."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cluster import OWNER, server_lease

from mainspring.errors import StoreUnavailable
from mainspring.model.messages import (
    PROTOCOL,
    AgentMessage,
    Armed,
    AttemptId,
    Cancel,
    Configure,
    Dispatch,
    Drain,
    Ending,
    Finished,
    Frame,
    Heartbeat,
    Hello,
    Holding,
    Refused,
    ServerMessage,
    Welcome,
)
from mainspring.model.placement.placement import Requirements
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.server.agents.connection import AgentConnections
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.session import ARM_LIMIT
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.recorder import Recorder
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import claims, jobs, rescue, tasks, transitions
from mainspring.store.tasks.claims import Claim
from mainspring.store.tasks.rescue import Order
from mainspring.wire.channel import Channel, ChannelClosed, memory_pair
from mainspring.wire.clock import Clock, boottime

Eventually = Callable[..., Awaitable[Any]]
LEASE = 60.0
ANYBODY = Requirements()


class Server:
    def __init__(self, database: Database) -> None:
        self.catalogue = Catalogue(database)
        self.recorder = Recorder(database, self.catalogue)
        self.clock = Clock()
        self.gateway = Gateway(database, self.catalogue, self.recorder, self.clock, LEASE)
        self.agent_connections = AgentConnections(
            database, server_lease(), self.gateway, self.recorder, self.clock, LEASE
        )


class Agent:
    """An agent's end without an agent behind it."""

    def __init__(self, server: Server, *, slots: int = 10, labels: dict[str, str] | None = None) -> None:
        self._channel: Channel[AgentMessage, ServerMessage]
        self._channel, far = memory_pair()
        self.serving = asyncio.ensure_future(server.agent_connections.serve(far, process="this one"))
        self.hello = Hello("agent", slots, labels or {}, instance=secrets.token_hex(16))
        self._sequence = self._heard = 0
        self.acknowledged = 0
        self.session = 0

    async def say(self, *messages: AgentMessage) -> int:
        self._sequence += 1
        await self._channel.send(Frame(self._sequence, 0, list(messages)))
        return self._sequence

    async def hear(self) -> list[ServerMessage]:
        """The next messages; acknowledgements alone are only noted.

        It acknowledges nothing, so on a slow machine the server sends again what was heard: that is passed over.
        """
        while True:
            frame = await asyncio.wait_for(self._channel.receive(), 20)
            self.acknowledged = max(self.acknowledged, frame.ack)
            if 0 < frame.sequence <= self._heard:
                continue
            self._heard = max(self._heard, frame.sequence)
            if frame.messages:
                return frame.messages

    async def join(self) -> Agent:
        await self.say(self.hello)
        [welcome] = await self.hear()
        assert isinstance(welcome, Welcome)
        self.session = welcome.session
        return self

    async def leave(self) -> None:
        await self._channel.close()
        await self.serving


@pytest.fixture
async def server(database: Database, conn: Connection) -> AsyncIterator[Server]:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    server = Server(database)
    await server.catalogue.refresh()
    yield server
    await server.gateway.close()


async def arm(conn: Connection, server: Server, agent: Agent, count: int) -> list[Armed]:
    """Enqueue, claim and send; returns what the agent was told."""
    await conn.execute("select mainspring.enqueue_many('job', array_fill('{}'::jsonb, array[$1::int]))", count)
    pool = await conn.fetchval("select pool from mainspring.job")
    claim = await claims.claim(conn, OWNER, pool, [agent.session], count, [BOTTOM] * 10, ahead=5.0)
    await server.gateway.arm(claim)
    [dispatch] = await agent.hear()
    assert isinstance(dispatch, Dispatch)
    return dispatch.tasks


def finished(*armed: Armed, state: TaskState = TaskState.SUCCEEDED) -> Finished:
    return Finished([Ending(a.task, a.token, a.job, a.attempt, state, 1.0, 2.0) for a in armed])


# ── hello ───────────────────────────────────────────────────────────────────────────────────────


async def test_an_agent_that_says_hello_is_welcomed(conn: Connection, server: Server) -> None:
    agent = await Agent(server, labels={"zone": "a"}).join()
    row = await conn.fetchrow("select * from mainspring.agent")
    assert (row["session"], row["name"], row["slots"], row["labels"]) == (agent.session, "agent", 10, '{"zone": "a"}')
    assert agent.acknowledged == 1
    await agent.leave()


@pytest.mark.parametrize(
    "first",
    [
        [Heartbeat(0)],
        [Refused([], "x")],
        [Heartbeat(0), Hello("agent", 1, {})],
        [Hello("agent", 1, {}, protocol=PROTOCOL + 1)],
        [],
    ],
    ids=["a heartbeat", "a report", "hello second", "another protocol", "nothing"],
)
async def test_who_does_not_say_hello_first_is_refused(
    conn: Connection, server: Server, first: list[AgentMessage]
) -> None:
    agent = Agent(server)
    await agent.say(*first)
    with pytest.raises(ChannelClosed):
        await agent.hear()
    await agent.serving
    assert await conn.fetchval("select count(*) from mainspring.agent") == 0
    assert server.gateway.room(ANYBODY) == ({}, 0)


async def test_a_second_hello_changes_nothing(conn: Connection, server: Server) -> None:
    agent = await Agent(server).join()
    await agent.say(Hello("other", 1000, {}))
    await agent.say(Heartbeat(0))
    assert isinstance((await agent.hear())[0], Configure)
    assert server.gateway.room(ANYBODY)[0] == {agent.session: 10}
    await agent.leave()


async def test_a_heartbeat_is_answered_with_the_time_and_with_what_the_database_confirmed_of_the_lease(
    server: Server,
) -> None:
    agent = await Agent(server).join()
    server.gateway._sessions[agent.session].renewed_at -= 50.0  # nobody has renewed it for so long
    await agent.say(Heartbeat(3))
    [answer] = await agent.hear()
    assert isinstance(answer, Configure)
    assert answer.lease == pytest.approx(LEASE - 50.0, abs=5)
    assert answer.now == pytest.approx(server.clock.now(), abs=5)
    await server.gateway.renew()
    await agent.say(Heartbeat(3))
    [answer] = await agent.hear()
    assert isinstance(answer, Configure)
    assert answer.lease == pytest.approx(LEASE, abs=5)
    await agent.leave()


# ── acknowledgement ─────────────────────────────────────────────────────────────────────────────


async def test_a_report_is_not_acknowledged_by_the_answer_to_a_later_heartbeat(
    conn: Connection, server: Server
) -> None:
    agent = await Agent(server).join()
    [armed] = await arm(conn, server, agent, 1)
    report = await agent.say(finished(armed))
    for _ in range(3):
        await agent.say(Heartbeat(0))
        await agent.hear()
    assert agent.acknowledged < report, "it is not committed"
    await server.recorder.flush()
    await agent.say(Heartbeat(0))
    await agent.hear()
    assert agent.acknowledged >= report
    assert (await tasks.get(conn, armed.task)).state == "succeeded"
    await agent.leave()


async def test_a_heartbeat_with_numbers_that_cannot_be_stored_harms_nobody(conn: Connection, server: Server) -> None:
    agent = await Agent(server, slots=3).join()
    nan, inf = float("nan"), float("inf")
    for beat in (Heartbeat(2**62, 0.0, 1e300, -1e300, -inf, inf), Heartbeat(-(2**62), 0.0, nan, inf, nan, -1e300)):
        await agent.say(beat)
        await agent.hear()
        await server.gateway.renew()
        row = await conn.fetchrow("select running, cpu, memory, skew, round_trip from mainspring.agent")
        assert 0 <= row["running"] <= 3
        assert all(abs(row[name]) <= 1e9 for name in ("cpu", "memory", "skew", "round_trip"))
    await agent.leave()


async def test_an_agent_that_reconnects_is_as_slow_as_it_was(conn: Connection, server: Server) -> None:
    agent = await Agent(server).join()
    link = server.gateway.sessions[agent.session].link
    link.expect(0.8, 0.9)  # as frames over a slow line would have it
    await server.gateway.renew()
    await agent.leave()
    for _ in range(2):  # a session may end before its first renewal
        agent = await Agent(server).join()
        session = server.gateway.sessions[agent.session]
        assert (session.link.ack_time, session.link.reliability) == pytest.approx((0.8, 0.9))
        assert session.vital(server.gateway.lead).lead == pytest.approx(5.0 + 4 * 0.8)
        await agent.leave()
    stranger = Agent(server)
    stranger.hello.name = "another"
    await stranger.join()
    assert server.gateway.sessions[stranger.session].link.ack_time == 0.0
    await stranger.leave()


async def test_a_server_says_by_how_much_its_clock_may_be_wrong(server: Server) -> None:
    now = boottime()
    server.clock.measured(now - 0.4, now, 1_790_000_000.0)  # the line to PostgreSQL is slow, maybe one way only
    agent = Agent(server)
    await agent.say(agent.hello)
    [welcome] = await agent.hear()
    await agent.say(Heartbeat(0))
    [answer] = await agent.hear()
    assert isinstance(welcome, Welcome)
    assert isinstance(answer, Configure)
    for told in (welcome, answer):
        latest = 1_790_000_000.0 + 0.4 + (boottime() - now)
        assert told.error == pytest.approx(0.2, abs=0.01)
        assert 1_790_000_000.0 - 0.001 <= told.now - told.error < told.now + told.error <= latest + 0.01
    await agent.leave()


async def test_heartbeats_are_acknowledged_too(server: Server) -> None:
    agent = await Agent(server).join()
    for _ in range(3):
        await agent.say(Heartbeat(0))
        await agent.hear()
        await server.recorder.flush()
    last = await agent.say(Heartbeat(0))
    await agent.hear()
    assert agent.acknowledged >= last - 1
    await agent.leave()


# ── room ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_wait_for_what_the_local_agent_holds_ends_when_its_session_leaves(
    conn: Connection, server: Server
) -> None:
    agent = await Agent(server, slots=10).join()
    await arm(conn, server, agent, 1)
    waiting = asyncio.create_task(server.gateway.wait_until_empty())
    await asyncio.sleep(0)
    server.gateway.leave(server.gateway.sessions[agent.session])
    await asyncio.wait_for(waiting, 20)
    await agent.leave()


async def test_room_is_slots_minus_what_is_held_until_it_has_ended(conn: Connection, server: Server) -> None:
    agent = await Agent(server, slots=10).join()

    def room() -> int:
        return server.gateway.room(ANYBODY)[0].get(agent.session, 0)

    assert room() == 10
    armed = await arm(conn, server, agent, 4)
    assert (room(), server.gateway.holds) == (6, 4)
    server.gateway.room_made.clear()
    await agent.say(finished(*armed[:3]))
    await asyncio.wait_for(server.gateway.room_made.wait(), 20)
    assert server.gateway.holds == 4, "held until it is recorded"
    assert room() >= 9
    await agent.say(Refused([AttemptId(armed[3].task, armed[3].token)], "full"))
    async with asyncio.timeout(20):
        while server.gateway.holds:
            await asyncio.sleep(0)
            await server.recorder.flush()
    await agent.leave()


async def test_a_repeated_ending_does_not_make_room_twice(conn: Connection, server: Server) -> None:
    agent = await Agent(server, slots=2).join()
    armed = await arm(conn, server, agent, 2)
    for _ in range(3):
        await agent.say(finished(armed[0]))
        await agent.say(Heartbeat(0))
        await agent.hear()
        await server.recorder.flush()
    free = server.gateway.room(ANYBODY)[0].get(agent.session, 0)
    window = server.gateway.room(ANYBODY)[1]
    assert free == window - 1, "one task is held"
    await agent.leave()


async def test_a_task_that_comes_again_before_its_last_ending_is_told_is_held_once(
    conn: Connection, server: Server
) -> None:
    """The commit of a retry and the next claim may be quicker than the word of it."""
    first, second = await Agent(server, slots=2).join(), await Agent(server, slots=2).join()
    [armed] = await arm(conn, server, first, 1)
    failed = finished(armed, state=TaskState.FAILED)
    await first.say(failed)
    await first.say(Heartbeat(0))
    await first.hear()
    again = Armed(armed.task, armed.token + 1, armed.job, 2, 0.0, "{}")
    await server.gateway.arm(Claim({second.session: [again]}, {}, 1))
    server.gateway._recorded(failed.endings, [])
    assert [len(server.gateway._sessions[s].held) for s in (first.session, second.session)] == [0, 1]
    assert server.gateway.holds == 1
    server.gateway._recorded(finished(again).endings, [])
    assert server.gateway.holds == 0
    await first.leave()
    await second.leave()


async def test_labels_decide_who_has_room(server: Server) -> None:
    plain, special = await Agent(server).join(), await Agent(server, labels={"gpu": "yes"}).join()
    assert set(server.gateway.room(ANYBODY)[0]) == {plain.session, special.session}
    assert set(server.gateway.room(Requirements({"gpu": "yes"}))[0]) == {special.session}
    assert server.gateway.room(Requirements({"gpu": "no"})) == ({}, 0)
    await plain.leave()
    await special.leave()


async def test_tasks_ahead_of_their_time_take_no_slot(conn: Connection, server: Server) -> None:
    agent = await Agent(server, slots=1).join()
    await conn.execute("select mainspring.enqueue_many('job', array_fill('{}'::jsonb, array[5]), delay => '1 hour')")
    pool = await conn.fetchval("select pool from mainspring.job")
    claim = await claims.claim(conn, OWNER, pool, [agent.session], 5, [BOTTOM] * 10, ahead=7200.0)
    await server.gateway.arm(claim)
    assert server.gateway.room(ANYBODY)[0] == {agent.session: 1}
    assert server.gateway.room_ahead(ANYBODY) == {agent.session: ARM_LIMIT - 5}
    await agent.leave()


async def test_a_draining_agent_has_no_room_and_is_told(server: Server) -> None:
    agent = await Agent(server).join()
    await server.gateway.drain()
    assert await agent.hear() == [Drain()]
    assert server.gateway.room(ANYBODY)[0] == {}
    assert server.gateway.room_ahead(ANYBODY) == {}
    await agent.leave()


# ── dispatch ────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_is_told_once_and_again_when_it_has_changed(conn: Connection, server: Server) -> None:
    agent = await Agent(server).join()
    pool = await conn.fetchval("select pool from mainspring.job")
    told = []
    for priority in (5, 5, 6):
        await jobs.register(conn, {"job": Definition(Python("job"), priority=priority)})
        await server.catalogue.refresh()
        await conn.execute("select mainspring.enqueue('job')")
        await server.gateway.arm(await claims.claim(conn, OWNER, pool, [agent.session], 1, [BOTTOM] * 10, ahead=5.0))
        [dispatch] = await agent.hear()
        assert isinstance(dispatch, Dispatch)
        told.append([(job.name, job.version) for job in dispatch.jobs])
    assert told == [[("job", 1)], [], [("job", 2)]]
    await agent.leave()


async def test_a_claim_for_an_agent_that_has_gone_comes_back(conn: Connection, server: Server) -> None:
    agent = await Agent(server).join()
    await agent.leave()
    armed = Armed(1, 1, 1, 1, 0.0, "{}")
    assert await server.gateway.arm(Claim({agent.session: [armed]}, {}, 1)) == [armed]
    assert server.gateway.holds == 0


async def test_a_connection_that_closes_ends_the_session_or_marks_it_while_it_holds_tasks(
    conn: Connection, server: Server
) -> None:
    idle, busy = await Agent(server).join(), await Agent(server).join()
    await arm(conn, server, busy, 1)
    await idle.leave()
    await busy.leave()
    rows = await conn.fetch("select ended_at, disconnected_at from mainspring.agent order by session")
    assert [(row["ended_at"] is None, row["disconnected_at"] is None) for row in rows] == [(False, True), (True, False)]


# ── cancel, lease, compact, close ───────────────────────────────────────────────────────────────


async def test_a_cancelled_task_is_told_to_its_agent_once(conn: Connection, server: Server) -> None:
    agent = await Agent(server).join()
    armed = await arm(conn, server, agent, 2)
    await tasks.cancel(conn, armed[0].task)
    for _ in range(3):
        await server.gateway.cancel()
    assert await agent.hear() == [Cancel([AttemptId(armed[0].task, armed[0].token)])]
    await agent.say(Heartbeat(0))
    assert isinstance((await agent.hear())[0], Configure), "no second one in between"
    await agent.leave()


async def test_a_cancel_is_not_told_before_what_it_is_about(conn: Connection, server: Server) -> None:
    """Else the agent does not know it, and nobody says it again."""
    agent = await Agent(server).join()
    await conn.execute("select mainspring.enqueue('job')")
    pool = await conn.fetchval("select pool from mainspring.job")
    claim = await claims.claim(conn, OWNER, pool, [agent.session], 1, [BOTTOM] * 10, ahead=5.0)
    [armed] = claim.tasks[agent.session]
    await tasks.cancel(conn, armed.task)
    await server.gateway.cancel()
    await server.gateway.arm(claim)
    assert isinstance((await agent.hear())[0], Dispatch)
    await server.gateway.cancel()
    assert await agent.hear() == [Cancel([AttemptId(armed.task, armed.token)])]
    await agent.leave()


async def test_an_agent_that_goes_while_it_is_told_to_cancel_harms_nobody(
    conn: Connection, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, staying = await Agent(server).join(), await Agent(server).join()
    lost, kept = (await arm(conn, server, going, 1))[0], (await arm(conn, server, staying, 1))[0]
    for armed in (lost, kept):
        await tasks.cancel(conn, armed.task)

    async def closed(_: object) -> int:
        raise ChannelClosed("gone, and the session has not noticed yet")

    monkeypatch.setattr(server.gateway._sessions[going.session].link, "send", closed)
    await server.gateway.cancel()
    assert await staying.hear() == [Cancel([AttemptId(kept.task, kept.token)])]
    await going.leave()
    await staying.leave()


async def test_what_was_taken_from_an_agent_is_stopped_there_at_once_and_told_once(
    conn: Connection, server: Server
) -> None:
    agent = await Agent(server).join()
    taken, kept = await arm(conn, server, agent, 2)
    elsewhere = Order(agent.session + 1, taken.task, taken.token)
    await rescue.order_stops(conn, [Order(agent.session, taken.task, taken.token), elsewhere])
    await server.gateway.cancel()
    assert await agent.hear() == [Cancel([AttemptId(taken.task, taken.token)], kill=True)]
    await server.gateway.cancel()
    await tasks.cancel(conn, kept.task)
    await server.gateway.cancel()
    assert await agent.hear() == [Cancel([AttemptId(kept.task, kept.token)])]
    assert await rescue.stop_orders(conn, [agent.session, agent.session + 1]) == [elsewhere]
    await agent.leave()


async def test_an_order_to_stop_is_forgotten_only_after_it_was_passed_on(
    conn: Connection, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await Agent(server).join()
    [taken] = await arm(conn, server, agent, 1)
    await rescue.order_stops(conn, [Order(agent.session, taken.task, taken.token)])

    async def lost(conn: object, orders: object) -> None:
        raise StoreUnavailable("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(rescue, "stops_sent", lost)
        with pytest.raises(StoreUnavailable):
            await server.gateway.cancel()
    assert await agent.hear() == [Cancel([AttemptId(taken.task, taken.token)], kill=True)]
    await server.gateway.cancel()
    assert await agent.hear() == [Cancel([AttemptId(taken.task, taken.token)], kill=True)], "twice is harmless"
    await agent.leave()


@pytest.mark.parametrize("how", ["its lease was over", "its attempt was taken away"])
async def test_an_agent_that_comes_back_may_not_keep_what_was_taken_from_it(
    conn: Connection, server: Server, how: str
) -> None:
    """Whether or not anybody could tell it: its server may have died with the order in hand."""
    agent = await Agent(server).join()
    taken, kept = await arm(conn, server, agent, 2)
    await agent.leave()
    if how == "its lease was over":
        await agents.end(conn, [agent.session])
        await rescue.gone(conn)
    ending = Ending(taken.task, taken.token, taken.job, 1, TaskState.TIMED_OUT, 1.0, 2.0)
    await transitions.retry(conn, [Again(ending, 0.0, costs=True)])
    back = Agent(server)
    held = [Holding(armed.task, armed.token, TaskState.RUNNING) for armed in (taken, kept)]
    await back.say(replace(agent.hello, connection=2, session=agent.session, held=held))
    [welcome] = await back.hear()
    assert isinstance(welcome, Welcome)
    is_over = how == "its lease was over"
    assert welcome.kept == ([] if is_over else [AttemptId(kept.task, kept.token)]), (
        "it stops all else: Runner.keep_only"
    )
    await back.leave()


async def test_a_session_whose_lease_is_over_is_closed(conn: Connection, server: Server) -> None:
    over, living = await Agent(server).join(), await Agent(server).join()
    await agents.end(conn, [over.session])
    await server.gateway.renew()
    with pytest.raises(ChannelClosed):
        await over.hear()
    await over.serving
    assert set(server.gateway.room(ANYBODY)[0]) == {living.session}
    await living.leave()


async def test_a_connection_that_does_not_end_holds_up_no_renewal(
    conn: Connection, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, living = await Agent(server).join(), await Agent(server).join()
    await agents.end(conn, [silent.session])
    ended = asyncio.Event()
    monkeypatch.setattr(server.gateway.sessions[silent.session].link, "close", ended.wait)
    await asyncio.wait_for(server.gateway.renew(), 20)
    assert set(server.gateway.sessions) == {living.session}
    ended.set()
    for agent in (silent, living):
        await agent.leave()


async def test_leases_are_renewed_while_somebody_has_the_table_of_tasks_locked(
    dsn: str, conn: Connection, server: Server, eventually: Eventually
) -> None:
    """As a migration does, or VACUUM FULL: whoever looks at tasks waits, and leases must not."""
    agent = await Agent(server).join()
    locking = await Database(dsn).connect()
    try:
        async with locking.transaction():
            await locking.execute("lock table mainspring.task in access exclusive mode")
            looking = asyncio.create_task(server.gateway.cancel())
            await eventually(
                lambda: conn.fetchval("select count(*) > 0 from pg_locks where relation = $1::regclass and not granted",
                                      "mainspring.task")
            )  # fmt: skip
            await asyncio.wait_for(server.gateway.renew(), 20)
            assert set(server.gateway.sessions) == {agent.session}
        await asyncio.wait_for(looking, 20)
    finally:
        await locking.close()
    await agent.leave()


async def test_what_a_session_holds_is_noted_in_place_of_its_claims(conn: Connection, server: Server) -> None:
    agent = await Agent(server).join()
    first, second = await arm(conn, server, agent, 2), await arm(conn, server, agent, 2)
    await agent.say(finished(first[0]))
    while not server.recorder.backlog:
        await asyncio.sleep(0)
    await server.recorder.flush()
    await server.gateway.compact()
    rows = await conn.fetch("select tasks from mainspring.claim")
    assert [sorted(row["tasks"]) for row in rows] == [[first[1].task, second[0].task, second[1].task]]
    assert sorted(h.task for h in await rescue.held(conn, agent.session, 10)) == rows[0]["tasks"]
    await agent.leave()


async def test_closing_ends_the_sessions_here_at_once(conn: Connection, server: Server) -> None:
    agent = await Agent(server).join()
    await arm(conn, server, agent, 1)
    await server.gateway.close()
    assert await rescue.gone(conn) == [agent.session]
    await agent.serving
