"""LimitsLoop: limits with jobs that run, on one server and on two."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.conftest import eventually
from tests.schedules import at, set_clock

import mainspring
from mainspring import App
from mainspring.model.tasks.claim_floors import Released
from mainspring.model.tasks.define_job import Options, define
from mainspring.model.tasks.jobs import Python
from mainspring.server.planning.limits import LimitsLoop
from mainspring.store.limits import parked, release
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs

Eventually = Callable[..., Awaitable[Any]]


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def limits_loop(database: Database, conn: Connection) -> LimitsLoop:
    return LimitsLoop(database, lambda _: 5.0, 5.0)


async def define_job(conn: Connection, **options: Any) -> None:
    given: Options = options  # type: ignore[assignment]
    await jobs.register(conn, {"job": define(Python("job"), given)})


async def submit(conn: Connection, count: int, **given: Any) -> list[int]:
    names = ", ".join(f"{name} => ${number}" for number, name in enumerate(given, 2))
    sql = f"select mainspring.enqueue_many('job', array_fill('{{}}'::jsonb, array[$1::int]){', ' * bool(given)}{names})"
    ids: list[int] = await conn.fetchval(sql, count, *given.values())
    return ids


async def test_where_nothing_waits_it_finds_nothing(conn: Connection, limits_loop: LimitsLoop) -> None:
    assert await limits_loop.step() == 0
    await define_job(conn, max_running=1)
    assert (await limits_loop.step(), await limits_loop.sweep()) == (0, 0)


@pytest.mark.parametrize(("lead", "ahead"), [(5.0, 2.0), (9.0, 6.0)])
async def test_a_slot_is_taken_as_early_as_a_slow_agent_needs(
    database: Database, conn: Connection, lead: float, ahead: float
) -> None:
    await set_clock(conn, 0)
    await define_job(conn, max_running=1)
    gate = await conn.fetchval("select id from mainspring.pool where target is not null")
    loop = LimitsLoop(database, {gate: lead}.__getitem__, 5.0)
    await submit(conn, 1, run_at=at(100))
    await set_clock(conn, 100 - ahead - 0.1)
    assert await loop.step() == 0
    await set_clock(conn, 100 - ahead)
    assert await loop.step() == 1


async def test_it_tells_the_dispatcher_where_the_released_lie(conn: Connection, limits_loop: LimitsLoop) -> None:
    told: list[Released] = []
    limits_loop.on_released.connect(told.extend)
    await define_job(conn, max_running=2)
    ids = await submit(conn, 3, priority="high")
    assert await limits_loop.step() == 2
    real = await conn.fetchval("select id from mainspring.pool where target is null")
    assert [(r.pool, r.priority, r.position[1]) for r in told] == [(real, 7, id) for id in ids[:2]]
    assert await limits_loop.step() == 0


async def test_it_comes_back_when_a_rate_allows_the_next(conn: Connection, limits_loop: LimitsLoop) -> None:
    await define_job(conn, rate="20/second", burst=1)
    await submit(conn, 2)
    assert await limits_loop.step() == 1
    await conn.execute("update mainspring.task set state = 2 where job_slot is not null")
    limits_loop.wake.clear()
    assert await limits_loop.step() == 0
    async with asyncio.timeout(20):
        await limits_loop.wake.wait()
    assert await limits_loop.step() == 1


async def test_it_is_there_before_the_instant_of_one_that_waits(conn: Connection, limits_loop: LimitsLoop) -> None:
    await define_job(conn, max_running=1)
    await set_clock(conn, 0)
    await submit(conn, 1, run_at=at(2.1))
    limits_loop.wake.clear()
    assert await limits_loop.step() == 0
    async with asyncio.timeout(20):
        await limits_loop.wake.wait()
    await set_clock(conn, 0.2)
    assert await limits_loop.step() == 1


async def test_limits_that_are_lifted_free_those_who_stand_aside(conn: Connection, limits_loop: LimitsLoop) -> None:
    await define_job(conn, concurrency_key="k")
    await submit(conn, 5)
    while await limits_loop.step():
        pass
    assert await conn.fetchval("select count(*) from mainspring.task where key_slot is not null") == 1
    await define_job(conn)
    assert await limits_loop.sweep() == 4
    assert limits_loop.wake.is_set()
    await limits_loop.step()
    assert await conn.fetchval("select count(*) from mainspring.task where pool = gate") == 0


async def test_a_rate_of_a_key_goes_on_by_itself(conn: Connection, limits_loop: LimitsLoop) -> None:
    await set_clock(conn, 0)
    await define_job(conn, rate="1/second", rate_per="key", concurrency_key="k", concurrency_limit=None)
    await submit(conn, 3)
    for second in range(3):
        await set_clock(conn, second)
        while await limits_loop.step():
            pass
        assert await conn.fetchval("select count(*) from mainspring.task where job_slot >= 0") == second + 1
    assert await parked.sweep(conn, "", 10) == (0, None)


# ── which gates cost a statement ────────────────────────────────────────────────────────────────


@pytest.fixture
def statements(limits_loop: LimitsLoop, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements of the loop, by name."""
    said: list[str] = []
    for module, name in ((release, "look"), (release, "release"), (parked, "unpark_due")):
        real = getattr(module, name)

        def counting(*args: Any, _name: str = name, _real: Any = real, **options: Any) -> Any:
            said.append(_name)
            return _real(*args, **options)

        monkeypatch.setattr(module, name, counting)
    return said


