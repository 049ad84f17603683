"""Planner: the ledger holds every plan time once, whoever plans, whatever the clock does, whoever edits.

Fires are compared with a brute-force oracle: all plan times of each version, in the time in which it was in force.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from tests.cluster import server_lease
from tests.schedules import START, Entry, at, claimed, create, finished, ledger, live, set_clock, started

import mainspring
from mainspring.errors import ScheduleNotFound
from mainspring.model.schedules.planning import AHEAD
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.states import CancelMode
from mainspring.server.planning import scopes as scopes_module
from mainspring.server.planning.planner import ASKING, Planner
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import revoke, schedules
from mainspring.store.tasks import partitions

Eventually = Callable[..., Awaitable[Any]]
HOUR = 3600
MONTH = 31 * 24 * HOUR


@asynccontextmanager
async def planning(
    dsn: str, count: int = 1, providers: dict[str, Any] | None = None, app: str | None = None, lead: float = 5.0
) -> AsyncIterator[list[Planner]]:
    """Planners, each with its own connections."""
    databases = [Database(dsn) for _ in range(count)]
    planners = [Planner(database, server_lease(), app, providers or {}, lambda: lead) for database in databases]
    try:
        yield planners
    finally:
        for planner in planners:
            await planner.close()
        for database in databases:
            await database.close()


async def settle(planners: list[Planner]) -> None:
    """All of them at once, until none finds anything."""

    async def one(planner: Planner) -> None:
        while await planner.step():
            pass

    await asyncio.gather(*(one(planner) for planner in planners))


@pytest.fixture
async def planner(dsn: str) -> AsyncIterator[Planner]:
    async with planning(dsn) as [planner]:
        yield planner


# ── one planner ─────────────────────────────────────────────────────────────────────────────────


async def test_a_first_start_replays_nothing(conn: Connection, planner: Planner) -> None:
    """Not even what catch-up would: the schedule was not there."""
    await set_clock(conn, 100)
    report = await create(conn, every=20, catch_up="all", window="10d")
    await set_clock(conn, 105)
    await settle([planner])
    assert await ledger(conn, report) == []
    await set_clock(conn, 113)
    await settle([planner])
    assert await ledger(conn, report) == [Entry(120, "", None)]


async def test_a_schedule_that_is_enabled_later_replays_nothing(conn: Connection, planner: Planner) -> None:
    await set_clock(conn, 0)
    report = await create(conn, every=20, catch_up="all", enabled=False)
    await set_clock(conn, 1000)
    await settle([planner])
    await schedules.change(conn, "report", lambda schedule: schedule, enabled=True)
    await settle([planner])
    assert await ledger(conn, report) == []
    await set_clock(conn, 1013)
    await settle([planner])
    assert await ledger(conn, report) == [Entry(1020, "", None)]


async def test_tasks_are_made_as_the_schedule_says(conn: Connection, planner: Planner) -> None:
    await set_clock(conn, 0)
    report = await create(
        conn, every=HOUR, scopes=["eu", "us"], args={"day": 1}, takes=("scope", "day"), delay=30, jitter=10
    )
    await set_clock(conn, HOUR + 23)
    await settle([planner])
    rows = await conn.fetch("select * from mainspring.task order by scope")
    assert [(row["args"], row["plan_time"], row["schedule_id"], row["state"]) for row in rows] == [
        ('{"day": 1, "scope": "eu"}', at(HOUR), report, 1),
        ('{"day": 1, "scope": "us"}', at(HOUR), report, 1),
    ]
    assert all(at(HOUR + 30) <= row["run_at"] < at(HOUR + 40) for row in rows)
    assert rows[0]["run_at"] != rows[1]["run_at"]
    assert (await schedules.find(conn, "report")).runs == 1, "one plan time, however many scopes"


OUTAGE: dict[str, tuple[dict[str, Any], list[tuple[int, str | None]]]] = {
    "skip": ({"catch_up": "skip"}, [(6, "misfire")]),
    "latest": ({"catch_up": "latest"}, [(5, "coalesced"), (1, None)]),
    "all": ({"catch_up": "all"}, [(6, None)]),
    "all, within two hours": ({"catch_up": "all", "window": "2h"}, [(4, "misfire"), (2, None)]),
    "all, within a minute": ({"catch_up": "all", "window": "1m"}, [(5, "misfire"), (1, None)]),
    "all, three runs": ({"catch_up": "all", "max_runs": 3}, [(3, None)]),
    "latest, too late": ({"catch_up": "latest", "misfire_after": "10m"}, [(6, "misfire")]),
    "skip but not what is young": ({"catch_up": "skip", "misfire_after": "45m"}, [(5, "misfire"), (1, None)]),
}


@pytest.mark.parametrize("case", OUTAGE)
async def test_six_hours_in_which_nothing_ran(conn: Connection, planner: Planner, case: str) -> None:
    options, expected = OUTAGE[case]
    await set_clock(conn, -10)
    hourly = await create(conn, every=HOUR, **options)
    monthly = await create(conn, "monthly", cron="0 17 29 * *", catch_up=options["catch_up"], window="1m")
    await set_clock(conn, -5)
    await settle([planner])
    assert await ledger(conn, hourly) == [Entry(0, "", None)]
    await set_clock(conn, 6 * HOUR + 1800)
    await settle([planner])
    reasons = [reason for count, reason in expected for _ in range(count)]
    if "max_runs" in options:
        reasons = reasons[:-1]  # one ran before
    assert await ledger(conn, hourly) == [
        Entry(0, "", None),
        *(Entry(HOUR * hour, "", reason) for hour, reason in enumerate(reasons, 1)),
    ]
    found = {entry.reason for entry in await ledger(conn, monthly)}
    assert found == ({"misfire"} if options["catch_up"] == "skip" else {None}), "seldom, and found all the same"
    assert len(await live(conn, hourly)) == 1 + reasons.count(None)


async def test_late_tasks_are_made_so_many_a_second(conn: Connection, planner: Planner) -> None:
    await set_clock(conn, 0)
    report = await create(conn, every=60, catch_up="all", max_per_tick=10)
    await set_clock(conn, HOUR + 30)
    for second in range(6):
        assert len(await ledger(conn, report)) == 10 * second
        await set_clock(conn, HOUR + 30 + second)
        await settle([planner])
    assert len(await ledger(conn, report)) == 60


@pytest.mark.parametrize(("lead", "seconds_before"), [(5.0, 6.5), (9.0, 10.5), (25.0, 26.5)])
async def test_a_task_is_there_when_the_slowest_agent_needs_it(
    dsn: str, conn: Connection, lead: float, seconds_before: float
) -> None:
    await set_clock(conn, 0)
    report = await create(conn, every=HOUR)
    async with planning(dsn, lead=lead) as planners:
        await set_clock(conn, HOUR - seconds_before - 2)
        await settle(planners)
        assert await ledger(conn, report) == []
        await set_clock(conn, HOUR - seconds_before)
        await settle(planners)
    assert await ledger(conn, report) == [Entry(HOUR, "", None)]


async def test_a_long_lead_makes_late_tasks_no_faster(dsn: str, conn: Connection) -> None:
    await set_clock(conn, 0)
    report = await create(conn, every=60, catch_up="all", max_per_tick=10)
    async with planning(dsn, lead=25.0) as planners:
        for second in range(3):
            await set_clock(conn, HOUR + second)
            await settle(planners)
            assert len(await ledger(conn, report)) == 10 * (second + 1)


async def test_more_plan_times_than_one_step_decides(conn: Connection, planner: Planner) -> None:
    await set_clock(conn, 0)
    report = await create(conn, every=1, scopes=["a", "b", "c"])
    await set_clock(conn, 4000)
    await settle([planner])
    found = await ledger(conn, report)
    assert [entry.at for entry in found] == [second for second in range(1, 4011) for _ in range(3)]
    assert Counter(entry.reason for entry in found) == {"coalesced": 3 * 3999, None: 3 * 11}


async def test_a_clock_that_goes_back_fires_nothing_twice(conn: Connection, planner: Planner) -> None:
    await set_clock(conn, 0)
    report = await create(conn, every=10)
    for now in [*range(5, 100, 5), 30, 40, -500, 50, 95, 100, 105]:
        await set_clock(conn, now)
        await settle([planner])
        for armed in await claimed(conn):
            await started(conn, [armed])
            await finished(conn, [armed])
    assert await ledger(conn, report) == [Entry(second, "", None) for second in range(10, 120, 10)]
    ran = await conn.fetch("select plan_time from mainspring.task_history")
    assert len(ran) == len({row["plan_time"] for row in ran})


async def test_a_schedule_that_cannot_be_planned_stops_nobody_and_shows_its_problem(
    conn: Connection, planner: Planner
) -> None:
    await set_clock(conn, 0)
    broken = {
        "zone": ("timezone = 'Mars/Olympus'", "Mars/Olympus"),
        "cron": ("kind = 'cron', expression = '0 9 30 2 *'", "never"),
        "period": ("expression = '0'", "out of range"),
        "policy": ("""policies = '{"catch_up": "guess"}'""", "guess"),
        "shape": ("policies = '[]'", "object"),
        "day": ("""policies = '{"excluded": ["someday"]}'""", "someday"),
    }
    for name, (change, _) in broken.items():
        await create(conn, name, every=5)
        await conn.execute(f"update mainspring.schedule set {change}, look_at = $2 where name = $1", name, at(1))
    report = await create(conn, every=5)
    await set_clock(conn, 5)
    await settle([planner])
    assert await ledger(conn, report) == [Entry(second, "", None) for second in (5, 10, 15)]
    for name, (_, said) in broken.items():
        row = await conn.fetchrow("select * from mainspring.schedule where name = $1", name)
        assert said in (row["problem"] or ""), name
        assert row["look_at"] > at(5), "it is looked at again, and not all the time"
    # Mended, its plan times are decided, those of the meantime too.
    await conn.execute("update mainspring.schedule set timezone = 'UTC' where name = 'zone'")
    await set_clock(conn, 70)
    await settle([planner])
    mended = await schedules.find(conn, "zone")
    assert mended.problem is None
    assert [entry.at for entry in await ledger(conn, mended.id)] == list(range(5, 85, 5))


async def test_a_row_that_somebody_holds_is_not_asked_for_again_and_again(
    dsn: str, conn: Connection, planner: Planner
) -> None:
    await set_clock(conn, 0)
    report = await create(conn, every=5)
    await set_clock(conn, 5)
    elsewhere = await Database(dsn).connect()
    async with elsewhere.transaction():
        await elsewhere.execute("select from mainspring.schedule for update")
        assert await planner.step() == 0, "nothing was done: the loop waits before it looks again"
    await elsewhere.close()
    assert await planner.step() == 1
    assert len(await ledger(conn, report)) == 3


async def test_schedules_that_cannot_be_planned_do_not_hide_those_behind_them(
    conn: Connection, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not locked: the next step starts at the first again."""
    monkeypatch.setattr("mainspring.server.planning.planner.BATCH", 2)
    await set_clock(conn, 0)
    for name in ("a", "b"):
        await create(conn, name, every=5)
    await conn.execute("update mainspring.schedule set timezone = 'Mars/Olympus'")
    await set_clock(conn, 5)
    assert await planner.step() == 0
    report = await create(conn, every=5)
    await set_clock(conn, 10)
    assert await planner.step() == 1
    assert await ledger(conn, report)


