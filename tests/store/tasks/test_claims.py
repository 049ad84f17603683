"""Claims: which session gets which task, in which order, and never the same task twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.cluster import OWNER

from mainspring.model.messages import Armed
from mainspring.model.tasks.claim_floors import BOTTOM, Floor
from mainspring.model.tasks.jobs import PRIORITY_LEVELS, Definition, Python
from mainspring.model.tasks.pools import blocked
from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import claim_order, claims, jobs
from mainspring.store.tasks.claims import Claim

FROM_BOTTOM: list[Floor] = [BOTTOM] * len(PRIORITY_LEVELS)


@pytest.fixture
async def pool(conn: Connection) -> int:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    return int(await conn.fetchval("select pool from mainspring.job"))


async def enqueue(conn: Connection, count: int = 1, *, due: str = "0", priority: int = 5) -> list[int]:
    ids: list[int] = await conn.fetchval(
        "select mainspring.enqueue_many('job', array_fill('{}'::jsonb, array[$1::int]), $2)", count, str(priority)
    )
    await conn.execute(
        "update mainspring.task set run_at = (select mainspring.now()) + $2::text::interval where id = any($1)",
        ids,
        due,
    )
    return ids


async def claim(
    conn: Connection,
    pool: int,
    limit: int = 100,
    *,
    sessions: Sequence[int] = (1,),
    floors: Sequence[Floor] = FROM_BOTTOM,
    ahead: float = 0.0,
) -> Claim:
    return await claims.claim(conn, OWNER, pool, sessions, limit, floors, ahead=ahead)


def tasks(claim: Claim) -> list[Armed]:
    return [armed for session in claim.tasks.values() for armed in session]


def ids(claim: Claim) -> list[int]:
    return [armed.task for armed in tasks(claim)]


async def row(conn: Connection, task: int) -> Any:
    return await conn.fetchrow("select * from mainspring.task where id = $1", task)


async def test_priority_goes_before_time_and_time_before_number(conn: Connection, pool: int) -> None:
    late_low = await enqueue(conn, due="-2 h", priority=0)
    first, second = await enqueue(conn, 2, due="-1 min")
    earlier = await enqueue(conn, due="-1 h")
    high = await enqueue(conn, due="-1 s", priority=9)
    found = await claim(conn, pool)
    assert ids(found) == [*high, *earlier, first, second, *late_low]


async def test_a_limit_takes_the_first_of_the_order(conn: Connection, pool: int) -> None:
    normal = await enqueue(conn, 5, due="-1 h")
    high = await enqueue(conn, 2, due="-1 s", priority=9)
    assert ids(await claim(conn, pool, 4)) == [*high, *normal[:2]]
    assert ids(await claim(conn, pool, 4)) == normal[2:]
    assert ids(await claim(conn, pool, 4)) == []


async def test_only_what_is_due_is_claimed_or_due_within_the_lead(conn: Connection, pool: int) -> None:
    due, soon, later = [(await enqueue(conn, due=due))[0] for due in ("-1 s", "4 s", "20 s")]
    assert ids(await claim(conn, pool)) == [due]
    assert ids(await claim(conn, pool, ahead=5.0)) == [soon]
    assert ids(await claim(conn, pool, ahead=5.0)) == []
    assert (await row(conn, later))["state"] == TaskState.PENDING


@pytest.mark.parametrize("state", [TaskState.BLOCKED, TaskState.ASSIGNED, TaskState.RUNNING])
async def test_only_pending_tasks_are_claimed(conn: Connection, pool: int, state: TaskState) -> None:
    [task] = await enqueue(conn)
    own = blocked(str(pool)) if state is TaskState.BLOCKED else str(pool)
    await conn.execute(f"update mainspring.task set state = $2, pool = {own} where id = $1", task, int(state))
    assert ids(await claim(conn, (await row(conn, task))["pool"])) == []


async def test_one_claim_serves_one_pool(conn: Connection, pool: int) -> None:
    await enqueue(conn)
    assert ids(await claim(conn, pool + 1)) == []
    assert ids(await claim(conn, -pool)) == []


async def test_a_claim_says_all_that_the_agent_needs(conn: Connection, pool: int) -> None:
    await conn.execute("""select mainspring.enqueue('job', '{"day": 1}', run_at => '2026-01-01Z')""")
    await conn.execute("""update mainspring.task set checkpoint = '{"at": 7}', crashes = 1, attempt = 2""")
    found = await claim(conn, pool, sessions=[42])
    [armed] = found.tasks[42]
    assert (armed.attempt, armed.fire_at, armed.careful) == (3, 1_767_225_600.0, True)
    assert (armed.args, armed.checkpoint) == ('{"day": 1}', '{"at": 7}')
    stored = await row(conn, armed.task)
    assert (stored["state"], stored["token"], stored["session"], stored["attempt"]) == (2, armed.token, 42, 3)
    assert found.positions == {5: (armed.fire_at, armed.task)}
    noted = await conn.fetchrow("select * from mainspring.claim")
    assert (noted["session"], noted["batch"], noted["tasks"]) == (42, found.batches[42], [armed.task])


async def test_sessions_take_tasks_in_turn(conn: Connection, pool: int) -> None:
    made = await enqueue(conn, 6, due="-1 s")
    found = await claim(conn, pool, sessions=[7, 8, 7])
    assert [armed.task for armed in found.tasks[7]] == [made[i] for i in (0, 2, 3, 5)]
    assert [armed.task for armed in found.tasks[8]] == [made[i] for i in (1, 4)]
    assert found.batches[7] == found.batches[8]


async def test_tokens_of_a_task_strictly_increase(conn: Connection, pool: int) -> None:
    await enqueue(conn, 3)
    last: dict[int, int] = {}
    for _ in range(4):
        found = tasks(await claim(conn, pool))
        assert len({armed.token for armed in found}) == 3
        for armed in found:
            assert armed.token > last.get(armed.task, 0)
            last[armed.task] = armed.token
        await claims.give_back(conn, [a.task for a in found], [a.token for a in found])


async def test_two_claimers_in_open_transactions_get_different_tasks(dsn: str, conn: Connection, pool: int) -> None:
    made = await enqueue(conn, 10, due="-1 s")
    other = await Database(dsn).connect()
    async with conn.transaction():
        first = ids(await claim(conn, pool, 4))
        async with other.transaction():
            second = ids(await asyncio.wait_for(claim(other, pool, 4, sessions=[2]), 20))
    await other.close()
    assert (first, second) == (made[:4], made[4:8])
    assert ids(await claim(conn, pool)) == made[8:]


async def test_many_claimers_at_once_take_each_task_once(dsn: str, conn: Connection, pool: int) -> None:
    made = await enqueue(conn, 400)
    others = [await Database(dsn).connect() for _ in range(4)]

    async def drain(conn: Connection, session: int) -> list[int]:
        taken: list[int] = []
        while batch := ids(await claim(conn, pool, 7, sessions=[session])):
            taken += batch
        return taken

    taken = await asyncio.gather(*(drain(other, number) for number, other in enumerate(others)))
    for other in others:
        await other.close()
    assert sorted(task for each in taken for task in each) == made


async def test_a_claimer_that_rolls_back_leaves_its_tasks_to_others(conn: Connection, pool: int) -> None:
    made = await enqueue(conn, 3)
    with pytest.raises(ZeroDivisionError):
        async with conn.transaction():
            await claim(conn, pool)
            raise ZeroDivisionError
    assert ids(await claim(conn, pool)) == made


# ── floors ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_claim_starts_at_its_floor_and_takes_the_floor_itself(conn: Connection, pool: int) -> None:
    made = await enqueue(conn, 3, due="-1 h")
    high = await enqueue(conn, due="-2 h", priority=9)
    first = await claim(conn, pool, 10)
    await conn.execute("update mainspring.task set state = 1, session = null")
    at = {armed.task: armed.fire_at for armed in tasks(first)}
    floors = list(FROM_BOTTOM)
    floors[PRIORITY_LEVELS.index(5)] = (at[made[1]], made[1])
    assert ids(await claim(conn, pool, floors=floors)) == [*high, *made[1:]]


async def test_the_position_of_a_claim_is_its_last_task_of_each_level(conn: Connection, pool: int) -> None:
    normal, high = await enqueue(conn, 5, due="-1 h"), await enqueue(conn, 3, priority=9)
    found = await claim(conn, pool, 6, sessions=[1, 2])
    assert {priority: id for priority, (_, id) in found.positions.items()} == {9: high[-1], 5: normal[2]}


async def test_what_lies_below_a_floor_is_a_straggler(conn: Connection, pool: int) -> None:
    old = await enqueue(conn, 2, due="-1 h")
    await enqueue(conn, due="-1 min")
    now = float(await conn.fetchval("select extract(epoch from mainspring.now())"))
    floors: list[Floor] = [(now - 600, 0)] * len(PRIORITY_LEVELS)
    [(_, priority, position)] = await claim_order.stragglers(conn, OWNER, {pool: floors})
    assert (priority, position[1]) == (5, old[0])
    floors[PRIORITY_LEVELS.index(5)] = position
    assert ids(await claim(conn, pool, 2, floors=floors)) == old, "a lowered floor finds it"
    assert await claim_order.stragglers(conn, OWNER, {pool: floors}) == []
    assert await claim_order.stragglers(conn, OWNER, {pool: FROM_BOTTOM}) == []


# ── give back, unanswered, compact ──────────────────────────────────────────────────────────────


async def test_giving_back_costs_no_attempt_and_keeps_the_place_in_the_line(conn: Connection, pool: int) -> None:
    made = await enqueue(conn, 2, due="-1 h")
    before = [dict(await row(conn, task)) for task in made]
    first = tasks(await claim(conn, pool))
    assert await claims.give_back(conn, made, [armed.token for armed in first]) == 2
    for task, was in zip(made, before, strict=True):
        assert dict(await row(conn, task)) | {"token": None} == was
    assert [armed.attempt for armed in tasks(await claim(conn, pool))] == [1, 1]


async def test_giving_back_needs_the_token_and_a_task_that_has_not_started(conn: Connection, pool: int) -> None:
    await enqueue(conn, 2)
    first, second = tasks(await claim(conn, pool))
    await conn.execute("update mainspring.task set state = 3 where id = $1", second.task)
    assert await claims.give_back(conn, [first.task, second.task], [first.token - 1, second.token]) == 0
    assert await claims.give_back(conn, [first.task], [first.token]) == 1
    assert await claims.give_back(conn, [first.task], [first.token]) == 0


async def test_a_claim_without_an_answer_is_found_with_what_is_still_unstarted(conn: Connection, pool: int) -> None:
    await enqueue(conn, 6)
    known = await claim(conn, pool, 2, sessions=[7])
    lost = await claim(conn, pool, 3, sessions=[7])
    await claim(conn, pool, 1, sessions=[8])
    running = tasks(lost)[0].task
    await conn.execute("update mainspring.task set state = 3 where id = $1", running)
    found = await claims.unanswered(conn, known.batches)
    assert found.tasks == {7: tasks(lost)[1:]}
    assert found.batches == lost.batches
    assert (await claims.unanswered(conn, lost.batches)).size == 0
    assert (await claims.unanswered(conn, {})).size == 0
    assert (await claims.unanswered(conn, {7: 0})).size == 4


async def test_compacting_keeps_what_is_held_and_later_batches(conn: Connection, pool: int) -> None:
    await enqueue(conn, 8)
    first, second, third = [await claim(conn, pool, 2, sessions=[7]) for _ in range(3)]
    idle = await claim(conn, pool, 2, sessions=[8])
    held = [ids(first)[0], ids(second)[1]]
    await claims.compact(conn, {(7, second.batches[7]): held, (8, idle.batches[8]): []})
    rows = await conn.fetch("select session, batch, tasks from mainspring.claim order by session, batch")
    assert [tuple(row) for row in rows] == [
        (7, second.batches[7], held),
        (7, third.batches[7], ids(third)),
        (8, idle.batches[8], []),
    ]