async def many_full_gates(conn: Connection, count: int) -> dict[str, int]:
    """Jobs with one slot, taken, and a task that waits for it; returns their gates."""
    options: Options = {"max_running": 1}
    await jobs.register(conn, {f"job{n}": define(Python("job"), options) for n in range(count)})
    await conn.execute('select mainspring.enqueue_many(name, \'{"{}","{}"}\') from mainspring.job')
    gates = await conn.fetch("select name, pool from mainspring.job")
    return {row["name"]: row["pool"] for row in gates}


async def test_a_freed_slot_does_not_wait_for_gates_that_are_full(
    conn: Connection, limits_loop: LimitsLoop, statements: list[str]
) -> None:
    gates = await many_full_gates(conn, 500)
    assert await limits_loop.step() == 500
    await limits_loop.step()
    statements.clear()
    await conn.execute("""
        delete from mainspring.task where job_slot is not null
           and job_id = (select id from mainspring.job where name = 'job250')""")
    limits_loop.look_at(gates["job250"])  # the hint of the trigger
    assert await limits_loop.step() == 1
    assert statements == ["look", "release"]


async def test_a_look_at_500_full_gates_is_one_statement(
    conn: Connection, limits_loop: LimitsLoop, statements: list[str]
) -> None:
    await many_full_gates(conn, 500)
    await limits_loop.step()
    statements.clear()
    limits_loop.look_at_all()
    assert await limits_loop.step() == 0
    assert statements == ["unpark_due", "look"]


