"""HandOver: the recorder's flush arms the tasks that get the slots of those that end, unless others may come first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest
from tests.cluster import OWNER, own
from tests.server.dispatch import test_dispatcher
from tests.server.dispatch.test_dispatcher import Agent

from mainspring.errors import StoreUnavailable
from mainspring.model.messages import Armed, Ending, Finished
from mainspring.model.tasks.claim_floors import Released
from mainspring.model.tasks.define_job import Options, define
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.server.agents.session import AgentSession
from mainspring.server.cluster.lease import ServerLease
from mainspring.server.dispatch.handover import HandOver
from mainspring.server.planning.limits import LimitsLoop
from mainspring.store.limits import handover
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs


class Server(test_dispatcher.Server):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.server_lease = ServerLease(OWNER, trusted_until=float("inf"))
        self.recorder.offering = HandOver(
            database, self.server_lease, self.catalogue, self.gateway, self.registry, self.dispatcher
        ).offering
        self.limits = LimitsLoop(database, lambda _: 5.0, 5.0)
        self.limits.on_released.connect(self.dispatcher.released)

    async def start_first(self) -> None:
        """Release and claim what may start, as the loops do; then they have looked at all news."""
        await self.catalogue.refresh()
        while await self.limits.step():
            pass
        while await self.dispatcher.step():
            pass
        self.dispatcher.wake.clear()


@pytest.fixture
async def server(database: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr("mainspring.server.agents.session.HORIZON", 1e-9)  # an agent holds no more than it has slots
    four: Options = {"max_running": 4, "retries": 0}
    keyed: Options = {"concurrency_key": "{k}"}
    definitions = {"four": define(Python("four"), four), "keyed": define(Python("keyed"), keyed)}
    special = Definition(Python("special"), requires={"gpu": "yes"})
    await jobs.register(conn, definitions | {"plain": Definition(Python("plain")), "special": special})
    server = Server(database)
    await server.catalogue.refresh()
    yield server
    await server.close()


@pytest.fixture
async def join(server: Server) -> AsyncIterator[Callable[..., Any]]:
    joined: list[Agent] = []

    async def join(slots: int = 10, **labels: str) -> Agent:
        joined.append(await Agent(server).join(slots, labels))
        return joined[-1]

    yield join
    for agent in joined:
        await agent.leave()


async def enqueue(conn: Connection, job: str, count: int, priority: str = "normal", args: str = "{}") -> list[int]:
    sql = "select mainspring.enqueue_many($1, array_fill($2::jsonb, array[$3::int]), priority => $4)"
    ids: list[int] = await conn.fetchval(sql, job, args, count, priority)
    return ids


async def held_slots(conn: Connection) -> dict[int, int]:
    """By task that has a slot, its state."""
    rows = await conn.fetch("select id, state from mainspring.task where job_slot >= 0 or key_slot >= 0 order by id")
    return {row["id"]: row["state"] for row in rows}


async def test_a_flush_arms_the_next_tasks(conn: Connection, server: Server, join: Callable[..., Any]) -> None:
    agent = await join()
    made = await enqueue(conn, "four", 8)
    await server.start_first()
    assert await agent.has(4) == made[:4]
    await agent.finish(*agent.armed[:2])
    assert (await agent.has(6))[4:] == made[4:6]
    assert [session.promised for session in server.gateway.sessions.values()] == [0]
    assert len(server.gateway.sessions[agent.session].held) == 4
    await agent.finish(*agent.armed[2:])
    assert await agent.has(8) == made
    await agent.finish(*agent.armed[6:])
    assert await held_slots(conn) == {}


async def test_keys_pass_on_as_well(conn: Connection, server: Server, join: Callable[..., Any]) -> None:
    agent = await join()
    a = await enqueue(conn, "keyed", 3, args='{"k": 1}')
    b = await enqueue(conn, "keyed", 3, args='{"k": 2}')
    await server.start_first()
    for turn in range(3):
        armed = (await agent.holds(2 * turn + 2))[2 * turn :]
        assert sorted(each.task for each in armed) == [a[turn], b[turn]]
        await agent.finish(*armed)


async def test_a_batch_in_parts_gives_each_place_once(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL refuses something in the batch, so that each frame is written by itself."""
    agent = await join()
    made = await enqueue(conn, "four", 8)
    await server.start_first()
    first, second, third, _ = await agent.holds(4)
    server.gateway.sessions[agent.session].draining = True
    other = await join(slots=2)
    finish, offered = handover.finish, []

    async def counting(conn: Connection, server: Any, endings: Any, places: Any) -> Any:
        if len(endings) == 3:
            raise asyncpg.DataError("refused")
        offered.append((len(endings), sum(map(len, places.values()))))
        return await finish(conn, server, endings, places)

    monkeypatch.setattr(handover, "finish", counting)
    await _report(server, agent, first, second)
    await _report(server, agent, third)
    async with asyncio.timeout(20):
        while server.recorder.backlog < 3:
            await asyncio.sleep(0)
    server.dispatcher.wake.clear()
    await server.recorder.flush()
    assert offered == [(2, 2), (1, 0)]
    assert await other.has(2) == made[4:6]
    assert (await held_slots(conn))[made[6]] == TaskState.PENDING


