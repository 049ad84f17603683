"""Handshake: an agent that reconnects keeps what it still holds; what it no longer holds is released."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest
from tests.cluster import OWNER

from mainspring.errors import SessionSuperseded
from mainspring.model.messages import Armed, Hello, Holding
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.server.agents import handshake
from mainspring.server.agents.handshake import Accepted
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.recorder import Recorder
from mainspring.server.recovery.rescuer import Rescuer
from mainspring.store.access import tokens
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import claims, jobs, rescue, tasks, transitions
from mainspring.wire.clock import Clock

_connections = count(1)


def hello(session: int | None = None, *held: Armed, instance: str = "secret") -> Hello:
    """Each is of another connection, as an agent counts them."""
    holding = [Holding(armed.task, armed.token, TaskState.ASSIGNED) for armed in held]
    return Hello("agent", 10, {}, instance=instance, connection=next(_connections), session=session, held=holding)


async def arrive(conn: Connection, said: Hello, token: int | None = None) -> Accepted:
    accepted = await handshake.open_session(conn, said, 60.0, server=OWNER, process=None, token=token)
    assert isinstance(accepted, Accepted)
    return accepted


async def claimed(conn: Connection, session: int, count: int) -> list[Armed]:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await conn.execute("select mainspring.enqueue_many('job', array_fill('{}'::jsonb, array[$1::int]))", count)
    pool = await conn.fetchval("select pool from mainspring.job")
    return (await claims.claim(conn, OWNER, pool, [session], count, [BOTTOM] * 10, ahead=5.0)).tasks[session]


@pytest.fixture
async def other(database: Database) -> AsyncIterator[Connection]:
    async with database.acquire() as conn:
        yield conn


@pytest.fixture
async def rescuer(database: Database, conn: Connection) -> Rescuer:
    catalogue = Catalogue(database)
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await catalogue.refresh()
    return Rescuer(database, catalogue, Recorder(database, catalogue), Clock(), 60.0)


async def test_what_the_agent_still_has_is_its_new_sessions_under_the_same_token(conn: Connection) -> None:
    first = await arrive(conn, hello())
    kept, lost = await claimed(conn, first.session, 2)
    second = await arrive(conn, hello(first.session, kept))
    assert [(a.task, a.token, a.attempt) for a in second.tasks] == [(kept.task, kept.token, 1)]
    assert [h.task for h in await rescue.held(conn, second.session, 10)] == [kept.task]
    assert [h.task for h in await rescue.held(conn, first.session, 10)] == [lost.task]
    assert await transitions.finish(conn, []) == []


async def test_what_never_came_to_the_agent_goes_back_and_costs_nothing(conn: Connection, rescuer: Rescuer) -> None:
    first = await arrive(conn, hello())
    kept, lost = await claimed(conn, first.session, 2)
    await arrive(conn, hello(first.session, kept))
    assert await rescuer.step() == 1
    row = await conn.fetchrow("select state, attempt, crashes from mainspring.task where id = $1", lost.task)
    assert tuple(row) == (TaskState.PENDING, 0, 0)
    assert (await tasks.get(conn, kept.task)).state == "assigned"
    assert await rescuer.step() == 0


async def test_a_claim_that_another_server_makes_for_the_old_session_is_found_and_goes_back(
    conn: Connection, rescuer: Rescuer
) -> None:
    first = await arrive(conn, hello())
    await arrive(conn, hello(first.session))
    [late] = await claimed(conn, first.session, 1)
    assert await rescuer.step() == 1
    assert (await tasks.get(conn, late.task)).state == "pending"


async def test_nobody_goes_on_with_a_session_that_is_another_process_s(conn: Connection) -> None:
    first = await arrive(conn, hello(instance="mine"))
    [armed] = await claimed(conn, first.session, 1)
    thief = await arrive(conn, hello(first.session, armed, instance="guessed"))
    assert thief.tasks == []
    assert [h.task for h in await rescue.held(conn, first.session, 10)] == [armed.task]


async def test_nobody_goes_on_with_a_session_whose_lease_is_over(conn: Connection) -> None:
    first = await arrive(conn, hello())
    [armed] = await claimed(conn, first.session, 1)
    await agents.end(conn, [first.session])
    assert (await arrive(conn, hello(first.session, armed))).tasks == []


async def test_what_was_given_to_another_in_the_meantime_is_not_taken_over(conn: Connection) -> None:
    first = await arrive(conn, hello())
    [armed] = await claimed(conn, first.session, 1)
    await conn.execute("update mainspring.task set token = token + 2048")
    assert (await arrive(conn, hello(first.session, armed))).tasks == []


async def test_a_hello_that_is_repeated_after_a_lost_answer_goes_on_from_the_one_it_knows(conn: Connection) -> None:
    """The agent never heard of the session in between, which has what it holds."""
    first = await arrive(conn, hello())
    [armed] = await claimed(conn, first.session, 1)
    unheard = await arrive(conn, hello(first.session, armed))
    again = await arrive(conn, hello(first.session, armed))
    assert [a.task for a in again.tasks] == [armed.task]
    assert await rescue.held(conn, unheard.session, 10) == []


# ── a hello that is carried out late ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("newer_is", ["live", "ended"])
@pytest.mark.parametrize("late_is", ["a reconnect", "the first"])
async def test_a_late_hello_ends_nothing_newer_and_is_refused(
    conn: Connection, rescuer: Rescuer, late_is: str, newer_is: str
) -> None:
    """Its server had a slow line to PostgreSQL; the agent has joined another one since, and was armed there."""
    first = await arrive(conn, hello())
    late = hello(first.session if late_is == "a reconnect" else None)
    newer = await arrive(conn, hello(first.session))
    [armed] = await claimed(conn, newer.session, 1)
    if newer_is == "ended":
        await agents.end(conn, [newer.session])
        await rescue.gone(conn)
    before = await conn.fetch("select * from mainspring.agent order by session")
    with pytest.raises(SessionSuperseded):
        await arrive(conn, late)
    assert await conn.fetch("select * from mainspring.agent order by session") == before
    assert [h.task for h in await rescue.held(conn, newer.session, 10)] == [armed.task]
    if newer_is == "live":
        assert await rescuer.step() == 0, "what the agent may hold is not requeued"


async def test_a_hello_that_is_carried_out_twice_opens_one_session(conn: Connection) -> None:
    said = hello()
    await arrive(conn, said)
    with pytest.raises(SessionSuperseded):
        await arrive(conn, said)


@pytest.mark.parametrize("first_is", ["the older", "the newer"])
async def test_of_two_hellos_at_the_same_moment_the_newer_keeps_all(
    conn: Connection, other: Connection, first_is: str
) -> None:
    """As when PostgreSQL stood still, and then carries out all that was sent meanwhile."""
    first = await arrive(conn, hello())
    armed = await claimed(conn, first.session, 3)
    older, newer = hello(first.session, *armed), hello(first.session, *armed)
    async with conn.transaction():
        opened = await arrive(conn, older if first_is == "the older" else newer)
        waiting = asyncio.create_task(arrive(other, newer if first_is == "the older" else older))
        await _until_one_waits(other, conn)
    if first_is == "the older":
        opened = await waiting
    else:
        with pytest.raises(SessionSuperseded):
            await waiting
    assert sorted(h.task for h in await rescue.held(conn, opened.session, 10)) == sorted(a.task for a in armed)
    alive = await conn.fetch("select session from mainspring.agent where ended_at is null")
    assert [row["session"] for row in alive] == [opened.session]


async def _until_one_waits(waiting: Connection, conn: Connection) -> None:
    pid = waiting.get_server_pid()
    async with asyncio.timeout(10):
        while not await conn.fetchval("select cardinality(pg_blocking_pids($1))", pid):
            await asyncio.sleep(0.01)


# ── at once ─────────────────────────────────────────────────────────────────────────────────────


async def test_of_two_reconnects_at_once_each_attempt_is_of_one_session(conn: Connection, other: Connection) -> None:
    one, two = conn, other
    first = await arrive(one, hello())
    armed = await claimed(one, first.session, 5)
    both = await asyncio.gather(
        arrive(one, hello(first.session, *armed)),
        arrive(two, hello(first.session, *armed)),
        return_exceptions=True,  # the older one may come too late
    )
    opened = [accepted for accepted in both if isinstance(accepted, Accepted)]
    holders = [h.task for accepted in opened for h in await rescue.held(one, accepted.session, 10)]
    assert sorted(holders) == sorted(a.task for a in armed)


async def test_a_rescue_and_a_reconnect_at_once_never_give_a_task_twice(conn: Connection, rescuer: Rescuer) -> None:
    """Either the session ends by its lease, or it goes on; what goes on is not pending."""
    for _ in range(20):
        first = await arrive(conn, hello())
        [armed] = await claimed(conn, first.session, 1)
        await conn.execute(
            "update mainspring.agent set lease_until = mainspring.now() + interval '2 ms' where session = $1",
            first.session,
        )
        accepted, _ = await asyncio.gather(arrive(conn, hello(first.session, armed)), rescuer.step())
        await rescuer.step()
        state = (await tasks.get(conn, armed.task)).state
        assert (state == "assigned") == (len(accepted.tasks) == 1)
        await conn.execute("delete from mainspring.task")


@pytest.mark.parametrize(
    ("said", "field"),
    [
        (Hello("", 1, {}), "name"),
        (Hello("a\x00b", 1, {}), "name"),
        (Hello("a", 0, {}), "slots"),
        (Hello("a", 10**9, {}), "slots"),
        (Hello("a", 1, {"x": "\ud800"}), "labels"),
        (Hello("a", 1, {str(n): "x" for n in range(101)}), "labels"),
        (Hello("a", 1, {}, offers={"gpu": float("nan")}), "offers"),
        (Hello("a", 1, {}, offers={"gpu": -1.0}), "offers"),
        (Hello("a", 1, {}, session=2**63), "session"),
        (Hello("a", 1, {}, connection=0), "connection"),
        (Hello("a", 1, {}, connection=2**31), "connection"),
        (Hello("a", 1, {}, host="x" * 300), "host"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_hello_that_makes_no_sense_is_refused_by_name(conn: Connection, said: Hello, field: str) -> None:
    refusal = await handshake.open_session(conn, said, 60.0, server=OWNER, process=None, token=None)
    assert isinstance(refusal, str)
    assert refusal.startswith(field)
    assert await conn.fetchval("select count(*) from mainspring.agent") == 0


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_token_that_serves_once_is_exchanged_for_a_credential(conn: Connection) -> None:
    id, secret = await tokens.create(conn, "laptop", once=True)
    assert await tokens.check(conn, secret) == id
    accepted = await arrive(conn, hello(), token=id)
    assert accepted.credential is not None
    assert await tokens.check(conn, accepted.credential) not in (None, id)
    other = await handshake.open_session(conn, hello(instance="other"), 60.0, server=OWNER, process=None, token=id)
    assert isinstance(other, str)
    assert "has served another" in other


async def test_the_same_process_may_come_with_its_token_again(conn: Connection) -> None:
    id, _ = await tokens.create(conn, "laptop", once=True)
    assert (await arrive(conn, hello(), token=id)).credential
    assert (await arrive(conn, hello(), token=id)).credential, "the first answer may have been lost"


async def test_a_revoked_token_ends_what_came_from_it(conn: Connection) -> None:
    id, secret = await tokens.create(conn, "laptop", once=True)
    accepted = await arrive(conn, hello(), token=id)
    assert accepted.credential is not None
    await tokens.revoke(conn, id)
    assert await tokens.check(conn, secret) is None
    assert await tokens.check(conn, accepted.credential) is None
    assert await agents.renew(conn, [agents.Vital(accepted.session)], 60.0) == set()


async def test_no_secret_is_stored(conn: Connection) -> None:
    _, secret = await tokens.create(conn, "laptop")
    await arrive(conn, hello(instance="of the process"))
    stored = await conn.fetchval("select string_agg(t::text, ' ') from mainspring.token t")
    stored += await conn.fetchval("select string_agg(a::text, ' ') from mainspring.agent a")
    assert secret not in stored
    assert "of the process" not in stored