async def test_a_lost_hint_is_made_good_by_the_next_look_at_all(
    conn: Connection, limits_loop: LimitsLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many hints about other gates come."""
    gates = await many_full_gates(conn, 2)
    while await limits_loop.step():
        pass
    await conn.execute("delete from mainspring.task where job_slot is not null")
    limits_loop.look_at(gates["job1"])
    assert await limits_loop.step() == 1
    monkeypatch.setattr("mainspring.server.planning.limits.LOOK_EVERY", 0.0)
    limits_loop.look_at(gates["job1"])
    assert await limits_loop.step() == 1


async def test_a_task_that_waits_for_the_end_of_another_job_s_is_looked_at_with_the_next_hint(
    dsn: str, conn: Connection, limits_loop: LimitsLoop
) -> None:
    """The holder of its key was just ending, so it was not parked, and the hint names the holder's gate."""
    options: Options = {"concurrency_key": "k"}
    await jobs.register(conn, {name: define(Python(name), options) for name in ("one", "two")})
    await conn.execute("select mainspring.enqueue('one')")
    assert await limits_loop.step() == 1
    await conn.execute("select mainspring.enqueue('two')")
    ending = await Database(dsn).connect()
    async with ending.transaction():
        await ending.execute("delete from mainspring.task where key_slot is not null")
        limits_loop.look_at(await conn.fetchval("select pool from mainspring.job where name = 'two'"))
        while await limits_loop.step():
            pass
        assert await conn.fetchval("select count(*) from mainspring.task where pool = 2147483647") == 0
    await ending.close()
    limits_loop.look_at(await conn.fetchval("select pool from mainspring.job where name = 'one'"))
    assert await limits_loop.step() == 1


# ── with jobs that run ──────────────────────────────────────────────────────────────────────────


class Stage:
    """Counts who is on it, by key."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.starts: list[float] = []

    async def play(self, key: str, seconds: float = 0.003) -> None:
        self.starts.append(time.monotonic())
        self.inside[key] += 1
        self.most[key] = max(self.most[key], self.inside[key])
        await asyncio.sleep(seconds)
        self.inside[key] -= 1


def make_app(dsn: str, stage: Stage, **settings: Any) -> App:
    app = mainspring.App("test", dsn=dsn, poll=0.1, stop_patience=0.2, **settings)

    @app.job(max_running=3)
    async def three(n: int) -> None:
        await stage.play("three")

    @app.job(concurrency_key="shop:{shop}")
    async def shop(shop: int) -> None:
        await stage.play(f"shop:{shop}")

    @app.job
    async def free(key: str) -> None:
        await stage.play(key)

    @app.job(rate="100/second", burst=5)
    async def paced() -> None:
        await stage.play("paced")

    @app.job(max_running=1, retries=2, retry_delay="20ms")
    async def failing(n: int) -> None:
        await stage.play("failing")
        raise RuntimeError(n)

    return app


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def test_limits_hold_over_two_servers(dsn: str, stage: Stage) -> None:
    async with AsyncExitStack() as stack:
        one, _ = [
            await stack.enter_async_context(make_app(dsn, stage, agent_name=name).running()) for name in ("one", "two")
        ]
        tasks = await one["three"].enqueue_many(range(60))
        tasks += await one["shop"].enqueue_many([n % 6 for n in range(90)])
        tasks += await one["free"].using(concurrency_key="shop:0").enqueue_many(["shop:0"] * 10)
        async with asyncio.timeout(20):
            await asyncio.gather(*(task.result() for task in tasks))
    assert stage.most.pop("three") == 3
    assert set(stage.most.values()) == {1}
    assert len(stage.starts) == 160


async def test_a_rate_is_kept_and_reached(dsn: str, stage: Stage) -> None:
    async with make_app(dsn, stage).running(poll=60.0) as app:  # only the rate wakes the loop that releases
        before = time.monotonic()
        tasks = await app["paced"].enqueue_many([()] * 55)
        await asyncio.gather(*(task.result(timeout=20) for task in tasks))
    # 50 wait for the rate. A loaded machine may start them late and bunched, the first one too, but none of them early.
    assert stage.starts[-1] - before > 0.4


async def test_a_task_that_waits_for_its_retry_holds_nobody_up(dsn: str, stage: Stage) -> None:
    async with make_app(dsn, stage).running() as app:
        tasks = await app["failing"].enqueue_many(range(3))
        for task in tasks:
            with pytest.raises(mainspring.TaskFailed):
                await task.result(timeout=20)
    assert stage.most["failing"] == 1
    assert len(stage.starts) == 9


async def test_a_limited_task_with_an_instant_is_armed_ahead_of_it(dsn: str, conn: Connection, stage: Stage) -> None:
    async with make_app(dsn, stage).running() as app:
        at = await conn.fetchval("select mainspring.now() + interval '6 seconds'")
        task = await app["three"].using(run_at=at).enqueue(1)

        async def is_armed() -> bool:
            return (await task.status()).state == "assigned"

        await eventually(is_armed)
        assert await conn.fetchval("select mainspring.now()") < at
        assert not stage.starts


async def test_a_released_task_is_claimed_without_waiting_for_a_poll(dsn: str, stage: Stage) -> None:
    app = make_app(dsn, stage)
    async with app.running(poll=60.0):
        await (await app["free"].enqueue("warm")).result(timeout=20)
        tasks = await app["shop"].enqueue_many([1] * 20)
        await asyncio.gather(*(task.result(timeout=20) for task in tasks))  # each wakes the next
    assert len(stage.starts) == 21