async def test_who_waits_for_tasks_is_told_when_there_are_any(conn: Connection, planner: Planner) -> None:
    told: list[bool] = []
    planner.on_planned.connect(lambda: told.append(True))
    await set_clock(conn, 0)
    await create(conn, every=HOUR)
    await settle([planner])
    assert told == []
    await set_clock(conn, HOUR)
    await settle([planner])
    assert told == [True]


async def test_tasks_that_polling_finds_in_time_wake_nobody(conn: Connection, planner: Planner) -> None:
    told: list[bool] = []
    planner.on_planned.connect(lambda: told.append(True))
    await set_clock(conn, 0)
    await create(conn, every=HOUR)
    await set_clock(conn, HOUR - 7)  # the lead is 5 s
    await settle([planner])
    assert await conn.fetchval("select count(*) from mainspring.task") == 1
    assert told == []


# ── scopes that a function tells ────────────────────────────────────────────────────────────────


class Tenants:
    """A provider that does what a test wants."""

    def __init__(self) -> None:
        self.answer: Any = ["a", "b"]
        self.asked: list[datetime] = []

    async def __call__(self, plan_time: datetime) -> Any:
        self.asked.append(plan_time)
        if isinstance(self.answer, BaseException):
            raise self.answer
        if isinstance(self.answer, asyncio.Event):
            await self.answer.wait()
        return self.answer


