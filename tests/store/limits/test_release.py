"""Release: which tasks get slots, which are parked, and which return; each step called by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.cluster import OWNER
from tests.conftest import eventually
from tests.schedules import set_clock

from mainspring.model.messages import Armed, Ending
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.define_job import Options, define
from mainspring.model.tasks.jobs import PRIORITY_LEVELS, Definition, Python
from mainspring.model.tasks.pools import PARKED
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.store.limits import parked, release
from mainspring.store.maintenance import retention
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import claims, dependencies, jobs, partitions, tasks, transitions


async def define_job(conn: Connection, name: str = "job", **options: Any) -> None:
    given: Options = options  # type: ignore[assignment]
    await jobs.register(conn, {name: define(Python(name), given)})


async def submit(conn: Connection, job: str = "job", count: int = 1, **given: Any) -> list[int]:
    """So many tasks with the same arguments."""
    names = [f"{name} => ${number}" for number, name in enumerate(given.keys() - {"args"}, 4)]
    sql = f"select mainspring.enqueue_many({', '.join(['$1', 'array_fill($2::jsonb, array[$3::int])', *names])})"
    values = [given[name] for name in given.keys() - {"args"}]
    ids: list[int] = await conn.fetchval(sql, job, given.get("args", "{}"), count, *values)
    return ids


async def step(conn: Connection, *, ahead: float = 0.0, beyond: int = 0) -> list[int]:
    """Once at every gate; returns the tasks that went on."""
    gone: list[int] = []
    for gate in await release.look(conn):
        passed = await release.release(conn, gate, 1000, ahead=ahead, beyond=beyond)
        assert not passed.is_busy
        gone += [released.position[1] for released in passed.released]
    return gone


async def settle(conn: Connection, **options: Any) -> list[int]:
    """Until nothing more goes on."""
    gone: list[int] = []
    while found := await step(conn, beyond=100, **options):
        gone += found
    return gone


async def claim(conn: Connection) -> dict[int, Armed]:
    """All that claims can find, of every pool that they serve."""
    floors = [BOTTOM] * len(PRIORITY_LEVELS)
    return {
        armed.task: armed
        for pool in await jobs.pools(conn)
        for armed in (await claims.claim(conn, OWNER, pool, [1], 1000, floors, ahead=60.0)).tasks.get(1, [])
    }


def ending(armed: Armed, state: TaskState = TaskState.SUCCEEDED) -> Ending:
    return Ending(armed.task, armed.token, armed.job, armed.attempt, state, 1.0, 2.0)


async def end(conn: Connection, armed: Sequence[Armed]) -> None:
    assert len(await transitions.finish(conn, [ending(one) for one in armed])) == len(armed)


async def slots(conn: Connection) -> dict[int, tuple[int | None, int | None]]:
    rows = await conn.fetch(
        "select id, job_slot, key_slot from mainspring.task where job_slot + 1 > 0 or key_slot >= 0"
    )
    return {row["id"]: (row["job_slot"], row["key_slot"]) for row in rows}


async def in_lanes(conn: Connection) -> list[int]:
    rows = await conn.fetch(f"select id from mainspring.task where pool = {PARKED} order by id")
    return [row["id"] for row in rows]


async def waits_for_a_lock(conn: Connection) -> None:
    """Until some other connection to this database waits for what this one has."""

    async def waits() -> Any:
        return await conn.fetchval(
            "select exists (select from pg_stat_activity"
            " where datname = current_database() and pg_backend_pid() = any (pg_blocking_pids(pid)))"
        )

    await eventually(waits)


# ── how many at once ────────────────────────────────────────────────────────────────────────────


async def test_no_claim_finds_a_task_of_a_limited_job_before_it_has_a_slot(conn: Connection) -> None:
    await define_job(conn, max_running=2)
    ids = await submit(conn, count=5)
    assert await claim(conn) == {}
    assert await settle(conn) == ids[:2]
    assert list(await claim(conn)) == ids[:2]
    assert await slots(conn) == {ids[0]: (0, None), ids[1]: (1, None)}


async def test_each_end_lets_one_more_go_on(conn: Connection) -> None:
    await define_job(conn, max_running=2)
    ids = await submit(conn, count=4)
    await settle(conn)
    held = await claim(conn)
    await end(conn, [held[ids[1]]])
    assert await settle(conn) == [ids[2]]
    assert await slots(conn) == {ids[0]: (0, None), ids[2]: (1, None)}
    await end(conn, [held[ids[0]], (await claim(conn))[ids[2]]])
    assert await settle(conn) == [ids[3]]


async def test_the_urgent_and_the_older_go_first(conn: Connection) -> None:
    await define_job(conn, max_running=1)
    [normal] = await submit(conn)
    [older] = await submit(conn, run_at=await conn.fetchval("select mainspring.now() - interval '1 hour'"))
    [urgent] = await submit(conn, priority="high")
    order = []
    for _ in range(3):
        order += await settle(conn)
        await end(conn, list((await claim(conn)).values()))
    assert order == [urgent, older, normal]


async def test_one_that_is_due_soon_takes_a_slot_that_nothing_due_needs(conn: Connection) -> None:
    await define_job(conn, max_running=1)
    soon = await conn.fetchval("select mainspring.now() + interval '1 second'")
    [ahead] = await submit(conn, run_at=soon)
    assert await settle(conn) == []
    assert await settle(conn, ahead=2.0) == [ahead]
    assert (await claim(conn))[ahead].fire_at == pytest.approx(soon.timestamp())


async def test_a_limit_that_changes_counts_at_once(conn: Connection) -> None:
    await define_job(conn, max_running=1)
    ids = await submit(conn, count=6)
    assert await settle(conn) == ids[:1]
    await define_job(conn, max_running=4)
    assert await settle(conn) == ids[1:4]
    await define_job(conn, max_running=2)
    held = await claim(conn)
    await end(conn, [held[id] for id in ids[:2]])
    assert await settle(conn) == [], "two still run"
    await end(conn, [held[ids[2]]])
    assert await settle(conn) == [ids[4]]
    await define_job(conn)
    assert await settle(conn) == [ids[5]]


async def test_tasks_that_wait_where_their_job_no_longer_leads_are_found(conn: Connection) -> None:
    await define_job(conn, max_running=1)
    old = await submit(conn, count=2)
    await define_job(conn, max_running=1, requires={"zone": "eu"})
    new = await submit(conn)
    assert len(await release.look(conn)) == 2
    gone = await settle(conn)
    for _ in range(2):
        await end(conn, list((await claim(conn)).values()))
        gone += await settle(conn)
    assert sorted(gone) == old + new
    pools = await conn.fetchval("select array_agg(pool) from mainspring.task_history")
    assert await conn.fetchval("select count(*) from mainspring.pool where target is not null and id = any($1)", pools)


@pytest.mark.parametrize("again", ["retry", "give back"])
async def test_a_retry_gives_its_slot_up_and_a_give_back_keeps_it(conn: Connection, again: str) -> None:
    await define_job(conn, max_running=1, concurrency_key="k")
    first, second = await submit(conn, count=2)
    await settle(conn)
    armed = (await claim(conn))[first]
    if again == "give back":
        assert await claims.give_back(conn, [armed.task], [armed.token]) == 1
        assert (await slots(conn), await settle(conn)) == ({first: (0, 0)}, [])
        assert list(await claim(conn)) == [first]
        return
    verdict = Again(ending(armed, TaskState.FAILED), 60.0, costs=True)
    assert len(await transitions.retry(conn, [verdict])) == 1
    assert await slots(conn) == {}
    assert await settle(conn) == [second]
    assert list(await claim(conn)) == [second]
    await end(conn, [])


async def test_two_servers_never_give_more_slots_than_there_are(dsn: str, conn: Connection) -> None:
    await define_job(conn, max_running=7, concurrency_key="{k}", concurrency_limit=2)
    for k in range(5):
        await submit(conn, count=20, args=f'{{"k": {k}}}')
    [gate] = await release.look(conn)
    others = [await Database(dsn).connect() for _ in range(4)]
    done = 0
    while done < 100:
        await asyncio.gather(*(release.release(other, gate, 50, ahead=0.0, beyond=20) for other in others))
        held = await conn.fetch("select concurrency_key, count(*) from mainspring.task where key_slot >= 0 group by 1")
        assert sum(row["count"] for row in held) <= 7
        assert all(row["count"] <= 2 for row in held)
        claimed = list((await claim(conn)).values())
        await end(conn, claimed)
        done += len(claimed)
    for other in others:
        await other.close()


# ── keys ────────────────────────────────────────────────────────────────────────────────────────


async def test_tasks_with_one_key_run_one_at_a_time_in_their_order(conn: Connection) -> None:
    await define_job(conn, concurrency_key="shop:{shop}")
    low, normal = await submit(conn, count=2, args='{"shop": 7}')
    [other] = await submit(conn, args='{"shop": 8}')
    assert sorted(await settle(conn)) == [low, other]
    [high] = await submit(conn, args='{"shop": 7}', priority="high")
    assert await settle(conn) == []
    assert await in_lanes(conn) == [normal, high]
    order = []
    for _ in range(3):
        claimed = await claim(conn)
        order += [id for id in claimed if id != other]
        await end(conn, list(claimed.values()))
        await settle(conn)
    assert order == [low, high, normal]


async def test_a_key_of_its_own_is_enough(conn: Connection) -> None:
    await define_job(conn)
    [first] = await submit(conn, concurrency_key="shop:7")
    second = await conn.fetchval("select mainspring.enqueue('job', concurrency_key => 'shop:7')")
    [free] = await submit(conn)
    assert await settle(conn) == [first]
    assert sorted(await claim(conn)) == [first, free]
    assert (await tasks.get(conn, second)).concurrency_key == "shop:7"


async def test_jobs_of_a_namespace_share_their_keys_and_others_do_not(conn: Connection) -> None:
    await define_job(conn, "one", concurrency_key="k")
    await define_job(conn, "two", concurrency_key="{k}")
    await jobs.register(conn, {"far": define(Python("far"), {"concurrency_key": "k"})}, namespace="far")
    [first] = await submit(conn, "one")
    [second] = await submit(conn, "two", args='{"k": "k"}')
    [far] = await submit(conn, "far", namespace="far")
    assert sorted(await settle(conn)) == [first, far]
    assert (await tasks.get(conn, far)).concurrency_key == "k"
    await end(conn, [(await claim(conn))[first]])
    assert await settle(conn) == [second]


async def test_two_concurrent_releases_give_one_key_once(dsn: str, conn: Connection) -> None:
    await define_job(conn, "one", concurrency_key="k")
    await define_job(conn, "two", concurrency_key="k")
    [first] = await submit(conn, "one")
    [second] = await submit(conn, "two")
    one, two = await release.look(conn)
    other = await Database(dsn).connect()
    async with conn.transaction():
        assert len((await release.release(conn, one, 10, ahead=0.0)).released) == 1
        late = asyncio.create_task(release.release(other, two, 10, ahead=0.0))
        await waits_for_a_lock(conn)
    assert (await late).is_busy
    assert await settle(other) == []
    assert (list(await slots(conn)), await in_lanes(conn)) == ([first], [second])
    await other.close()


async def test_no_task_is_parked_for_one_that_is_ending(dsn: str, conn: Connection) -> None:
    """Its end has looked for somebody in the lane, and will not look again."""
    await define_job(conn, concurrency_key="k")
    [first] = await submit(conn)
    await step(conn)
    [second] = await submit(conn)
    held = await claim(conn)
    other = await Database(dsn).connect()
    async with other.transaction():
        await end(other, [held[first]])
        assert await step(conn, beyond=10) == []
        assert await in_lanes(conn) == []
    assert await settle(conn) == [second]
    await other.close()


async def test_the_end_of_a_task_waits_for_a_release_that_parks_another_for_it(dsn: str, conn: Connection) -> None:
    await define_job(conn, concurrency_key="k")
    [first] = await submit(conn)
    await step(conn)
    [second] = await submit(conn)
    held = await claim(conn)
    other = await Database(dsn).connect()
    async with conn.transaction():
        await step(conn, beyond=10)
        assert await in_lanes(conn) == [second]
        ends = asyncio.create_task(end(other, [held[first]]))
        await waits_for_a_lock(conn)
    await ends
    assert await in_lanes(conn) == []
    assert await settle(conn) == [second]
    await other.close()


async def test_a_busy_key_with_thousands_of_tasks_hides_no_other_task(conn: Connection) -> None:
    await define_job(conn, concurrency_key="{k}", max_running=2)
    [first, *_] = await submit(conn, count=5000, args='{"k": "hot"}')
    [other] = await submit(conn, args='{"k": "cold"}')
    [gate] = await release.look(conn)
    gone: list[int] = []
    steps, beyond = 0, 0
    while len(gone) < 2:
        passed = await release.release(conn, gate, 1000, ahead=0.0, beyond=beyond)
        gone += [released.position[1] for released in passed.released]
        steps, beyond = steps + 1, min(1000, max(8, 4 * beyond))
    assert gone == [first, other]
    assert steps < 15
    assert len(await in_lanes(conn)) > 4000


async def test_a_sweep_finds_parked_tasks_that_were_not_woken(conn: Connection) -> None:
    await define_job(conn, concurrency_key="{k}")
    for k in "abc":
        await submit(conn, count=3, args=f'{{"k": "{k}"}}')
    await settle(conn)
    assert len(await in_lanes(conn)) == 6
    assert await parked.sweep(conn, "", 10) == (0, None), "every key is held"
    await conn.execute("update mainspring.task set key_slot = null where concurrency_key = 'b'")
    assert await parked.sweep(conn, "", 2) == (1, "b")
    assert await parked.sweep(conn, "b", 2) == (0, None)
    await define_job(conn, concurrency_key="{k}", concurrency_limit=2)
    assert (await parked.sweep(conn, "", 10)).moved == 3, "one more of a and of c, two of b less one at the gate"
    await define_job(conn)
    await parked.sweep(conn, "", 10)
    assert await in_lanes(conn) == [], "without a limit all of them come back"


@pytest.mark.parametrize(
    ("written", "args", "key"),
    [
        ("shop:{shop}", '{"shop": 7}', "shop:7"),
        ("{a}/{b}", '{"a": "{b}", "b": true}', "{b}/true"),
        ("{a}{b}", '{"a": [1, 2], "b": null}', "[1, 2]null"),
        ("plain", "{}", "plain"),
        ("{missing}-{region}", "{}", "-eu"),
        ("{a}", '{"a": "x\\ny"}', "x?y"),
        ("{a}", '{"a": "' + "é" * 201 + '"}', "é" * 160 + "#"),
    ],
)
async def test_a_key_is_made_of_its_template_and_the_arguments(
    conn: Connection, written: str, args: str, key: str
) -> None:
    found = await conn.fetchval('select mainspring.fill_key($1, $2, \'{"region": "eu"}\')', written, args)
    assert len(found) <= 200
    assert found[:161] == key


async def test_what_waits_can_be_cancelled_wherever_it_is(conn: Connection) -> None:
    await define_job(conn, max_running=1, concurrency_key="k")
    released, aside, waiting = await submit(conn, count=3)
    await step(conn)
    await conn.execute(f"update mainspring.task set pool = {PARKED}, gate = pool where id = $1", aside)
    await conn.execute("update mainspring.task set concurrency_key = 'k' where id = $1", aside)
    assert await tasks.cancel(conn, waiting) is TaskState.CANCELLED
    assert await tasks.cancel(conn, released) is TaskState.CANCELLED
    assert await settle(conn) == [aside], "its end freed the key and the slot"
    assert await tasks.cancel(conn, aside) is TaskState.CANCELLED
    assert await slots(conn) == {}


async def test_a_retry_by_hand_goes_back_to_the_gate_with_its_key(conn: Connection) -> None:
    await define_job(conn)
    [mine] = await submit(conn, concurrency_key="k")
    await settle(conn)
    armed = (await claim(conn))[mine]
    await transitions.finish(conn, [ending(armed, TaskState.FAILED)])
    [other] = await submit(conn, concurrency_key="k")
    await settle(conn)
    await tasks.run_again(conn, mine)
    assert list(await claim(conn)) == [other]
    assert await settle(conn) == []
    assert await in_lanes(conn) == [mine]


async def test_a_retry_by_hand_obeys_limits_that_came_since(conn: Connection) -> None:
    await define_job(conn)
    [mine] = await submit(conn)
    await transitions.finish(conn, [ending((await claim(conn))[mine], TaskState.FAILED)])
    await define_job(conn, max_running=1)
    await tasks.run_again(conn, mine)
    assert await claim(conn) == {}
    assert await settle(conn) == [mine]


async def test_the_gate_comes_after_what_a_task_waits_for(conn: Connection) -> None:
    await define_job(conn, max_running=1)
    [parent] = await submit(conn)
    child = await conn.fetchval("select mainspring.enqueue('job', after => $1)", [parent])
    await settle(conn)
    await end(conn, list((await claim(conn)).values()))
    assert await settle(conn) == []
    assert len(await dependencies.settle(conn, [parent])) == 1
    assert await claim(conn) == {}
    assert await settle(conn) == [child]


@pytest.mark.parametrize(("key", "says"), [("", "1 to 200"), ("x" * 201, "1 to 200"), ("a\nb", "control")])
async def test_a_bad_key_is_refused(conn: Connection, key: str, says: str) -> None:
    await define_job(conn)
    for function in ("enqueue('job'", "enqueue_many('job', '{}'"):
        with pytest.raises(asyncpg.PostgresError, match=f"concurrency_key: .*{says}"):
            await conn.execute(f"select mainspring.{function}, concurrency_key => $1)", key)
    assert await conn.fetchval("select count(*) from mainspring.task") == 0


async def test_a_broadcast_takes_no_key(conn: Connection) -> None:
    await define_job(conn, broadcast=True)
    with pytest.raises(asyncpg.PostgresError, match="concurrency_key: 'job' is a broadcast"):
        await submit(conn, concurrency_key="k")


async def test_the_end_of_an_ordinary_task_is_no_news_for_gates(dsn: str, conn: Connection) -> None:
    heard: list[object] = []
    listener = await Database(dsn).connect()
    await listener.add_listener("mainspring", lambda *said: heard.append(said[3]))
    await define_job(conn, "limited", max_running=1)
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await submit(conn)
    await end(conn, list((await claim(conn)).values()))
    await submit(conn, "limited")
    await settle(conn)
    await end(conn, list((await claim(conn)).values()))
    await listener.execute("select 1")
    await listener.close()
    gate, pool = await conn.fetchrow("select id, target from mainspring.pool where target is not null")
    assert heard[:4] == ["job", "job", "due", f"gate {gate}"]
    assert str(heard[4]).startswith(f"due {pool} 5 ")
    assert heard[5:] == [f"gate {gate}"]


# ── rates ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_rate_lets_a_burst_go_and_then_one_after_another(conn: Connection) -> None:
    await set_clock(conn, 0)
    await partitions.make_ahead(conn, days=1)
    await define_job(conn, rate="2/second", burst=3)
    await submit(conn, count=20)
    counts = []
    for half_seconds in (0, 0, 1, 2, 2, 4, 20, 20):
        await set_clock(conn, half_seconds / 2)
        counts.append(len(await step(conn)))
        await end(conn, list((await claim(conn)).values()))
    assert counts == [3, 0, 1, 1, 0, 2, 3, 0]


async def test_a_rate_tells_when_the_next_may_start(conn: Connection) -> None:
    await set_clock(conn, 0)
    await define_job(conn, rate="100/minute", burst=1)
    await submit(conn, count=2)
    [gate] = await release.look(conn)
    assert (await release.release(conn, gate, 10, ahead=0.0)).next_in == pytest.approx(0.6)
    await set_clock(conn, 0.4)
    passed = await release.release(conn, gate, 10, ahead=0.0)
    assert passed.released == []
    assert passed.next_in == pytest.approx(0.2)


async def test_what_no_agent_has_taken_counts_against_the_burst(conn: Connection) -> None:
    """After an hour without agents a burst starts, and not all that the rate would have allowed."""
    await set_clock(conn, 0)
    await define_job(conn, rate="10/second", burst=2)
    await submit(conn, count=100)
    assert len(await step(conn)) == 2
    await set_clock(conn, 3600)
    assert await step(conn) == []
    await claim(conn)
    assert len(await step(conn)) == 2


async def test_a_clock_that_is_set_back_does_not_stop_a_rate(conn: Connection) -> None:
    await set_clock(conn, 3600)
    await define_job(conn, rate="1/second", burst=2)
    await submit(conn, count=10, run_at=await conn.fetchval("select mainspring.now() - interval '2 hours'"))
    assert len(await step(conn)) == 2
    await claim(conn)
    await set_clock(conn, 0)
    assert len(await step(conn)) == 2
    await claim(conn)
    assert await step(conn) == []


async def test_each_key_has_a_rate_of_its_own(conn: Connection) -> None:
    await set_clock(conn, 0)
    await define_job(conn, rate="1/second", burst=2, rate_per="key", concurrency_key="{c}", concurrency_limit=None)
    ids = [await submit(conn, count=4, args=f'{{"c": "{c}"}}') for c in "ab"]
    assert sorted(await settle(conn)) == sorted(ids[0][:2] + ids[1][:2])
    assert await in_lanes(conn) == sorted(ids[0][2:] + ids[1][2:])
    moved, next_in = await parked.unpark_due(conn, 10)
    assert moved == 0
    assert next_in == pytest.approx(1.0)
    await claim(conn)
    await set_clock(conn, 1)
    assert (await parked.unpark_due(conn, 10))[0] == 4
    assert sorted(await settle(conn)) == sorted([ids[0][2], ids[1][2]])
    await set_clock(conn, 2)
    assert (await parked.unpark_due(conn, 10))[0] == 2
    assert sorted(await settle(conn)) == sorted([ids[0][3], ids[1][3]])


async def test_slots_of_a_rate_are_in_the_way_of_no_slot_of_a_limit(conn: Connection) -> None:
    await define_job(conn, max_running=3)
    await submit(conn, count=3)
    await settle(conn)
    await define_job(conn, rate="100/second", burst=10)
    await submit(conn, count=3)
    assert len(await settle(conn)) == 3


async def test_a_rate_holds_over_two_gates_of_one_job(conn: Connection) -> None:
    await set_clock(conn, 0)
    await define_job(conn, rate="1/second", burst=3)
    await submit(conn, count=2)
    await define_job(conn, rate="1/second", burst=3, requires={"zone": "eu"})
    await submit(conn, count=5)
    assert len(await settle(conn)) == 3


async def test_unused_rates_are_deleted(conn: Connection) -> None:
    await set_clock(conn, 0)
    await define_job(conn, rate="1/second", burst=5)
    await submit(conn, count=3)
    await settle(conn)
    assert await retention.delete(conn, "rates", 10, timedelta(days=1)) == 0
    await set_clock(conn, 100)
    assert await retention.delete(conn, "rates", 10, timedelta(days=1)) == 1
    assert await conn.fetchval("select count(*) from mainspring.throttle") == 0
