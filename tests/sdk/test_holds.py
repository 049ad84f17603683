"""Holds in a running application: nothing new starts, what runs goes on, and what waited starts after the release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import App, current_task
from mainspring.model.limits.holds import Spread
from mainspring.operations import plan_times
from mainspring.operations.actors import this_user
from tests.conftest import eventually


async def test_nothing_new_of_a_held_job_starts_and_what_runs_goes_on(app: App) -> None:
    started: list[str] = []
    may_end = asyncio.Event()

    @app.job
    async def report(name: str) -> str:
        started.append(name)
        if name == "long":
            await may_end.wait()
        return name

    @app.job
    async def other() -> None: ...

    async with app.running(slots=4):
        runs = await report.enqueue("long")
        await until(lambda: started == ["long"])
        ahead = await report.using(delay="3s").enqueue("armed ahead")
        await _held_by_an_agent(app, ahead.id)
        await report.hold(note="the warehouse is down")
        waits = await report.enqueue("new")
        await (await other.enqueue()).result(timeout=10)
        await _waits_for(app, ahead.id, "pending", seconds=3.5)
        assert started == ["long"]
        may_end.set()
        assert await runs.result(timeout=10) == "long"
        await report.release(at_once=True)
        assert await ahead.result(timeout=10) == "armed ahead"
        assert await waits.result(timeout=10) == "new"
        assert (await ahead.status()).attempt == 1, "the recall cost none"


async def test_nothing_at_all_starts_while_everything_is_held(app: App) -> None:
    @app.job
    async def report() -> int:
        return current_task().attempt

    async with app.running():
        ahead = await report.using(delay="3s").enqueue()
        await _held_by_an_agent(app, ahead.id)
        await app.hold()
        tasks = [ahead, await report.enqueue(), *await report.enqueue_many([()] * 5)]
        await _waits_for(app, ahead.id, "pending", seconds=3.5)
        assert {(await task.status()).state for task in tasks} == {"pending"}
        await app.release()
        assert [await task.result(timeout=20) for task in tasks] == [1] * 7


async def test_a_retry_and_a_child_that_is_freed_wait_while_their_job_is_held(app: App) -> None:
    started: list[str] = []
    may_fail = asyncio.Event()

    @app.job(retries=3, backoff="fixed", retry_delay="10ms")
    async def flaky() -> None:
        started.append("flaky")
        if len(started) == 1:
            await may_fail.wait()
            raise OSError("once")

    @app.job
    async def parent() -> None: ...

    async with app.running():
        task = await flaky.enqueue()
        await until(lambda: started == ["flaky"])
        await flaky.hold()
        may_fail.set()
        child = await flaky.using(after=await parent.enqueue()).enqueue()
        await _waits_for(app, task.id, "pending", seconds=1.0)
        await _waits_for(app, child.id, "pending", seconds=0.2)
        assert started == ["flaky"]
        await flaky.release(at_once=True)
        await task.result(timeout=10)
        await child.result(timeout=10)
        assert started == ["flaky"] * 3


async def test_plan_times_are_decided_under_a_hold_and_their_tasks_wait(app: App) -> None:
    fired: list[datetime] = []

    @app.job(every="500ms", overlap="allow", catch_up="all")
    async def tick() -> None:
        fired.append(datetime.now(UTC))

    async with app.running():
        await until(lambda: len(fired) > 1)
        await tick.hold()
        await _nothing_is_held_by_an_agent(app)
        before = len(fired)
        held_at = datetime.now(UTC)

        async def are_decided() -> list[Any] | None:
            found = await fires(app, held_at, datetime.now(UTC))
            return found if len(found) > 2 else None

        decided = await eventually(are_decided)
        assert all(row["task_id"] is not None for row in decided)
        async with app.database.acquire() as conn:
            told = await plan_times.explain(conn, this_user(), "tick", at=decided[0]["plan_time"])
        assert "job 'tick' is held by " in " ".join(told.plan_times[0].fires[0].said)
        assert len(fired) == before
        await tick.release(at_once=True)
        await until(lambda: len(fired) >= before + 3)


async def test_plan_times_of_a_hold_that_skips_are_paused_and_those_after_its_release_run(app: App) -> None:
    fired: list[datetime] = []

    @app.job(every="1s", overlap="allow")
    async def tick() -> None:
        plan_time = current_task().plan_time
        assert plan_time is not None
        fired.append(plan_time)

    async def reasons(since: datetime, until: datetime) -> list[str | None]:
        return [row["reason"] for row in await fires(app, since, until)]

    async with app.running():
        await until(lambda: bool(fired))
        await tick.hold(skip=True)
        await _nothing_is_held_by_an_agent(app)
        held_at = datetime.now(UTC)

        async def is_skipped() -> bool:
            found = await reasons(held_at, held_at + timedelta(seconds=3))
            return len(found) == 3 and set(found) == {"paused"}

        await eventually(is_skipped)
        await asyncio.sleep(2.2)
        assert [one for one in fired if one > held_at] == []
        await tick.release()
        released_at = datetime.now(UTC)
        await until(lambda: any(one > released_at for one in fired))
        assert set(await reasons(held_at, released_at - timedelta(seconds=0.5))) == {"paused"}
        last = datetime.now(UTC)
        assert set(await reasons(released_at, last)) == {None}, "plan times after the release were decided anew"


async def test_a_replica_of_a_held_daemon_goes_on_and_is_not_started_again(app: App) -> None:
    lives: list[int] = []
    dies = asyncio.Event()

    @app.job(daemon=True, restart_delay="100ms")
    async def watcher() -> None:
        lives.append(len(lives))
        await dies.wait()
        dies.clear()
        raise OSError("gone")

    async with app.running():
        await until(lambda: lives == [0])
        await watcher.hold()
        await asyncio.sleep(0.5)
        assert lives == [0]
        dies.set()
        await asyncio.sleep(1.5)
        assert lives == [0], "it died, and nothing has started it again"
        await watcher.release()
        await until(lambda: lives == [0, 1])


@pytest.mark.parametrize("waiting", [1, 600, 60_000])
def test_what_waits_after_a_hold_of_everything_is_claimed_within_the_minute(waiting: int) -> None:
    spread, claimed, now = Spread(waiting, began=100.0), 0, 100.0
    most = 0
    while (allowed := spread.allows(now)) is not None:
        taken = min(allowed, waiting - claimed)
        spread.claimed(taken)
        claimed += taken
        most = max(most, taken)
        now += 0.05
    assert claimed == waiting
    assert now <= 160.1
    assert most <= max(10, waiting / 60) + 1
    assert spread.allows(now) is None


async def until(check: Callable[[], bool]) -> None:
    async def is_so() -> bool:
        return check()

    await eventually(is_so)


async def fires(app: App, since: datetime, until: datetime) -> list[Any]:
    """The ledger between two instants."""
    query = "select plan_time, task_id, reason from mainspring.fire where plan_time > $1 and plan_time <= $2"
    async with app.database.acquire() as conn:
        return list(await conn.fetch(query, since, until))


async def _held_by_an_agent(app: App, task: int) -> None:
    async def is_assigned() -> bool:
        return (await app.status(task)).state == "assigned"

    await eventually(is_assigned)


async def _nothing_is_held_by_an_agent(app: App) -> None:
    """A hold has taken back what was armed, and what ran has ended."""

    async def is_so() -> bool:
        async with app.database.acquire() as conn:
            return not await conn.fetchval("select exists (select from mainspring.task where state in (2, 3))")

    await eventually(is_so)


async def _waits_for(app: App, task: int, state: str, *, seconds: float) -> None:
    """It comes to this state, and stays there for so long."""

    async def is_there() -> bool:
        return (await app.status(task)).state == state

    await eventually(is_there)
    await asyncio.sleep(seconds)
    assert await is_there()