def provider_of(tenants: Tenants) -> Callable[[datetime], Awaitable[Any]]:
    async def provider(plan_time: datetime) -> Any:
        return await tenants(plan_time)

    return provider


async def asked(planner: Planner) -> None:
    """One look at the schedules with providers, to its end."""
    await planner.ask_providers()
    while planner._asking:
        await asyncio.gather(*planner._asking.values(), return_exceptions=True)
        await asyncio.sleep(0)


async def test_a_provider_tells_the_scopes_at_plan_time(dsn: str, conn: Connection) -> None:
    tenants = Tenants()
    await set_clock(conn, 0)
    report = await create(conn, every=10, app="shop", provider="tenants", scopes=provider_of(tenants))
    async with planning(dsn, app="shop", providers={"report": provider_of(tenants)}) as [planner]:
        await set_clock(conn, 4)
        await settle([planner])
        assert await ledger(conn, report) == [], "who cannot ask leaves it alone"
        await asked(planner)
        tenants.answer = ["c"]
        await set_clock(conn, 14)
        await asked(planner)
        tenants.answer = []
        await set_clock(conn, 24)
        await asked(planner)
    assert await ledger(conn, report) == [
        Entry(10, "a", None),
        Entry(10, "b", None),
        Entry(20, "c", None),
        Entry(30, "", "no_scopes"),
    ]
    assert tenants.asked == [at(10), at(20), at(30)]


