"""Dispatcher: claims what agents have room for, and finds again what was claimed without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.cluster import server_lease
from tests.server.dispatch.played import PlayedAgent

from mainspring.errors import StoreUnavailable
from mainspring.model.messages import Hello
from mainspring.model.placement.contender import AHEAD_BATCH
from mainspring.model.placement.lead import Lead
from mainspring.model.placement.placement import Requirements
from mainspring.model.tasks.claim_floors import Released, parse_released
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.server.agents.connection import AgentConnections
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.registry import Registry
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.dispatch import dispatcher
from mainspring.server.dispatch.dispatcher import BACKLOG, Dispatcher
from mainspring.server.recording.recorder import Recorder
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.submission.enqueue import submit_and_claim
from mainspring.store.submission.submissions import Submission
from mainspring.store.tasks import claim_order, claims, jobs, tasks
from mainspring.wire.clock import Clock, boottime

LEAD = 5.0


class Server:
    def __init__(self, database: Database) -> None:
        self.clock = Clock()
        self.catalogue = Catalogue(database)
        self.recorder = Recorder(database, self.catalogue)
        self.gateway = Gateway(database, self.catalogue, self.recorder, self.clock, 60.0, Lead(LEAD, load_factor=0.0))
        self.agent_connections = AgentConnections(
            database, server_lease(), self.gateway, self.recorder, self.clock, 60.0
        )
        self.registry = Registry(database, self.catalogue, self.gateway)
        self.dispatcher = Dispatcher(
            database, server_lease(), self.catalogue, self.gateway, self.recorder, self.registry, self.clock
        )

    async def close(self) -> None:
        await self.gateway.close()


class Agent(PlayedAgent):
    async def join(self, slots: int, labels: dict[str, str]) -> Agent:
        await self.say_hello(Hello(self.name, slots, labels))
        return self

    async def has(self, count: int) -> list[int]:
        """The tasks it has been sent, once there are so many."""
        return [armed.task for armed in await self.holds(count)]


@pytest.fixture
async def server(database: Database, conn: Connection) -> AsyncIterator[Server]:
    await jobs.register(
        conn, {"job": Definition(Python("job")), "special": Definition(Python("x"), requires={"gpu": "yes"})}
    )
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


async def enqueue(conn: Connection, count: int, *, job: str = "job", due: str = "0") -> list[int]:
    ids: list[int] = await conn.fetchval(
        "select mainspring.enqueue_many($1, array_fill('{}'::jsonb, array[$2::int]), "
        "run_at => mainspring.now() + $3::text::interval)",
        job,
        count,
        due,
    )
    return ids


async def states(conn: Connection) -> dict[int, int]:
    rows = await conn.fetch("select state, count(*) from mainspring.task group by 1")
    return {row[0]: row[1] for row in rows}


async def test_without_an_agent_nothing_is_claimed(conn: Connection, server: Server) -> None:
    await enqueue(conn, 3)
    assert await server.dispatcher.step() == 0
    assert await states(conn) == {1: 3}


async def test_no_more_is_claimed_than_there_is_room(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(slots=3)
    made = await enqueue(conn, 10)
    assert await server.dispatcher.step() == 3
    assert await server.dispatcher.step() == 0
    assert await agent.has(3) == made[:3]
    assert await states(conn) == {1: 7, 2: 3}
    await agent.finish(*agent.armed[:2])
    await server.dispatcher.step()
    assert (await agent.has(5))[3:5] == made[3:5]


async def test_tasks_are_spread_over_agents_with_room(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    first, second = await join(slots=2), await join(slots=5)
    made = await enqueue(conn, 20)
    assert await server.dispatcher.step() == 7
    assert sorted(await first.has(2) + await second.has(5)) == made[:7]


async def test_a_pool_that_nobody_serves_does_not_hold_up_another(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    plain = await join()
    special = await enqueue(conn, 3, job="special")
    ordinary = await enqueue(conn, 2)
    assert await server.dispatcher.step() == 2
    assert await plain.has(2) == ordinary
    able = await join(gpu="yes")
    assert await server.dispatcher.step() == 3
    assert await able.has(3) == special


async def test_an_agent_is_armed_ahead_with_what_is_due_within_the_lead(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(slots=1)
    soon = await enqueue(conn, 5, due="4 s")
    await enqueue(conn, 5, due="1 min")
    assert await server.dispatcher.step() == 5
    assert await agent.has(5) == soon
    assert server.gateway.room(Requirements())[0] == {agent.session: 1}, "and its slot is still free"


async def test_a_claim_ahead_starts_where_the_last_one_ended_and_soon_again_from_now(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "AHEAD_FROM_NOW_EVERY", 60.0)
    agent = await join(slots=1)
    [first] = await enqueue(conn, 1, due="3 s")
    assert await server.dispatcher.step() == 1
    [between] = await enqueue(conn, 1, due="2 s")
    [behind] = await enqueue(conn, 1, due="4 s")
    assert await server.dispatcher.step() == 1
    assert await agent.has(2) == [first, behind], "those in front are claimed already, as far as it knows"
    monkeypatch.setattr(dispatcher, "AHEAD_FROM_NOW_EVERY", 0.0)
    assert await server.dispatcher.step() == 1
    assert await agent.has(3) == [first, behind, between]


@pytest.mark.parametrize("news", ["released", "segments moved"])
async def test_news_of_pending_tasks_makes_a_claim_ahead_start_from_now(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    monkeypatch.setattr(dispatcher, "AHEAD_FROM_NOW_EVERY", 60.0)
    agent = await join(slots=1)
    await enqueue(conn, 1, due="3 s")
    assert await server.dispatcher.step() == 1
    [between] = await enqueue(conn, 1, due="2 s")
    if news == "released":
        pool = await conn.fetchval("select pool from mainspring.task where id = $1", between)
        server.dispatcher.released([Released(pool, 5, (server.clock.now() + 2.0, between))])
    else:
        server.dispatcher.look_from_bottom()
    assert await server.dispatcher.step() == 1
    assert (await agent.has(2))[1] == between


async def test_a_claim_ahead_takes_no_more_than_can_be_armed_in_one_go(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(slots=1)
    made = await enqueue(conn, AHEAD_BATCH + 5, due="4 s")
    assert await server.dispatcher.step() == AHEAD_BATCH
    assert await server.dispatcher.step() == 5
    assert await agent.has(len(made)) == made


async def test_what_was_claimed_for_an_agent_that_has_gone_meanwhile_goes_back_at_no_cost(
    conn: Connection, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await Agent(server).join(3, {})
    await enqueue(conn, 3)
    claim = claims.claim

    async def while_it_leaves(*args: Any, **options: Any) -> claims.Claim:
        claimed = await claim(*args, **options)
        await agent.leave()
        return claimed

    monkeypatch.setattr(claims, "claim", while_it_leaves)
    assert await server.dispatcher.step() == 3
    rows = await conn.fetch("select state, attempt, crashes, session from mainspring.task")
    assert {tuple(row) for row in rows} == {(TaskState.PENDING, 0, 0, None)}


async def test_claims_pause_while_endings_pile_up(conn: Connection, server: Server, join: Callable[..., Any]) -> None:
    await join()
    await enqueue(conn, 1)
    server.recorder._reports.endings = BACKLOG + 1
    assert await server.dispatcher.step() == 0
    server.recorder._reports.endings = 0
    assert await server.dispatcher.step() == 1


async def test_a_job_made_a_moment_ago_is_told_with_its_first_task(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join()
    await jobs.register(conn, {"new": Definition(Python("new"))})  # the same pool
    [task] = await enqueue(conn, 1, job="new")
    assert await server.dispatcher.step() == 1
    assert await agent.has(1) == [task]
    assert server.catalogue.named("new") is not None


# ── when the loop goes round ────────────────────────────────────────────────────────────────────


async def test_room_wakes_the_loop_only_when_something_may_wait_for_it(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    await join(slots=1)
    dispatcher = server.dispatcher
    await dispatcher.step()
    dispatcher.wake.clear()
    server.gateway.announce_room()
    assert not dispatcher.wake.is_set(), "all was claimed"
    await enqueue(conn, 2)
    assert (await dispatcher.step(), await dispatcher.step()) == (1, 0)
    server.gateway.announce_room()
    assert dispatcher.wake.is_set()


async def test_the_loop_rests_after_what_time_alone_brought_until_work_comes(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.server.dispatch.dispatcher.GATHER", 60.0)
    agent = await join(slots=10)
    await enqueue(conn, 3, due="4 s")
    server.dispatcher.wake.clear()
    resting = asyncio.create_task(server.dispatcher.dispatch())
    await agent.has(3)
    assert not resting.done()
    server.dispatcher.wake.set()
    assert await asyncio.wait_for(resting, 20) == 3
    server.dispatcher.wake.clear()
    await enqueue(conn, 3)
    assert await asyncio.wait_for(server.dispatcher.dispatch(), 20) == 3, "no rest while there are due ones"


# ── stragglers ──────────────────────────────────────────────────────────────────────────────────


async def test_a_task_committed_below_the_floor_is_found(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(slots=1000)
    await enqueue(conn, 5)
    await server.dispatcher.step()
    for floors in server.dispatcher._floors.values():
        floors.mark = list(floors.tip)
        floors._next = list(floors.tip)
    [late] = await enqueue(conn, 1)
    await conn.execute("update mainspring.task set run_at = run_at - interval '1 hour' where id = $1", late)
    await server.dispatcher.step()
    assert late not in await agent.has(5), "below the floor"
    server.dispatcher.wake.clear()
    await server.dispatcher.search_below()
    assert server.dispatcher.wake.is_set()
    await server.dispatcher.step()
    assert late in await agent.has(6)


async def _raise_floors(conn: Connection, server: Server, agent: Agent) -> None:
    """Claims have gone on for a while: what is older than now lies below the floors."""
    await enqueue(conn, 1)
    await server.dispatcher.step()
    await agent.finish(*await agent.holds(1))
    agent.armed.clear()
    for floors in server.dispatcher._floors.values():
        floors.mark = list(floors.tip)
        floors._next = list(floors.tip)


async def test_a_task_that_another_server_made_pending_is_claimed_by_its_hint(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    """Without a search: nothing else looks below the floors."""
    agent = await join(slots=10)
    await _raise_floors(conn, server, agent)
    hints: list[str] = []
    await conn.add_listener("mainspring", lambda *said: hints.append(str(said[3])))
    [task] = await enqueue(conn, 1, due="-1 h")
    await conn.execute("select 1")
    assert await server.dispatcher.step() == 0, "below the floor"
    [released] = filter(None, (parse_released(hint.removeprefix("due ")) for hint in hints))
    server.dispatcher.released([released])
    assert server.dispatcher.wake.is_set()
    await server.dispatcher.step()
    assert await agent.has(1) == [task]


async def test_claims_ahead_of_time_are_rare_while_due_tasks_wait_for_room(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.server.dispatch.dispatcher.AHEAD_EVERY", 600.0)
    await join(slots=1)
    await enqueue(conn, 300)
    claim = claims.claim
    leads: list[float] = []

    async def noted(*args: Any, **options: Any) -> claims.Claim:
        leads.append(options["ahead"])
        return await claim(*args, **options)

    monkeypatch.setattr(claims, "claim", noted)
    while await server.dispatcher.step():
        pass  # until the agent is full
    made = sum(lead > 0 for lead in leads)
    assert made >= 1
    for _ in range(5):
        assert await server.dispatcher.step() == 0
    assert sum(lead > 0 for lead in leads) == made
    server.dispatcher.look_from_now()  # a hint
    await server.dispatcher.step()
    assert sum(lead > 0 for lead in leads) == made + 1


async def test_a_hint_that_comes_during_a_claim_is_not_forgotten(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await join(slots=1)
    await _raise_floors(conn, server, agent)
    claim = claims.claim
    await enqueue(conn, 3)
    old: list[int] = []

    async def and_a_hint(*args: Any, **options: Any) -> claims.Claim:
        claimed = await claim(*args, **options)
        old.extend(await enqueue(conn, 1, due="-1 h"))
        row = await conn.fetchrow("select pool, date_part('epoch', run_at) from mainspring.task where id = $1", old[0])
        server.dispatcher.released([Released(row[0], 5, (row[1], old[0]))])
        return claimed

    monkeypatch.setattr(claims, "claim", and_a_hint)
    await server.dispatcher.step()
    monkeypatch.undo()
    await agent.finish(*await agent.holds(1))
    before = len(agent.armed)
    while not (size := await server.dispatcher.step()):
        await asyncio.sleep(0)
    assert (await agent.has(before + size))[before] == old[0], "it is the oldest"


@pytest.mark.parametrize("stalls", [[5.0], [5.0, 60.0], [5.0, 60.0, 9.0, 5.0]])
async def test_after_a_stall_of_the_database_the_search_does_not_rest(
    conn: Connection,
    server: Server,
    join: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    stalls: list[float],
) -> None:
    """The rest follows the work of a search, not the time that it waited; and it is a second at most."""
    agent = await join(slots=10)
    await _raise_floors(conn, server, agent)
    [task] = await enqueue(conn, 1, due="-1 h")
    now, stragglers = boottime(), claim_order.stragglers
    monkeypatch.setattr("mainspring.server.dispatch.stragglers.boottime", lambda: now)

    async def stalled(*_: Any) -> list[Released]:
        nonlocal now
        now += stalls.pop()
        return []

    for _ in list(stalls):
        monkeypatch.setattr(claim_order, "stragglers", stalled)
        await server.dispatcher.search_below()
        now += 1.0
    monkeypatch.setattr(claim_order, "stragglers", stragglers)
    await server.dispatcher.search_below()
    await server.dispatcher.step()
    assert await agent.has(1) == [task]


async def test_one_statement_searches_below_the_floors_of_all_pools(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await join(slots=10, gpu="yes")
    await enqueue(conn, 1, job="special")
    await enqueue(conn, 1)
    await server.dispatcher.step()
    await agent.holds(2)
    searched: list[Any] = []

    async def search(*args: Any) -> list[Released]:
        searched.append(args[2])
        return []

    monkeypatch.setattr(claim_order, "stragglers", search)
    await server.dispatcher.search_below()
    assert [len(floors) for floors in searched] == [2]


# ── a claim without an answer ───────────────────────────────────────────────────────────────────


async def _cut_after(server: Server, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next claim is made, and its answer is lost."""
    claim = claims.claim

    async def cut(line: Connection, *arguments: Any, **options: Any) -> claims.Claim:
        await claim(line, *arguments, **options)
        await conn.fetch("""
            select pg_terminate_backend(pid, 5000) from pg_stat_activity
             where datname = current_database() and pid <> pg_backend_pid() and query like '%on_hold%'
        """)
        await line.execute("select 1")
        raise AssertionError("still connected")

    monkeypatch.setattr(claims, "claim", cut)
    with pytest.raises(StoreUnavailable):
        await server.dispatcher.step()
    monkeypatch.undo()


