"""Agent sessions and their leases."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from tests.cluster import OWNER

from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.states import TaskState
from mainspring.store.access import tokens
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import claims, rescue, session_tasks

MakeTask = Callable[..., Awaitable[int]]


async def renew(conn: Connection, *sessions: int) -> set[int]:
    return await agents.renew(conn, [agents.Vital(session) for session in sessions], 60.0)


async def begin(conn: Connection, lease: float = 60.0, process: str | None = None) -> int:
    return await agents.begin(conn, agents.AgentInfo("agent", 10, {"zone": "a"}, process), lease)


async def lease_left(conn: Connection, session: int) -> float:
    return float(
        await conn.fetchval(
            "select extract(epoch from lease_until - mainspring.now()) from mainspring.agent where session = $1",
            session,
        )
    )


async def test_sessions_are_numbered_upwards(conn: Connection) -> None:
    first, second = await begin(conn), await begin(conn)
    assert second > first


async def test_a_living_lease_is_renewed(conn: Connection) -> None:
    session = await begin(conn, 5.0)
    assert await renew(conn, session) == {session}
    assert 50 < await lease_left(conn, session) <= 60


async def test_since_when_a_clock_is_wrong_is_kept_until_it_is_right(conn: Connection) -> None:
    session = await begin(conn)

    async def since(skew: float, limit: float = 1.0) -> object:
        await agents.renew(conn, [agents.Vital(session, skew=skew)], 60.0, limit)
        return await conn.fetchval("select skewed_since from mainspring.agent where session = $1", session)

    assert await since(0.5) is None
    first = await since(-1.5)
    assert first is not None
    assert await since(2.5) == first
    assert await since(2.5, limit=5.0) is None


async def test_a_lease_that_is_over_is_never_renewed(conn: Connection) -> None:
    living, over = await begin(conn), await begin(conn, -0.001)
    assert await renew(conn, living, over, 10**9) == {living}
    assert await lease_left(conn, over) < 0
    assert await rescue.gone(conn) == [over]


async def test_a_watchdog_renews_only_a_living_session_of_its_own_process(conn: Connection) -> None:
    """Late, repeated, after its end, or with the secret of another process: nothing that is over comes back."""

    async def session(lease: float, token: int | None = None) -> int:
        info = agents.AgentInfo("agent", 10, {}, None, "mine", token, connection=next(connections))
        return await agents.begin(conn, info, lease)

    connections = itertools.count(1)
    token, _ = await tokens.create(conn, "test")
    living, over, revoked = await session(5.0), await session(-0.001), await session(5.0, token)
    await tokens.revoke(conn, token)
    assert await agents.keep(conn, living, "mine", 60.0)
    assert 50 < await lease_left(conn, living) <= 60
    assert not await agents.keep(conn, living, "another's", 60.0)
    assert not await agents.keep(conn, over, "mine", 60.0)
    assert not await agents.keep(conn, revoked, "mine", 60.0)
    await agents.leave(conn, [living])
    assert not await agents.keep(conn, living, "mine", 60.0)


async def test_a_session_that_was_ended_is_gone_at_once_and_for_good(conn: Connection) -> None:
    session = await begin(conn)
    assert await rescue.gone(conn) == []
    await agents.end(conn, [session])
    assert await rescue.gone(conn) == [session]
    assert await renew(conn, session) == set()


async def test_a_buried_session_is_neither_gone_nor_renewed(conn: Connection) -> None:
    session = await begin(conn, -1.0)
    await conn.execute("insert into mainspring.claim (session, batch, tasks) values ($1, 1, '{1,2}')", session)
    assert await rescue.gone(conn) == [session]
    await rescue.forget(conn, session)
    assert await rescue.gone(conn) == []
    assert await renew(conn, session) == set()
    assert await conn.fetchval("select count(*) from mainspring.claim") == 0


async def test_a_living_session_is_not_buried(conn: Connection) -> None:
    session = await begin(conn)
    await rescue.forget(conn, session)
    assert await renew(conn, session) == {session}


async def test_what_a_session_holds_is_what_it_claimed_and_still_has(conn: Connection, make_task: MakeTask) -> None:
    tasks = [await make_task() for _ in range(4)]
    pool = await conn.fetchval("select pool from mainspring.job")
    await conn.execute("update mainspring.task set run_at = run_at - interval '1 s'")
    found = await claims.claim(conn, OWNER, pool, [7], 10, [BOTTOM] * 10, ahead=0.0)
    tokens = {armed.task: armed.token for armed in found.tasks[7]}
    await conn.execute(
        "update mainspring.task set state = 3, started_at = to_timestamp(1790000000), crashes = 2 where id = $1",
        tasks[1],
    )
    await conn.execute("update mainspring.task set cancel_at = mainspring.now() where id = $1", tasks[2])
    await claims.give_back(conn, [tasks[3]], [tokens[tasks[3]]])
    held = {h.task: h for h in await rescue.held(conn, 7, 100)}
    assert sorted(held) == tasks[:3]
    assert [held[task].running for task in tasks[:3]] == [False, True, False]
    assert [held[task].cancelled for task in tasks[:3]] == [False, False, True]
    assert (held[tasks[1]].crashes, held[tasks[1]].started_at, held[tasks[0]].started_at) == (2, 1_790_000_000.0, 0.0)
    assert all(h.token == tokens[h.task] for h in held.values())
    assert len(await rescue.held(conn, 7, 2)) == 2
    assert await rescue.held(conn, 8, 100) == []


async def test_a_claim_made_for_a_session_while_it_is_buried_is_still_found(
    dsn: str, conn: Connection, make_task: MakeTask
) -> None:
    """The claimer did not know that the lease was over; nobody else may forget the tasks."""
    session = await begin(conn, -1.0)
    await make_task()
    pool = await conn.fetchval("select pool from mainspring.job")
    await conn.execute("update mainspring.task set run_at = run_at - interval '1 s'")
    claimer = await Database(dsn).connect()
    async with claimer.transaction():
        claim = await claims.claim(claimer, OWNER, pool, [session], 10, [BOTTOM] * 10, ahead=0.0)
        assert await rescue.held(conn, session, 100) == []
        await rescue.forget(conn, session)
    await claimer.close()
    assert await rescue.gone(conn) == [session]
    assert [h.task for h in await rescue.held(conn, session, 100)] == [claim.tasks[session][0].task]
    await conn.execute("delete from mainspring.task")
    await rescue.forget(conn, session)
    assert await rescue.gone(conn) == []


async def test_a_claim_made_between_the_look_and_the_burial_is_not_thrown_away(
    conn: Connection, make_task: MakeTask
) -> None:
    session = await begin(conn, -1.0)
    await make_task()
    pool = await conn.fetchval("select pool from mainspring.job")
    await conn.execute("update mainspring.task set run_at = run_at - interval '1 s'")
    assert await rescue.held(conn, session, 100) == []
    await claims.claim(conn, OWNER, pool, [session], 10, [BOTTOM] * 10, ahead=0.0)
    await rescue.forget(conn, session)
    assert await rescue.gone(conn) == [session]
    assert len(await rescue.held(conn, session, 100)) == 1


async def test_who_is_to_be_cancelled_is_found_by_session(conn: Connection, make_task: MakeTask) -> None:
    wanted, _, other, pending = [
        await make_task(TaskState.RUNNING, token=5, session=1),
        await make_task(TaskState.RUNNING, token=6, session=1),
        await make_task(TaskState.ASSIGNED, token=7, session=2),
        await make_task(),
    ]
    await conn.execute(
        "update mainspring.task set cancel_at = mainspring.now() where id = any($1)", [wanted, other, pending]
    )
    assert await session_tasks.cancelled(conn, [1, 3]) == [(1, wanted, 5, None)]
    assert await session_tasks.cancelled(conn, []) == []


async def test_a_lease_is_renewed_or_ended_but_not_both(dsn: str) -> None:
    connections = [await Database(dsn).connect() for _ in range(2)]
    session = await begin(connections[0])
    await asyncio.gather(renew(connections[0], session), agents.end(connections[1], [session]))
    gone = await rescue.gone(connections[0])
    renewed = await renew(connections[1], session)
    assert bool(gone) != bool(renewed)
    for connection in connections:
        await connection.close()


async def test_a_renewal_finds_each_session_by_a_probe_of_its_own(conn: Connection) -> None:
    """However few the planner believes to live: else five hundred sessions were compared with one another."""
    sessions = [await begin(conn) for _ in range(3)]
    columns = [list(column) for column in zip(*[agents.Vital(session) for session in sessions], strict=True)]
    given = (columns[0], 60.0, *columns[1:], 1.0)
    plan = "\n".join(row[0] for row in await conn.fetch(f"explain {agents._RENEW}", *given))
    assert "Index Cond: (session = given.session)" in plan
    assert "Join Filter" not in plan
