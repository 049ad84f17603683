"""Pinger: starts, successes and failures reach the address of their schedule, and a bad address holds up nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.server.watch.conftest import MINUTE, NOON, SECOND, plan, set_clock, start
from tests.server.watch.listener import listening

from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.tasks.states import TaskState
from mainspring.model.watch.pings import address, events
from mainspring.server.planning.planner import Planner
from mainspring.server.watch.fetcher import Fetcher
from mainspring.server.watch.pinger import Pinger
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import backfill, schedules


@pytest.fixture
async def pinger(database: Database) -> AsyncIterator[Pinger]:
    fetcher = Fetcher(("127.0.0.0/8",))
    pinger = Pinger(database, fetcher)
    yield pinger
    await pinger.close()
    await fetcher.close()


async def make(conn: Connection, url: str, name: str = "s", **when: Any) -> None:
    given: Any = {"every": "1m", "ping_url": url, **when}
    assert await schedules.create(conn, define_schedule(name, "job", given), enabled=True)


async def pass_on(pinger: Pinger) -> None:
    """One step, with what it sends."""
    await pinger.step()
    await asyncio.gather(*pinger._sending.values())


def test_the_event_is_part_of_the_path() -> None:
    assert [address("https://hc.example/ping/7", event) for event in ("start", "success", "fail")] == [
        "https://hc.example/ping/7/start",
        "https://hc.example/ping/7",
        "https://hc.example/ping/7/fail",
    ]
    assert address("https://hc.example/7/?create=1", "start") == "https://hc.example/7/start?create=1"


@pytest.mark.parametrize(
    ("state", "has_started", "start_told", "told"),
    [
        (TaskState.PENDING, False, False, []),
        (TaskState.RUNNING, True, False, ["start"]),
        (TaskState.RUNNING, True, True, []),
        (TaskState.PENDING, True, True, []),
        (TaskState.SUCCEEDED, True, True, ["success"]),
        (TaskState.SUCCEEDED, True, False, ["start", "success"]),
        (TaskState.TIMED_OUT, True, True, ["fail"]),
        (TaskState.LOST, False, False, ["fail"]),
        (TaskState.CANCELLED, True, True, ["fail"]),
        (TaskState.CANCELLED, False, False, []),
        (TaskState.SKIPPED, False, False, []),
        (None, False, False, []),
    ],
)
def test_what_is_told_of_a_task(state: TaskState | None, has_started: bool, start_told: bool, told: list[str]) -> None:
    assert events(state, has_started=has_started, start_told=start_told) == told


async def test_start_success_and_failure_are_told_in_order_and_once(
    conn: Connection, planner: Planner, pinger: Pinger
) -> None:
    async with listening() as listener:
        await make(conn, f"{listener.url}/p")
        await plan(conn, planner, NOON + MINUTE - 5 * SECOND)
        await pass_on(pinger)
        assert listener.paths == [], "it has not started"
        await conn.execute("update mainspring.task set state = 3, token = id, attempt = 1, started_at = plan_time")
        await set_clock(conn, NOON + MINUTE + 5 * SECOND)
        await pass_on(pinger)
        await set_clock(conn, NOON + MINUTE + 10 * SECOND)
        await pass_on(pinger)
        assert listener.paths == ["/p/start"]
        assert f"Mainspring-Task: {await conn.fetchval('select id from mainspring.task')}" in listener.requests[0]
        await conn.execute("update mainspring.task set state = 1")
        await start(conn)
        await set_clock(conn, NOON + MINUTE + 15 * SECOND)
        await pass_on(pinger)
        assert listener.paths == ["/p/start", "/p"]
        await plan(conn, planner, NOON + 2 * MINUTE - 5 * SECOND)
        await start(conn, state=TaskState.FAILED)
        await set_clock(conn, NOON + 2 * MINUTE + 15 * SECOND)
        await pass_on(pinger)
        await pass_on(pinger)
        assert listener.paths == ["/p/start", "/p", "/p/start", "/p/fail"]
        assert not await conn.fetchval("select count(*) from mainspring.ping")
        assert pinger.tally == {("start", "ok"): 2, ("success", "ok"): 1, ("fail", "ok"): 1}


async def test_a_run_by_hand_is_told_and_a_run_of_another_schedule_is_not(
    conn: Connection, planner: Planner, pinger: Pinger
) -> None:
    async with listening() as listener:
        await make(conn, listener.url)
        assert await schedules.create(conn, define_schedule("quiet", "job", {"every": "1m"}), enabled=True)
        await set_clock(conn, NOON + 7 * SECOND)
        await backfill.run_now(conn, "s")
        await backfill.run_now(conn, "quiet")
        await start(conn)
        await set_clock(conn, NOON + 10 * SECOND)
        await pass_on(pinger)
        assert listener.paths == ["/start", "/"]


async def test_a_run_by_hand_of_a_disabled_schedule_is_told_at_once_and_not_again(
    conn: Connection, planner: Planner, pinger: Pinger
) -> None:
    async with listening() as listener:
        await make(conn, listener.url)
        await schedules.change(conn, "s", lambda schedule: schedule, enabled=False)
        await set_clock(conn, NOON + 10 * MINUTE)
        await backfill.run_now(conn, "s")
        await start(conn)
        await set_clock(conn, NOON + 10 * MINUTE + 5 * SECOND)
        await pass_on(pinger)
        assert listener.paths == ["/start", "/"]
        await set_clock(conn, NOON + 20 * MINUTE)
        await schedules.change(conn, "s", lambda schedule: schedule, enabled=True)
        await plan(conn, planner, NOON + 21 * MINUTE - 5 * SECOND)
        await start(conn)
        await set_clock(conn, NOON + 21 * MINUTE + 5 * SECOND)
        await pass_on(pinger)
        assert listener.paths == ["/start", "/"] * 2, "from then on its plan times"


async def test_an_error_while_telling_is_logged(
    conn: Connection, planner: Planner, pinger: Pinger, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    async def wrong(*_: object) -> None:
        raise LookupError("no such thing")

    await make(conn, "http://127.0.0.1:9/")
    await plan(conn, planner, NOON + MINUTE - 5 * SECOND)
    await start(conn)
    await set_clock(conn, NOON + MINUTE + 5 * SECOND)
    monkeypatch.setattr(pinger._fetcher, "fetch", wrong)
    await pinger.step()
    [sending] = pinger._sending.values()
    await asyncio.wait([sending])
    await asyncio.sleep(0)  # its callbacks
    assert "no such thing" in caplog.text
    assert pinger._sending == {}


async def test_what_was_sent_and_not_noted_is_sent_again(
    conn: Connection, planner: Planner, pinger: Pinger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(*_: Any) -> None:
        raise asyncio.CancelledError

    async with listening() as listener:
        await make(conn, listener.url)
        await plan(conn, planner, NOON + MINUTE - 5 * SECOND)
        await start(conn)
        await set_clock(conn, NOON + MINUTE + 5 * SECOND)
        with monkeypatch.context() as patched:
            patched.setattr("mainspring.store.followed.pings.told", killed)
            with pytest.raises(asyncio.CancelledError):
                await pass_on(pinger)
        await set_clock(conn, NOON + MINUTE + 10 * SECOND)
        await pass_on(pinger)
        assert listener.paths == ["/start", "/", "/start", "/"]


async def test_an_address_that_never_answers_holds_up_no_other_and_nothing_piles_up(
    conn: Connection, planner: Planner, pinger: Pinger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.store.followed.pings._TRIM", _trim_to(3))
    async with listening() as dead, listening() as well:
        dead.silent = True
        await make(conn, dead.url, "dead", every="10s")
        await make(conn, well.url, "well", every="10s")
        for second in range(10, 100, 10):
            await plan(conn, planner, NOON + second * SECOND)
            await start(conn)
            await set_clock(conn, NOON + second * SECOND + 4 * SECOND)
            await pinger.step()
            while len(pinger._sending) > 1:
                await asyncio.sleep(0.01)
        assert well.paths[:2] == ["/start", "/"]
        assert len(well.paths) >= 16
        assert (dead.most_open, len(dead.paths)) == (1, 1), "one request under way, whatever has happened since"
        assert await conn.fetchval("select count(*) from mainspring.ping where schedule_id = 1") <= 4


def _trim_to(most: int) -> str:
    from mainspring.store.followed import pings

    return pings._TRIM.replace(str(pings.OPEN), str(most))


async def test_after_a_failure_it_waits_and_tries_again(
    conn: Connection, planner: Planner, pinger: Pinger, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as listener:
        listener.status = 503
        await make(conn, listener.url)
        await plan(conn, planner, NOON + MINUTE - 5 * SECOND)
        await start(conn)
        for second in range(5, 20, 3):
            await set_clock(conn, NOON + MINUTE + second * SECOND)
            await pass_on(pinger)
        assert listener.paths == ["/start"]
        assert "the ping_url of schedule s did not take a ping: it answered 503" in caplog.text
        listener.status = 200
        pinger._resumes_at.clear()
        await set_clock(conn, NOON + MINUTE + 30 * SECOND)
        await pass_on(pinger)
        assert listener.paths == ["/start", "/start", "/"]
        assert pinger._failures == {}


async def test_without_an_address_nothing_is_read(conn: Connection, pinger: Pinger, planner: Planner) -> None:
    async with listening() as listener:
        await make(conn, listener.url)
        await schedules.change(conn, "s", lambda _: define_schedule("s", "job", {"every": "1m"}))
        assert not await conn.fetchval("select count(*) from mainspring.ping_cursor")
        await plan(conn, planner, NOON + MINUTE)
        await start(conn)
        await set_clock(conn, NOON + 2 * MINUTE)
        await pass_on(pinger)
        assert listener.paths == []
