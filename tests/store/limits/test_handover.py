"""Hand-over: the slots of tasks that end go to the next ones in the same statement, in the order of a release."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from tests.cluster import OWNER, own
from tests.store.limits.test_release import claim, define_job, ending, in_lanes, settle, slots, submit

from mainspring.model.messages import Armed
from mainspring.model.tasks.states import TaskState
from mainspring.store.limits import handover, release
from mainspring.store.limits.handover import HandedOver
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import claims, partitions, transitions

SESSION = 1
MANY = 1000  # places


async def pools(conn: Connection) -> list[int]:
    """Those that claims serve."""
    return [row["id"] for row in await conn.fetch("select id from mainspring.pool where target is null")]


async def end(conn: Connection, armed: Sequence[Armed], places: int = MANY) -> HandedOver:
    """End these with a hand-over that offers so many places for each pool."""
    offered = {pool: [SESSION] * places for pool in await pools(conn)} if places else {}
    return await partitions.write(conn, lambda: handover.finish(conn, OWNER, list(map(ending, armed)), offered))


def claimed(handed_over: HandedOver) -> dict[int, Armed]:
    return {armed.task: armed for armed in handed_over.claim.tasks.get(SESSION, [])}


async def started(conn: Connection) -> dict[int, Armed]:
    """What a release and a claim start."""
    await settle(conn)
    return await claim(conn)


class Hints:
    """The hints that reach servers."""

    def __init__(self) -> None:
        self.payloads: list[str] = []

    async def listen(self, conn: Connection) -> None:
        await conn.add_listener("mainspring", lambda *given: self.payloads.append(given[3]))

    async def since(self, conn: Connection) -> list[str]:
        """Those that the statements so far have sent."""
        await conn.execute("select 1")
        await asyncio.sleep(0)
        payloads, self.payloads = self.payloads, []
        return payloads


@pytest.fixture
async def hints(dsn: str, conn: Connection) -> Hints:  # `dsn`: a database of its own, where statements commit
    hints = Hints()
    await hints.listen(conn)
    return hints


# ── slots of a job ──────────────────────────────────────────────────────────────────────────────


async def test_the_slots_of_those_that_end_go_to_the_first_that_wait(conn: Connection, hints: Hints) -> None:
    await define_job(conn, max_running=3)
    ids = await submit(conn, count=8)
    held = await started(conn)
    await hints.since(conn)
    before = await slots(conn)
    handed_over = await end(conn, [held[ids[0]], held[ids[2]]])
    assert len(handed_over.ended) == 2
    assert handed_over.released == []
    assert await slots(conn) == {ids[1]: before[ids[1]], ids[3]: before[ids[0]], ids[4]: before[ids[2]]}
    assert await hints.since(conn) == [], "no loop has anything to do"
    row = await conn.fetchrow("select * from mainspring.task where id = $1", ids[3])
    armed = claimed(handed_over)[ids[3]]
    assert (row["state"], row["session"], row["token"], row["attempt"]) == (2, SESSION, armed.token, 1)
    assert row["pool"] in await pools(conn)
    assert row["gate"] not in await pools(conn)
    noted = await conn.fetchval(
        "select tasks from mainspring.claim where batch = $1", armed.token // claims.BATCH_TOKENS
    )
    assert sorted(noted) == ids[3:5]
    assert await settle(conn) == [], "there is no room"


async def test_they_end_like_any_others(conn: Connection) -> None:
    await define_job(conn, max_running=1)
    ids = await submit(conn, count=3)
    armed = (await started(conn))[ids[0]]
    for id in ids[1:]:
        [armed] = claimed(await end(conn, [armed])).values()
        assert armed.task == id
    assert len((await end(conn, [armed])).ended) == 1
    assert await slots(conn) == {}
    rows = await conn.fetch("select id, state, attempt from mainspring.task_history order by id")
    assert [tuple(row) for row in rows] == [(id, TaskState.SUCCEEDED, 1) for id in ids]


async def test_the_more_important_and_then_the_older_goes_first(conn: Connection) -> None:
    await define_job(conn, max_running=1)
    [first] = await submit(conn)
    armed = (await started(conn))[first]
    low = await submit(conn, priority="low")
    normal = await submit(conn, count=2)
    critical = await submit(conn, priority="critical")
    order = []
    while successors := claimed(await end(conn, [armed])):
        [armed] = successors.values()
        order.append(armed.task)
    assert order == [*critical, *normal, *low]


async def test_a_task_that_is_not_due_does_not_go(conn: Connection, hints: Hints) -> None:
    await define_job(conn, max_running=1)
    [first] = await submit(conn)
    armed = (await started(conn))[first]
    await conn.execute("select mainspring.enqueue('job', delay => interval '1 hour')")
    await hints.since(conn)
    assert claimed(await end(conn, [armed])) == {}
    assert [hint.split()[0] for hint in await hints.since(conn)] == ["gate"]


@pytest.mark.parametrize(("limit", "goes"), [(3, False), (4, True), (9, True), (2, False)])
async def test_a_changed_limit_counts_at_once(conn: Connection, limit: int, goes: bool) -> None:
    await define_job(conn, max_running=5)
    ids = await submit(conn, count=9)
    held = await started(conn)
    await transitions.finish(conn, [ending(held[ids[0]])])  # slot 0 is free, slots 1 to 4 are held
    await define_job(conn, max_running=limit)
    # With a limit of 4, slot 4 is the only one beyond it.
    handed_over = await end(conn, [held[ids[4]] if limit == 4 else held[ids[1]]])
    if limit == 4:
        assert claimed(handed_over) == {}, "its slot is beyond the limit"
        assert await settle(conn) == [ids[5]]
        handed_over = await end(conn, [held[ids[2]]])
    assert bool(claimed(handed_over)) == goes
    await settle(conn)
    assert len(await slots(conn)) == max(limit, 3) if limit < 9 else 9


async def test_the_first_with_a_key_of_its_own_and_those_behind_it_are_left_to_the_release(
    conn: Connection, hints: Hints
) -> None:
    await define_job(conn, max_running=3)
    ids = await submit(conn, count=4)
    held = await started(conn)
    await submit(conn, concurrency_key="k")
    last = await submit(conn)
    await hints.since(conn)
    handed_over = await end(conn, [held[id] for id in ids[:3]])
    assert list(claimed(handed_over)) == [ids[3]]
    assert [hint.split()[0] for hint in await hints.since(conn)] == ["gate"]
    assert (await settle(conn))[-1:] == last
    assert len(await slots(conn)) == 3


@pytest.mark.parametrize(
    "options", [{"max_running": 2, "rate": "1000/second"}, {"max_running": 2, "concurrency_key": "{k}"}]
)
async def test_where_a_second_limit_counts_the_slot_is_left_to_the_release(
    conn: Connection, hints: Hints, options: dict[str, Any]
) -> None:
    await define_job(conn, **options)
    ids = [id for k in range(4) for id in await submit(conn, args=f'{{"k": {k}}}')]
    while len(held := await started(conn)) < 2:
        pass
    await hints.since(conn)
    assert claimed(await end(conn, [held[ids[0]]])) == {}
    assert "gate" in [hint.split()[0] for hint in await hints.since(conn)]
    assert len(await slots(conn)) == 1
    assert await settle(conn) == [ids[2]]


# ── slots of a key ──────────────────────────────────────────────────────────────────────────────


async def test_the_key_goes_to_the_first_that_is_parked_for_it(conn: Connection, hints: Hints) -> None:
    await define_job(conn, concurrency_key="{k}")
    a = await submit(conn, count=3, args='{"k": "a"}')
    b = await submit(conn, count=2, args='{"k": "b"}')
    held = await started(conn)
    assert sorted(held) == [a[0], b[0]]
    await hints.since(conn)
    handed_over = await end(conn, list(held.values()))
    assert sorted(claimed(handed_over)) == [a[1], b[1]]
    assert await slots(conn) == {a[1]: (None, 0), b[1]: (None, 0)}
    assert await hints.since(conn) == []
    assert await in_lanes(conn) == [a[2]]


async def test_of_those_parked_the_more_important_goes_first(conn: Connection) -> None:
    await define_job(conn, concurrency_key="k")
    ids = await submit(conn, count=3)
    high = await submit(conn, priority="high")
    armed = (await started(conn))[high[0]]
    late = await submit(conn, priority="critical")
    assert await settle(conn) == []
    order = []
    while successors := claimed(await end(conn, [armed])):
        [armed] = successors.values()
        order.append(armed.task)
    assert order == [*late, *ids]


async def test_a_more_important_task_that_waits_at_the_gate_is_not_passed_over(conn: Connection) -> None:
    await define_job(conn, concurrency_key="k")
    ids = await submit(conn, count=3)
    armed = (await started(conn))[ids[0]]
    critical = await submit(conn, priority="critical")  # no release has read it
    assert claimed(await end(conn, [armed])) == {}
    assert await settle(conn) == critical


async def test_a_task_of_another_key_that_came_later_does_not_hold_it_up(conn: Connection) -> None:
    await define_job(conn, concurrency_key="{k}")
    ids = await submit(conn, count=2, args='{"k": "a"}')
    armed = (await started(conn))[ids[0]]
    await submit(conn, args='{"k": "b"}')
    assert list(claimed(await end(conn, [armed]))) == [ids[1]]


async def test_a_key_with_several_slots_passes_each_on(conn: Connection) -> None:
    await define_job(conn, concurrency_key="k", concurrency_limit=3)
    ids = await submit(conn, count=7)
    held = await started(conn)
    assert sorted(claimed(await end(conn, [held[ids[0]], held[ids[2]]]))) == ids[3:5]
    assert sorted(key_slot or 0 for _, key_slot in (await slots(conn)).values()) == [0, 1, 2]


async def test_each_job_follows_its_own_limit_of_a_key_that_they_share(conn: Connection) -> None:
    await define_job(conn, "wide", concurrency_key="k", concurrency_limit=2)
    await define_job(conn, "narrow", concurrency_key="k")
    wide = await submit(conn, "wide", count=2)
    held = await started(conn)
    narrow = await submit(conn, "narrow")
    assert await settle(conn) == []
    assert claimed(await end(conn, [held[wide[0]]])) == {}, "the other slot of the key is held"
    assert await settle(conn) == []
    assert claimed(await end(conn, [held[wide[1]]])) == {}, "its slot, the second, is beyond the limit of the other job"
    assert await settle(conn) == narrow


async def test_a_key_of_a_submission_passes_on_as_well(conn: Connection) -> None:
    await define_job(conn)
    ids = await submit(conn, count=3, concurrency_key="k")
    armed = (await started(conn))[ids[0]]
    assert list(claimed(await end(conn, [armed]))) == [ids[1]]


async def test_a_task_whose_key_is_another_by_now_is_left_to_the_release(conn: Connection) -> None:
    await define_job(conn, concurrency_key="{k}")
    ids = await submit(conn, count=2, args='{"k": "a"}')
    armed = (await started(conn))[ids[0]]
    await define_job(conn, concurrency_key="new:{k}")
    assert claimed(await end(conn, [armed])) == {}
    assert await settle(conn) == [ids[1]]
    assert await conn.fetchval("select concurrency_key from mainspring.task where id = $1", ids[1]) == "new:a"


async def test_a_key_under_a_rate_is_left_to_the_release(conn: Connection) -> None:
    await define_job(conn, concurrency_key="k", rate="1/hour", burst=1, rate_per="key")
    ids = await submit(conn, count=2)
    armed = (await started(conn))[ids[0]]
    assert claimed(await end(conn, [armed])) == {}
    assert await settle(conn) == [], "an hour has not passed"


async def test_a_key_that_no_task_is_parked_for_wakes_the_gate(conn: Connection, hints: Hints) -> None:
    await define_job(conn, concurrency_key="k")
    [id] = await submit(conn)
    armed = (await started(conn))[id]
    await submit(conn)  # no release has read it
    await hints.since(conn)
    assert claimed(await end(conn, [armed])) == {}
    assert [hint.split()[0] for hint in await hints.since(conn)] == ["gate"]


# ── who gets them ───────────────────────────────────────────────────────────────────────────────


async def test_tasks_of_other_servers_segments_get_the_slot_and_are_claimed_there(
    conn: Connection, hints: Hints
) -> None:
    await define_job(conn, max_running=2)
    ids = await submit(conn, count=4)
    held = await started(conn)
    other = UUID(int=7)
    await conn.execute(
        "insert into mainspring.server (id, name, version, status) values ($1, 'other', '0', 'active')", other
    )
    await own(conn, other, [ids[2] % 100])
    await hints.since(conn)
    handed_over = await end(conn, [held[id] for id in ids[:2]])
    assert list(claimed(handed_over)) == [ids[3]]
    assert [each.position[1] for each in handed_over.released] == [ids[2]]
    assert sorted(await slots(conn)) == ids[2:]
    [hint] = await hints.since(conn)
    assert hint.split()[0] == "due"
    assert hint.split()[-1] == str(ids[2])
    floors = [(0.0, 0)] * 10
    pool = handed_over.released[0].pool
    assert (await claims.claim(conn, other, pool, [2], 10, floors, ahead=0.0)).size == 1


@pytest.mark.parametrize("places", [0, 1])
async def test_no_more_are_claimed_than_there_are_places(conn: Connection, places: int) -> None:
    await define_job(conn, max_running=3)
    ids = await submit(conn, count=6)
    held = await started(conn)
    handed_over = await end(conn, list(held.values()), places)
    assert sorted(claimed(handed_over)) == ids[3 : 3 + places]
    assert [each.position[1] for each in handed_over.released] == ids[3 + places :]
    assert sorted(await claim(conn)) == ids[3 + places :]


async def test_each_session_gets_one_task_for_each_time_it_is_named(conn: Connection) -> None:
    await define_job(conn, max_running=3)
    ids = await submit(conn, count=6)
    held = await started(conn)
    [pool] = await pools(conn)
    places: Mapping[int, Sequence[int]] = {pool: [8, 9, 8]}
    handed_over = await handover.finish(conn, OWNER, [ending(held[id]) for id in ids[:3]], places)
    tasks = {session: [armed.task for armed in its] for session, its in handed_over.claim.tasks.items()}
    assert tasks == {8: [ids[3], ids[5]], 9: [ids[4]]}
    tokens = [armed.token for its in handed_over.claim.tasks.values() for armed in its]
    assert len(set(tokens)) == 3


async def test_a_stale_or_repeated_report_hands_nothing_over(conn: Connection) -> None:
    await define_job(conn, max_running=1)
    ids = await submit(conn, count=3)
    armed = (await started(conn))[ids[0]]
    stale = Armed(armed.task, armed.token - 1, armed.job, 1, 0.0, "{}")
    assert await end(conn, [stale]) == ([], ({}, {}, 0), [])
    assert list(claimed(await end(conn, [armed]))) == [ids[1]]
    assert await end(conn, [armed]) == ([], ({}, {}, 0), [])
    assert sorted(await slots(conn)) == [ids[1]]


async def test_tasks_without_a_limit_end_in_the_same_statement(conn: Connection) -> None:
    await define_job(conn, "limited", max_running=1)
    await define_job(conn, "plain")
    limited = await submit(conn, "limited", count=2)
    await submit(conn, "plain")
    await settle(conn)
    handed_over = await end(conn, list((await claim(conn)).values()))
    assert len(handed_over.ended) == 2
    assert list(claimed(handed_over)) == [limited[1]]


async def test_what_is_done_later_in_its_transaction_wakes_the_next_as_usual(conn: Connection, hints: Hints) -> None:
    await define_job(conn, max_running=2)
    ids = await submit(conn, count=2)
    held = await started(conn)
    await hints.since(conn)
    async with conn.transaction():
        await end(conn, [held[ids[0]]])
        await conn.execute("delete from mainspring.task where id = $1", ids[1])
    assert [hint.split()[0] for hint in await hints.since(conn)] == ["gate"]
    [id] = await submit(conn)
    armed = (await started(conn))[id]
    await hints.since(conn)
    async with conn.transaction():
        await end(conn, [Armed(armed.task, 0, armed.job, 1, 0.0, "{}")])  # stale: the setting must not stay
        await conn.execute("delete from mainspring.task where id = $1", id)
    assert [hint.split()[0] for hint in await hints.since(conn)] == ["gate"]


# ── many at once ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"max_running": 7}, 7),
        ({"concurrency_key": "{k}"}, 5),
        ({"concurrency_key": "{k}", "concurrency_limit": 2}, 10),
    ],
)
async def test_no_limit_is_exceeded_whatever_runs_at_once(
    database: Database, conn: Connection, options: dict[str, Any], most: int
) -> None:
    """Three recorders that hand over, one that does not, and two that release, until nothing is left."""
    await define_job(conn, **options)
    for k in range(5):
        await submit(conn, count=60, args=f'{{"k": {k}}}')
    gate = await conn.fetchval("select pool from mainspring.job")
    [pool] = await pools(conn)
    await partitions.make_ahead(conn, 1)
    left = 300
    seen: list[int] = []

    async def recording(session: int, *, hands_over: bool) -> None:
        nonlocal left
        line = await database.connect()
        try:
            held: list[Armed] = []
            while left:
                if not held:
                    floors = [(0.0, 0)] * 10
                    claim = await claims.claim(line, OWNER, pool, [session], 3, floors, ahead=0.0)
                    held = claim.tasks.get(session, [])
                endings = list(map(ending, held))
                if hands_over:
                    handed_over = await handover.finish(line, OWNER, endings, {pool: [session] * 3})
                    left -= len(handed_over.ended)
                    held = handed_over.claim.tasks.get(session, [])
                else:
                    ended = await transitions.finish(line, endings)
                    left -= len(ended)
                    held = []
        finally:
            await line.close()

    async def releasing() -> None:
        line = await database.connect()
        try:
            while left:
                await release.release(line, gate, 1000, ahead=0.0, beyond=20)
        finally:
            await line.close()

    async def watching() -> None:
        while left:
            seen.append(len(await slots(conn)))

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for session in (1, 2, 3):
            group.create_task(recording(session, hands_over=True))
        group.create_task(recording(4, hands_over=False))
        group.create_task(releasing())
        group.create_task(releasing())
        group.create_task(watching())
    assert max(seen) == most
    assert await conn.fetchval("select count(*) from mainspring.task_history") == 300
