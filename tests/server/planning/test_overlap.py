"""OverlapLoop: the six overlap policies with jobs that run, per schedule and scope."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest
from msgspec.structs import replace
from tests.cluster import server_lease
from tests.schedules import Entry, claimed, create, finished, ledger, live, planned, set_clock, started

import mainspring
from mainspring import App
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.schedules.schedules import Overlap
from mainspring.model.tasks.states import TaskState
from mainspring.server.planning.overlap import OverlapLoop
from mainspring.server.planning.planner import Planner
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules
from mainspring.store.tasks import partitions

Eventually = Callable[..., Awaitable[Any]]


# ── by hand: a clock that stands still ──────────────────────────────────────────────────────────


@pytest.fixture
async def overlap_loop(database: Database, conn: Connection) -> OverlapLoop:
    await set_clock(conn, 0)
    await partitions.make_ahead(conn, days=1)
    return OverlapLoop(database, server_lease(), lambda: 5.0)


async def settle(overlap_loop: OverlapLoop) -> None:
    while await overlap_loop.step():
        pass


def plain(states: list[tuple[float, TaskState]]) -> str:
    """By plan time: b blocked, p pending, a assigned, r running."""
    return "".join("bpar"[state] for _, state in states)


# Every four seconds; 4 runs. What is there at 7.9, at 8, and at 12; what the ledger says of 4, 8 and 12.
STORIES: dict[Overlap, tuple[str, str, str, list[str | None]]] = {
    "allow": ("rpp", "rpp", "rppp", [None, None, None]),
    "skip": ("rbb", "rb", "rb", [None, "overlap", "overlap"]),
    "queue": ("rbb", "rbb", "rbb", [None, None, "overlap"]),
    "queue_all": ("rbb", "rbb", "rbbb", [None, None, None]),
    "cancel_running": ("rbb", "rbb", "rbb", [None, "overlap", None]),
    "terminate_running": ("rbb", "rbb", "rbb", [None, "overlap", None]),
}


@pytest.mark.parametrize(("lead", "state"), [(5.0, "b"), (25.0, "p")])
async def test_a_task_is_released_as_early_as_a_slow_agent_needs(
    database: Database, conn: Connection, overlap_loop: OverlapLoop, lead: float, state: str
) -> None:
    report = await create(conn, every=20, overlap="queue")
    planner = Planner(database, server_lease(), None, {}, lambda: 25.0)
    for now in (0, 14):
        await set_clock(conn, now)
        await planner.step()
    await set_clock(conn, 20)
    first = await claimed(conn, ahead=0)
    await started(conn, first)
    await finished(conn, first)
    await settle(OverlapLoop(database, server_lease(), lambda: lead))
    assert plain(await live(conn, report)) == state
    await planner.close()


@pytest.mark.parametrize("overlap", get_args(Overlap))
async def test_nothing_is_decided_before_the_instant(
    conn: Connection, overlap_loop: OverlapLoop, overlap: Overlap
) -> None:
    report = await create(conn, every=4, overlap=overlap)
    await planned(conn)
    await set_clock(conn, 4)
    await started(conn, await claimed(conn, ahead=0))
    before, at_instant, later, reasons = STORIES[overlap]
    for now, expected in ((7.9, before), (8, at_instant), (12, later)):
        await set_clock(conn, now)
        await planned(conn)
        await settle(overlap_loop)
        found = [(second, state) for second, state in await live(conn, report) if second <= 16]
        assert plain(found)[: len(expected)] == expected, now
    assert [entry.reason for entry in await ledger(conn, report)][:3] == reasons
    stopping = await conn.fetch("select cancel_mode from mainspring.task where cancel_at is not null")
    assert [row["cancel_mode"] for row in stopping] == {"cancel_running": [None], "terminate_running": [2]}.get(
        overlap, []
    )


@pytest.mark.parametrize("overlap", sorted(set(get_args(Overlap)) - {"allow"}))
async def test_one_whose_predecessor_ends_within_the_lead_is_armed_ahead_of_its_instant(
    conn: Connection, overlap_loop: OverlapLoop, overlap: Overlap
) -> None:
    report = await create(conn, every=10, overlap=overlap)
    await set_clock(conn, 3)
    await planned(conn)
    await set_clock(conn, 14)
    running = await claimed(conn, ahead=0)
    await started(conn, running)
    await planned(conn)
    await settle(overlap_loop)
    assert plain(await live(conn, report)) == "rb"
    await set_clock(conn, 16)
    await finished(conn, running)
    await settle(overlap_loop)
    assert plain(await live(conn, report)) == "p"
    [armed] = await claimed(conn)
    assert (await ledger(conn, report))[1] == Entry(20, "", None)
    assert armed.plan_time == armed.fire_at


async def test_a_lane_that_is_not_due_soon_is_left_alone(conn: Connection, overlap_loop: OverlapLoop) -> None:
    report = await create(conn, every=5, overlap="skip")
    await planned(conn)
    await conn.execute("delete from mainspring.task where state = 1")
    await settle(overlap_loop)
    assert plain(await live(conn, report)) == "b"
    await set_clock(conn, 5)
    await settle(overlap_loop)
    assert plain(await live(conn, report)) == "p"


async def test_an_ending_wakes_who_knows_of_a_waiting_task(conn: Connection, overlap_loop: OverlapLoop) -> None:
    overlap_loop.ended([])
    assert not overlap_loop.wake.is_set()
    await create(conn, every=4, overlap="queue")
    await planned(conn)
    await set_clock(conn, 4)
    await overlap_loop.step()
    overlap_loop.ended([])
    assert overlap_loop.wake.is_set()


async def test_two_overlap_loops_at_once_let_one_pass(dsn: str, conn: Connection, overlap_loop: OverlapLoop) -> None:
    report = await create(conn, every=1, overlap="queue_all", scopes=["a", "b", "c"])
    await planned(conn)
    await set_clock(conn, 9)
    databases = [Database(dsn) for _ in range(4)]
    overlap_loops = [OverlapLoop(database, server_lease(), lambda: 5.0) for database in databases]
    for _ in range(8):
        await asyncio.gather(*(settle(one) for one in overlap_loops))
        running = await conn.fetch("select scope, count(*) from mainspring.task where pool > 0 group by scope")
        assert [row["count"] for row in running] == [1, 1, 1]
        await finished(conn, await claimed(conn, ahead=0))
    assert {entry.reason for entry in await ledger(conn, report)} == {None}
    for database in databases:
        await database.close()


async def test_what_waits_when_overlap_is_allowed_by_an_edit_runs_at_once(
    conn: Connection, overlap_loop: OverlapLoop
) -> None:
    report = await create(conn, every=4, overlap="queue_all")
    await planned(conn)
    await set_clock(conn, 9)
    await planned(conn)
    await started(conn, [(await claimed(conn, ahead=0))[0]])
    await schedules.change(conn, "report", lambda s: replace(s, policies=replace(s.policies, overlap="allow")))
    await settle(overlap_loop)
    assert plain(await live(conn, report)) == "rp", "4 runs, 8 waits no more; what was ahead is planned anew"


# ── jobs that run ───────────────────────────────────────────────────────────────────────────────


class Stage:
    """What the handlers did, by lane."""

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        self.active: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def play(self, lane: str) -> None:
        self.starts[lane] += 1
        self.active[lane] += 1
        self.most[lane] = max(self.most[lane], self.active[lane])
        try:
            await self.gates[lane].wait()
        except asyncio.CancelledError:
            self.cancelled[lane] += 1
            raise
        finally:
            self.active[lane] -= 1


@asynccontextmanager
async def staged(dsn: str) -> AsyncIterator[tuple[App, Stage]]:
    app = mainspring.App("test", dsn=dsn, poll=0.05, stop_patience=0.2)
    stage = Stage()

    @app.job(retries=0)
    async def job(policy: str, scope: str) -> None:
        await stage.play(f"{policy} {scope}")

    async with app.running():
        yield app, stage


async def schedule(app: App, overlap: str, period: float, scopes: list[str]) -> int:
    options: Any = {"every": period, "overlap": overlap, "scopes": scopes}
    wanted = define_schedule(overlap, "job", options, args={"policy": overlap})
    async with app.database.acquire() as conn:
        await schedules.create(conn, wanted, enabled=True)
        return (await schedules.find(conn, overlap)).id


async def reasons(conn: Connection, id: int, scope: str) -> list[str | None]:
    rows = await conn.fetch(
        "select reason from mainspring.fire where schedule_id = $1 and scope = $2 and plan_time <= mainspring.now()"
        " order by plan_time",
        id,
        scope,
    )
    return [row["reason"] for row in rows]


async def test_each_policy_with_jobs_that_run(dsn: str, conn: Connection, eventually: Eventually) -> None:
    """Every half second, in two lanes each: in `busy` the first one does not end, in `quick` all do at once."""
    async with staged(dsn) as (app, stage):
        for overlap in get_args(Overlap):
            stage.gates[f"{overlap} quick"].set()
        ids = {overlap: await schedule(app, overlap, 0.5, ["busy", "quick"]) for overlap in get_args(Overlap)}

        async def several_have_passed() -> bool:
            return all([len(await reasons(conn, id, "busy")) >= 5 for id in ids.values()])

        await eventually(several_have_passed, 15)

        async def all_as_they_should_be() -> bool:
            return (
                stage.starts["allow busy"] >= 4
                and stage.starts["cancel_running busy"] >= 2
                and stage.starts["terminate_running busy"] >= 2
                and (await reasons(conn, ids["skip"], "busy")).count("overlap") >= 2
                and (await reasons(conn, ids["queue"], "busy")).count("overlap") >= 1
            )

        await eventually(all_as_they_should_be)
        assert stage.most["allow busy"] >= 4
        for overlap in get_args(Overlap)[1:]:
            assert stage.most[f"{overlap} busy"] == 1, overlap
            assert stage.starts[f"{overlap} quick"] >= 3, f"{overlap}: another scope is another lane"
        for overlap in ("allow", "skip", "queue", "queue_all"):
            assert stage.cancelled[f"{overlap} busy"] == 0
        for overlap in ("skip", "queue", "queue_all"):
            assert stage.starts[f"{overlap} busy"] == 1
        for overlap in ("cancel_running", "terminate_running"):
            assert stage.cancelled[f"{overlap} busy"] >= stage.starts[f"{overlap} busy"] - 1
        assert set(await reasons(conn, ids["queue_all"], "busy")) == {None}
        assert (await reasons(conn, ids["queue"], "busy"))[:2] == [None, None], "the first that came waits"

        waiting = len(await reasons(conn, ids["queue_all"], "busy")) - 1
        for overlap in ("skip", "queue", "queue_all"):
            stage.gates[f"{overlap} busy"].set()

        async def all_go_on() -> bool:
            return (
                stage.starts["queue_all busy"] > waiting
                and stage.starts["queue busy"] >= 2
                and stage.starts["skip busy"] >= 2
            )

        await eventually(all_go_on)
        assert max(stage.most[f"{overlap} busy"] for overlap in ("skip", "queue", "queue_all")) == 1
        for overlap in get_args(Overlap):
            stage.gates[f"{overlap} busy"].set()
        for gate in stage.gates.values():
            gate.set()


async def test_one_whose_predecessor_ends_just_before_its_instant_fires_on_time(
    dsn: str, conn: Connection, eventually: Eventually
) -> None:
    async with staged(dsn) as (app, stage):
        id = await schedule(app, "skip", 1.5, ["a"])

        async def runs_and_the_next_waits() -> bool:
            states = await conn.fetch("select state from mainspring.task where schedule_id = $1 order by 1", id)
            return {row["state"] for row in states} >= {0, 3}

        await eventually(runs_and_the_next_waits)
        next_at = await conn.fetchval("select min(plan_time) from mainspring.task where state = 0")
        assert next_at > await conn.fetchval("select mainspring.now()")
        stage.gates["skip a"].set()

        async def the_next_has_run() -> Any:
            return await conn.fetchval("select started_at from mainspring.task_history where plan_time = $1", next_at)

        started_at = await eventually(the_next_has_run)
        assert 0 <= (started_at - next_at).total_seconds() < 0.25