async def test_one_process_of_an_application_asks_and_another_one_if_it_dies(dsn: str, conn: Connection) -> None:
    tenants = Tenants()
    tenants.answer = asyncio.Event()
    await set_clock(conn, 0)
    report = await create(conn, every=60, app="shop", provider="tenants", scopes=provider_of(tenants))
    async with planning(dsn, 2, app="shop", providers={"report": provider_of(tenants)}) as [first, second]:
        await set_clock(conn, 54)
        await first.ask_providers()
        while not tenants.asked:
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await asked(second)
        assert tenants.asked == [at(60)], "the first one asks"
        await first.close()
        tenants.answer = ["a"]
        await set_clock(conn, 54 + ASKING.total_seconds())
        await asked(second)
    assert await ledger(conn, report) == [Entry(60, "a", None)]
    assert tenants.asked == [at(60)] * 2


async def test_another_applications_schedules_are_left_to_it(dsn: str, conn: Connection) -> None:
    tenants = Tenants()
    await set_clock(conn, 0)
    report = await create(conn, every=10, app="shop", provider="tenants", scopes=provider_of(tenants))
    async with planning(dsn, app="bank", providers={"report": provider_of(tenants)}) as [planner]:
        await set_clock(conn, 20)
        await settle([planner])
        await asked(planner)
    assert (await ledger(conn, report), tenants.asked) == ([], [])