# ── what is not handed to an agent at once ──────────────────────────────────────────────────────


async def test_a_draining_agent_gets_nothing(conn: Connection, server: Server, join: Callable[..., Any]) -> None:
    agent = await join()
    made = await enqueue(conn, "four", 6)
    await server.start_first()
    await agent.holds(4)
    server.gateway.sessions[agent.session].draining = True
    await agent.finish(agent.armed[0])
    assert await held_slots(conn) == dict.fromkeys(made[1:4], TaskState.ASSIGNED) | {made[4]: TaskState.PENDING}
    assert len(server.gateway.sessions[agent.session].held) == 3
    other = await join()
    await server.dispatcher.step()
    assert await other.has(1) == [made[4]]


async def test_a_draining_server_claims_nothing(conn: Connection, server: Server, join: Callable[..., Any]) -> None:
    agent = await join()
    made = await enqueue(conn, "four", 6)
    await server.start_first()
    await agent.holds(4)
    server.server_lease.is_draining = True
    await agent.finish(agent.armed[0])
    assert (await held_slots(conn))[made[4]] == TaskState.PENDING


async def test_a_task_of_another_servers_segment_is_left_to_it(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join()
    made = await enqueue(conn, "four", 6)
    await server.start_first()
    await agent.holds(4)
    await own(conn, None, [made[4] % 100])
    await agent.finish(*agent.armed[:2])
    assert (await agent.has(5))[4:] == [made[5]]
    assert (await held_slots(conn))[made[4]] == TaskState.PENDING


async def test_critical_tasks_of_another_pool_that_wait_for_the_agent_come_first(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    """The agent is full with tasks under the limit; nothing was claimed for the other pool since."""
    agent = await join(slots=4, gpu="yes")
    made = await enqueue(conn, "four", 8, "low")
    await server.start_first()
    await agent.holds(4)
    critical = await enqueue(conn, "special", 2, "critical")
    await server.dispatcher.step()
    server.dispatcher._flowing.clear()  # as where submissions or a reconnect have filled the agent
    await _report(server, agent, *agent.armed[:2])
    server.dispatcher.wake.clear()  # a step has begun meanwhile
    await server.recorder.flush()
    assert len(agent.armed) == 4, "nothing out of turn"
    assert sorted(await held_slots(conn)) == made[2:6]
    await server.dispatcher.step()
    assert sorted((await agent.has(6))[4:]) == critical


async def test_news_that_the_dispatcher_has_not_looked_at_come_first(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(slots=5, gpu="yes")
    await enqueue(conn, "four", 8, "low")
    await server.start_first()
    await agent.holds(4)
    critical = await enqueue(conn, "special", 2, "critical")
    server.dispatcher.wake.set()
    await agent.finish(agent.armed[0])
    assert len(agent.armed) == 4
    await server.dispatcher.step()
    assert set(critical) <= set((await agent.has(6))[4:])


async def test_a_pool_in_full_flow_comes_in_its_turn(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(slots=6)
    made = await enqueue(conn, "four", 6, "high")
    plain = await enqueue(conn, "plain", 9, "critical")
    await server.limits.step()
    await server.start_first()
    assert await agent.has(6) == plain[:6]
    await agent.finish(*agent.armed[:5])
    await server.start_first()
    limited = [armed for armed in (await agent.holds(11))[6:] if armed.task in made]
    assert [armed.task for armed in limited] == made[:2]
    more = await enqueue(conn, "plain", 3, "critical")
    server.dispatcher._flowing[await conn.fetchval("select pool from mainspring.job where name = 'plain'")] = True
    await agent.finish(agent.armed[5])  # it has room now
    await _report(server, agent, limited[0])
    server.dispatcher.wake.clear()
    await server.recorder.flush()
    assert len(agent.armed) == 11, "tasks of the other pool may wait for that room"
    await server.dispatcher.step()
    assert (await agent.has(13))[11:] == more[:2]


# ── the process dies, or an answer does not come ────────────────────────────────────────────────


async def _report(server: Server, agent: Agent, *armed: Armed) -> None:
    endings = [Ending(a.task, a.token, a.job, a.attempt, TaskState.SUCCEEDED, 1.0, 2.0) for a in armed]
    await agent._link.send([Finished(endings)])
    async with asyncio.timeout(20):
        while not server.recorder.backlog:
            await asyncio.sleep(0)


async def test_what_was_handed_over_without_an_answer_is_found_and_sent_once(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await join()
    made = await enqueue(conn, "four", 8)
    await server.start_first()
    await agent.holds(4)
    finish = handover.finish

    async def lost(*given: Any) -> Any:
        await finish(*given)
        raise StoreUnavailable("the answer was lost")

    monkeypatch.setattr(handover, "finish", lost)
    await _report(server, agent, *agent.armed[:2])
    with pytest.raises(StoreUnavailable):
        await server.recorder.flush()
    monkeypatch.undo()
    assert len(agent.armed) == 4
    assert [session.promised for session in server.gateway.sessions.values()] == [0]
    await server.recorder.flush()  # repeats the batch: nothing ends twice, and no slot is given twice
    assert sorted(await held_slots(conn)) == made[2:6]
    server.dispatcher.wake.clear()
    await agent.finish(agent.armed[2])
    assert (await held_slots(conn))[made[6]] == TaskState.PENDING, "no more claims while one is not known"
    await server.dispatcher.step()
    assert (await agent.has(7))[4:] == made[4:7]
    await server.dispatcher.step()
    assert len(agent.armed) == 7
    server.dispatcher.wake.clear()
    server.gateway.in_flight._unanswered.clear()  # as after that time
    await agent.finish(*agent.armed[3:])
    assert await agent.has(8) == made


async def test_what_was_handed_to_a_session_that_has_left_is_pending_with_its_slot(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await join()
    made = await enqueue(conn, "four", 6)
    await server.start_first()
    await agent.holds(4)
    finish = handover.finish

    async def gone(*given: Any) -> Any:
        handed_over = await finish(*given)
        server.gateway.leave(server.gateway.sessions[agent.session])
        return handed_over

    monkeypatch.setattr(handover, "finish", gone)
    await agent.finish(agent.armed[0])
    assert (await held_slots(conn))[made[4]] == TaskState.PENDING
    assert await conn.fetchval("select attempt from mainspring.task where id = $1", made[4]) == 0


async def test_places_under_way_are_not_given_twice(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await join(slots=6)
    await enqueue(conn, "four", 8)
    await server.start_first()
    await agent.holds(4)
    finish = handover.finish
    rooms = []

    async def looking(*given: Any) -> Any:
        session: AgentSession = server.gateway.sessions[agent.session]
        rooms.append(session.room(server.clock.now(), {}))
        return await finish(*given)

    monkeypatch.setattr(handover, "finish", looking)
    await agent.finish(*agent.armed[:3])
    assert rooms == [2], "as before the three tasks ended"


async def test_the_pools_of_a_flush_share_the_room_of_an_agent(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    labelled: Options = {"max_running": 4, "retries": 0, "requires": {"gpu": "yes"}}
    await jobs.register(conn, {"labelled": define(Python("labelled"), labelled)})
    agent = await join(slots=5, gpu="yes")
    await server.start_first()
    endings = [await ended(conn, job) for job in ("four", "labelled") for _ in range(3)]
    with server.recorder.offering(endings):
        assert server.gateway.sessions[agent.session].promised == 5


async def test_a_place_is_promised_by_the_slots_that_it_takes(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    together = define(Python("together", chunk=100), {"max_running": 100, "retries": 0})
    await jobs.register(conn, {"together": together})
    agent = await join(slots=5)
    await server.start_first()
    with server.recorder.offering([await ended(conn, "together") for _ in range(20)]):
        assert server.gateway.sessions[agent.session].promised == 1


async def ended(conn: Connection, job: str) -> Ending:
    id = await conn.fetchval("select id from mainspring.job where name = $1", job)
    return Ending(1, 1, id, 1, TaskState.SUCCEEDED, 1.0, 2.0)


async def test_where_no_task_can_have_a_slot_nothing_is_offered(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await join()
    await enqueue(conn, "plain", 1)
    await server.start_first()
    monkeypatch.setattr(handover, "finish", None)
    await agent.finish(*await agent.holds(1))
    assert await conn.fetchval("select count(*) from mainspring.task_history") == 1


async def test_a_full_agent_gets_the_task_by_the_dispatcher(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await join(slots=4)
    made = await enqueue(conn, "four", 6)
    await server.start_first()
    await agent.holds(4)
    told: list[Released] = []
    with monkeypatch.context() as patched:
        patched.setattr(server.dispatcher, "released", told.extend)
        await agent.finish(agent.armed[0])
    assert [each.position[1] for each in told] == [made[4]], "it may lie below the floors of the dispatcher"
    assert len(agent.armed) == 4, "other tasks may wait for its place"
    server.dispatcher.released(told)
    await server.dispatcher.step()
    assert (await agent.has(5))[4:] == [made[4]]