async def test_a_claim_whose_answer_was_lost_is_found_and_sent(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await join(slots=5)
    made = await enqueue(conn, 8)
    await _cut_after(server, conn, monkeypatch)
    assert await states(conn) == {1: 3, 2: 5}
    assert agent.armed == []
    await server.dispatcher.step()
    assert await agent.has(5) == made[:5]
    await server.dispatcher.step()
    assert len(agent.armed) == 5, "sent once, and no more than there is room for"
    await agent.finish(*agent.armed)
    await server.dispatcher.step()
    assert (await agent.has(8))[5:] == made[5:]


async def test_what_is_held_is_not_forgotten_while_an_answer_is_missing(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compacting notes what a session holds; what it may hold without knowing must stay noted."""
    agent = await join(slots=5)
    made = await enqueue(conn, 5)
    await _cut_after(server, conn, monkeypatch)
    await server.gateway.compact()
    await server.dispatcher.step()
    assert await agent.has(5) == made


# ── born assigned ───────────────────────────────────────────────────────────────────────────────


async def test_a_plain_submission_is_claimed_as_it_is_made(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(slots=1)
    ids = await server.dispatcher.submit([Submission("job", '{"a": 1}')])
    assert await agent.has(1) == ids
    assert (agent.armed[0].args, agent.armed[0].attempt) == ('{"a": 1}', 1)
    assert (await tasks.get(conn, agent.armed[0].task)).state == "assigned"
    assert await server.dispatcher.submit([Submission("job", "{}")]) == [None], "no room: it waits its turn"
    await agent.finish(agent.armed[0])
    assert (await tasks.get(conn, agent.armed[0].task)).state == "succeeded"


async def test_submissions_at_once_are_claimed_as_far_as_there_is_room(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(slots=2)
    nobody = Submission("nobody", "{}")
    first, second, none, third = await server.dispatcher.submit(
        [Submission("job", '{"a": 1}'), Submission("job", "{}", priority="9"), nobody, Submission("job", "{}")]
    )
    assert none is None
    assert await agent.has(2) == [first, second]
    assert [(armed.args, armed.priority) for armed in agent.armed] == [('{"a": 1}', 5), ("{}", 9)]
    assert third is not None
    assert (await tasks.get(conn, third)).state == "pending"
    assert server.dispatcher.wake.is_set()
    await agent.finish(*agent.armed)
    await server.dispatcher.step()
    assert await agent.has(3) == [first, second, third]


async def test_submissions_that_postgresql_refuses_are_not_claimed(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(slots=2)
    assert await server.dispatcher.submit([Submission("job", "{}"), Submission("job", "[1]")]) == [None, None]
    assert not server.gateway.in_flight.any_unanswered
    [id] = await server.dispatcher.submit([Submission("job", "{}")])
    assert await agent.has(1) == [id]
    assert await conn.fetchval("select count(*) from mainspring.task") == 1


async def test_the_place_of_a_submission_under_way_is_given_to_no_other_task(
    conn: Connection, server: Server, join: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await join(slots=1)
    claimed: list[int] = []

    async def beside_another(*args: Any) -> Any:
        await enqueue(conn, 1)
        claimed.append(await server.dispatcher.step())
        return await submit_and_claim(*args)

    monkeypatch.setattr("mainspring.server.dispatch.submissions.submit_and_claim", beside_another)
    ids = await server.dispatcher.submit([Submission("job", "{}")])
    assert claimed == [0]
    assert await agent.has(1) == ids


async def test_a_submission_does_not_overtake_what_waits_in_full_flow(
    conn: Connection, server: Server, join: Callable[..., Any]
) -> None:
    agent = await join(slots=2)
    await enqueue(conn, 10)
    await server.dispatcher.step()
    await agent.has(2)
    await agent.finish(*agent.armed)
    assert await server.dispatcher.submit([Submission("job", "{}")]) == [None]