BROKEN: list[tuple[Any, str]] = [
    (RuntimeError("no route to tenants"), "RuntimeError: no route to tenants"),
    (RuntimeError("a\x00b \ud800"), "a�b ?"),
    (None, "give a list of texts"),
    ("eu", "give a list of texts"),
    (5, "give a list of texts"),
    (["a", ""], "is not a name"),
    (["a", 5], "is not a name"),
    (["a\x00"], "U+0000"),
    ([str(n) for n in range(10_001)], "at most 10000"),
]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(("answer", "problem"), BROKEN, ids=[problem for _, problem in BROKEN])
async def test_a_provider_that_fails_stops_nobody_and_its_plan_times_wait(
    dsn: str, conn: Connection, answer: Any, problem: str, sync: bool
) -> None:
    tenants = Tenants()
    tenants.answer = answer

    def ask_at_once(plan_time: datetime) -> Any:
        if isinstance(tenants.answer, BaseException):
            raise tenants.answer
        return tenants.answer

    providers = {"report": ask_at_once if sync else provider_of(tenants), "others": lambda: ["x"]}
    await set_clock(conn, 0)
    report = await create(conn, every=10, app="shop", provider="tenants", scopes=provider_of(tenants), catch_up="all")
    others = await create(conn, "others", every=10, app="shop", provider="others", scopes=provider_of(tenants))
    plain = await create(conn, "plain", every=10)
    async with planning(dsn, app="shop", providers=providers) as [planner]:
        await set_clock(conn, 5)
        await settle([planner])
        await asked(planner)
        assert await ledger(conn, report) == []
        stored = await schedules.find(conn, "report")
        assert problem in (stored.problem or "")
        assert await ledger(conn, others) == [Entry(10, "x", None)]
        assert await ledger(conn, plain) == [Entry(10, "", None)]
        await asked(planner)
        assert await conn.fetchval("select look_at from mainspring.schedule where name = 'report'") == at(10), "later"
        tenants.answer = ["a"]
        await set_clock(conn, 65)
        await asked(planner)
    assert await ledger(conn, report) == [Entry(second, "a", None) for second in range(10, 80, 10)]
    assert (await schedules.find(conn, "report")).problem is None


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_provider_that_hangs_stops_nobody(
    dsn: str, conn: Connection, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    monkeypatch.setattr(scopes_module, "TIMEOUT", 0.05)
    tenants = Tenants()
    tenants.answer = asyncio.Event()
    gate = threading.Event()

    def block() -> list[str]:
        gate.wait(30)
        return ["late"]

    providers = {"report": block if sync else provider_of(tenants), "others": lambda: ["x"]}
    await set_clock(conn, 0)
    report = await create(conn, every=10, app="shop", provider="tenants", scopes=provider_of(tenants), catch_up="all")
    others = await create(conn, "others", every=10, app="shop", provider="others", scopes=provider_of(tenants))
    try:
        async with planning(dsn, app="shop", providers=providers) as [planner]:
            await set_clock(conn, 5)
            await planner.ask_providers()
            await planner.ask_providers()

            async def others_are_planned() -> bool:
                return await ledger(conn, others) == [Entry(10, "x", None)]

            async def it_has_a_problem() -> bool:
                return "took more than" in ((await schedules.find(conn, "report")).problem or "")

            await eventually(others_are_planned)
            await eventually(it_has_a_problem)
            assert await ledger(conn, report) == []
    finally:
        gate.set()


async def test_a_schedule_without_scopes_has_not_run(dsn: str, conn: Connection) -> None:
    """max_runs counts plan times that got a task."""
    tenants = Tenants()
    tenants.answer = []
    await set_clock(conn, 0)
    report = await create(conn, every=2, app="shop", provider="tenants", scopes=provider_of(tenants), max_runs=2)
    async with planning(dsn, app="shop", providers={"report": provider_of(tenants)}) as [planner]:
        await set_clock(conn, 2)
        await asked(planner)
        tenants.answer = ["a"]
        await set_clock(conn, 12)
        await asked(planner)
    found = await ledger(conn, report)
    assert [entry.reason for entry in found] == ["no_scopes"] * 6 + [None] * 2


# ── many planners, a moving clock, edits: against an oracle ─────────────────────────────────────


class Told(NamedTuple):
    """A version as the one who made it was told."""

    number: int
    schedule: Schedule
    enabled: bool
    since: datetime


KINDS: list[dict[str, Any]] = [
    {"every": 7},
    {"every": "90s", "scopes": ["eu", "us"]},
    {"every": "1h", "jitter": "5s"},
    {"every": 13, "delay": "30s"},
    {"cron": "*/5 * * * *", "tz": "Europe/Paris"},
    {"cron": "30 2 * * *", "tz": "Europe/Paris", "fold": "both"},
    {"cron": "30 2 * * *", "tz": "America/New_York", "gap": "skip"},
    {"cron": "*/20 * * * * *", "tz": "Australia/Lord_Howe"},
    {"cron": "0 3 * * *", "tz": "Africa/Casablanca"},
    {"once": at(5 * HOUR)},
    {"daily": "02:15, 14:15", "tz": "Europe/Paris"},
]


class World:
    """Schedules, those who change them, and an agent without a process."""

    def __init__(self, conn: Connection, seed: int) -> None:
        self.conn = conn
        self.dice = random.Random(seed)
        self.now = self.furthest = START
        self.told: dict[int, list[Told]] = {}
        self.names: dict[int, str] = {}
        self.deleted: set[int] = set()
        self.armed: list[Any] = []
        self.effects: Counter[int] = Counter()
        self.in_vain: set[int] = set()  # tasks that were asked back and had started before

    async def make(self, count: int) -> None:
        for number in range(count):
            kind = KINDS[number % len(KINDS)]
            catch_up = self.dice.choice(["skip", "latest", "all"])
            more: dict[str, Any] = {
                "max_per_tick": self.dice.choice([100, 1000]),
                "window": self.dice.choice(["1m", "1d"]),
            }
            id = await create(self.conn, f"s{number}", catch_up=catch_up, **more, **kind)
            stored = await schedules.find(self.conn, f"s{number}")
            self.names[id] = f"s{number}"
            self.told[id] = [Told(1, stored.schedule, True, stored.since)]

    async def move_clock(self) -> None:
        # Seconds mostly; minutes and hours; and now and then back, as far as ten minutes.
        step = self.dice.choice([1, 2, 3, 5, 8, 30, 400, 3000, 2 * HOUR, -3, -600])
        self.now = max(self.now + timedelta(seconds=step), START)
        self.furthest = max(self.furthest, self.now)
        await set_clock(self.conn, self.now)

    async def edit(self, conn: Connection) -> None:
        """One change of one schedule; another may just have deleted it."""
        with suppress(ScheduleNotFound):
            await self._edit(conn)

    async def _edit(self, conn: Connection) -> None:
        """One change of one schedule. Not while the clock is behind: what ran already stays in the ledger."""
        alive = sorted(self.told.keys() - self.deleted)
        if self.now < self.furthest or not alive:
            return
        id = self.dice.choice(alive)
        what = self.dice.choice(["pause", "resume", "resume", "edit", "edit", "delete"])
        if what == "delete":
            if self.dice.random() < 0.3:
                await schedules.delete(conn, self.names[id])
                self.deleted.add(id)
            return
        period = self.dice.choice(["7", "20", "45", "3600"])
        catch_up = self.dice.choice(["skip", "latest", "all"])

        def changed(schedule: Schedule) -> Schedule:
            if what != "edit":
                return schedule
            expression = period if schedule.kind == "every" else schedule.expression
            return replace(schedule, expression=expression, policies=replace(schedule.policies, catch_up=catch_up))

        enabled = {"pause": False, "resume": True}.get(what)
        if self.told[id][-1].schedule.kind == "once" and what == "edit":
            return  # an edit is refused when its instant has passed
        done = await schedules.change(conn, self.names[id], changed, enabled=enabled)
        if done.recalled is not None:
            self.told[id].append(
                Told(done.stored.version, done.stored.schedule, done.stored.enabled, done.stored.since)
            )

    async def agent(self, conn: Connection) -> None:
        """Claim ahead; run what is due; give back what is asked back, if it has not started."""
        self.armed += await claimed(conn, ahead=self.dice.choice([0.0, 5.0]))
        rows = await conn.fetch(
            "select id, token, cancel_mode from mainspring.task where id = any($1::bigint[])",
            [armed.task for armed in self.armed],
        )
        held = {(row["id"], row["token"]): row["cancel_mode"] for row in rows}
        self.armed = [armed for armed in self.armed if (armed.task, armed.token) in held]
        asked_back = [armed for armed in self.armed if held[armed.task, armed.token] == CancelMode.RECALL]
        given_back = [armed for armed in asked_back if self.dice.random() < 0.8]
        for armed in given_back:
            assert await revoke.confirm(conn, [armed.task], [armed.token]) == [armed.task]
        due = [armed for armed in self.armed if armed.fire_at <= self.now.timestamp() and armed not in given_back]
        await started(conn, due)
        assert await finished(conn, due) == len(due)
        self.effects.update(armed.task for armed in due)
        self.in_vain |= {armed.task for armed in due if armed in asked_back}
        self.armed = [armed for armed in self.armed if armed not in due and armed not in given_back]

    async def check(self) -> None:
        for id, told in self.told.items():
            versions = sorted(told, key=lambda version: version.number)  # of two at once either may hear first
            wanted: dict[tuple[datetime, str], bool] = {}
            stored = None if id in self.deleted else await schedules.find(self.conn, self.names[id])
            end = stored.next_plan_at if stored is not None else self.furthest + AHEAD
            for version, following in zip(versions, [*versions[1:], None], strict=True):
                until = following.since if following is not None else self.furthest + timedelta(days=1)
                for plan_time in timing(version.schedule).between(version.since, until, 10**6):
                    if end is not None and plan_time >= end:
                        break
                    for scope in version.schedule.policies.scopes or ("",):
                        wanted[plan_time, scope] = version.enabled
            rows = await self.conn.fetch("select * from mainspring.fire where schedule_id = $1", id)
            found = {(row["plan_time"], row["scope"]): row["reason"] for row in rows}
            name = f"{self.names[id]}: {versions}"
            started = {(row["plan_time"], row["scope"]) for row in rows if row["task_id"] in self.in_vain}
            extra = sorted(found.keys() - wanted.keys() - started)
            missing = sorted(wanted.keys() - found.keys())
            assert not extra, f"extra in {name}"
            if stored is None:
                continue
            assert not missing, f"missing in {name}"
            delay = timedelta(seconds=stored.schedule.policies.delay)
            if end is not None:
                assert end + delay > self.now, f"undecided although due: {name}"
            paused = {key for key, enabled in wanted.items() if not enabled} - started
            assert all(found[key] == "paused" for key in paused), name
            assert stored.runs >= len({row["plan_time"] for row in rows if row["task_id"] is not None}), name
        await self.check_tasks()

    async def check_tasks(self) -> None:
        """Every fire has its task, every task its fire; each ran at most once."""
        orphans = await self.conn.fetch("""
            select f.schedule_id, f.plan_time from mainspring.fire f
             where f.task_id is not null
               and not exists (select from mainspring.task t where t.id = f.task_id and t.schedule_id = f.schedule_id
                                  and t.plan_time = f.plan_time and t.scope = f.scope)
               and not exists (select from mainspring.task_history h where h.id = f.task_id and h.state = 10)
               and exists (select from mainspring.schedule s where s.id = f.schedule_id)
        """)
        assert not orphans
        strays = await self.conn.fetch("""
            select t.id from mainspring.task t
             where not exists (select from mainspring.fire f where f.task_id = t.id)
        """)
        assert not strays
        ran = await self.conn.fetch("""
            select schedule_id, plan_time, scope from mainspring.task_history where state = 10
             group by 1, 2, 3 having count(*) > 1
        """)
        assert not ran, "two runs of one plan time"
        assert max(self.effects.values(), default=1) == 1


LATE = """
    select exists (select from mainspring.schedule
                    where next_plan_at + make_interval(secs => coalesce((policies->>'delay')::float8, 0))
                          <= mainspring.now())
"""


async def finish(world: World, all_decided: Callable[[], Awaitable[Any]]) -> None:
    """Resume all, let the clock pass what is left over, and wait until all has been decided."""
    world.now = world.furthest = world.furthest + timedelta(seconds=1)
    await set_clock(world.conn, world.now)
    for id in sorted(world.told.keys() - world.deleted):
        done = await schedules.change(world.conn, world.names[id], lambda schedule: schedule, enabled=True)
        if done.recalled is not None:
            world.told[id].append(Told(done.stored.version, done.stored.schedule, True, done.stored.since))
    for _ in range(1000):  # many, where slow planners have left much: one catches up with a hundred in each second
        world.now = world.furthest = world.furthest + timedelta(seconds=1)
        await set_clock(world.conn, world.now)
        await all_decided()
        await world.agent(world.conn)
        if not await world.conn.fetchval(LATE):
            break


@pytest.mark.parametrize("given", [1, None])
async def test_fires_are_those_of_the_oracle(dsn: str, conn: Connection, given: int | None) -> None:
    """A seed that is not given is another one in each run; it is printed when the test fails."""
    seed = random.randrange(10**6) if given is None else given
    print(f"seed {seed}")
    world = World(conn, seed)
    await set_clock(conn, START)
    await partitions.make_ahead(conn, days=6)
    await world.make(len(KINDS) + 3)
    hands = [await Database(dsn).connect() for _ in range(3)]
    try:
        async with planning(dsn, 3) as planners:
            for _ in range(25):
                await world.move_clock()
                await asyncio.gather(
                    settle(planners), world.edit(hands[0]), world.edit(hands[1]), world.agent(hands[2])
                )
                await world.check_tasks()
            await finish(world, lambda: settle(planners))
        await world.check()
    finally:
        for hand in hands:
            await hand.close()


# ── processes that are killed ───────────────────────────────────────────────────────────────────

PROCESS = """
import asyncio, sys
from mainspring.errors import StoreUnavailable
from mainspring.server.planning.planner import Planner
from mainspring.store.postgres.database import Database
from tests.cluster import server_lease

async def main():
    planner = Planner(Database(sys.argv[1]), server_lease(), None, {})
    while True:
        try:
            await planner.step() or await asyncio.sleep(0.001)
        except StoreUnavailable:
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


class Processes:
    """Planners in processes of their own, killed and started anew at random."""

    def __init__(self, dsn: str, count: int, dice: random.Random) -> None:
        self._dsn = dsn
        self._dice = dice
        self._running = [self._start() for _ in range(count)]
        self.kills = 0

    def _start(self) -> subprocess.Popen[bytes]:
        source = str(Path(mainspring.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": source}
        return subprocess.Popen([sys.executable, "-c", PROCESS, self._dsn], env=environment)

    def kill_one(self) -> None:
        position = self._dice.randrange(len(self._running))
        self._kill(self._running[position])
        self._running[position] = self._start()
        self.kills += 1

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        assert process.poll() is None, "a planner died of itself"
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        for process in self._running:
            self._kill(process)


async def test_planners_that_are_killed_at_random_leave_nothing_out_and_nothing_twice(
    dsn: str, conn: Connection, eventually: Eventually
) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    world = World(conn, seed)
    await set_clock(conn, START)
    await partitions.make_ahead(conn, days=6)
    await world.make(len(KINDS) * 2)
    hand = await Database(dsn).connect()
    processes = Processes(dsn, 3, world.dice)
    try:
        begun = time.monotonic()
        while time.monotonic() - begun < 6 or processes.kills <= 2:
            await world.move_clock()
            await asyncio.gather(world.edit(hand), world.agent(conn))
            await asyncio.sleep(world.dice.uniform(0, 0.05))  # not to wait: a kill comes at any moment of a step
            if world.dice.random() < 0.15:
                processes.kill_one()
        world.dice = random.Random(seed)

        async def all_decided() -> bool:
            count = await conn.fetchval(
                "select count(*) from mainspring.schedule where enabled and look_at <= mainspring.now()"
            )
            return bool(count == 0)

        await finish(world, lambda: eventually(all_decided, 30))
    finally:
        processes.end()
        await hand.close()
    await world.check()
