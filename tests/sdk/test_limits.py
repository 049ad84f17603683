"""Limits in code: what `@app.job` takes, what it refuses, and what a key is made of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, ValidationError
from mainspring.store.limits import release
from mainspring.store.postgres.database import Database


async def keys(dsn: str) -> list[str]:
    """Of all tasks, once they have passed their gates or stand aside."""
    conn = await Database(dsn).connect()
    for gate in await release.look(conn):
        await release.release(conn, gate, 100, ahead=60.0, beyond=100)
    found = [row["concurrency_key"] for row in await conn.fetch("select * from mainspring.task order by id")]
    await conn.close()
    return found


async def test_a_key_takes_arguments_and_their_defaults(app: App, dsn: str) -> None:
    @app.job(concurrency_key="{shop}:{region}:{deep}")
    async def export(shop: int, region: str = "eu", deep: bool = False) -> None: ...

    async with app:
        await export.enqueue(7)
        await export.enqueue(7, "us", deep=True)
        await export.enqueue_many([(8,), {"shop": 9, "region": "asia"}])
        await export.using(concurrency_key="mine").enqueue(7)
    assert await keys(dsn) == ["7:eu:false", "7:us:true", "8:eu:false", "9:asia:false", "mine"]


async def test_a_job_without_limits_has_no_gate(app: App, dsn: str) -> None:
    @app.job
    async def export(shop: int = 7) -> None: ...

    app.command("backup", ["true"])
    async with app:
        await export.enqueue()
    conn = await Database(dsn).connect()
    assert await conn.fetchval("select count(*) from mainspring.pool where target is not null") == 0
    await conn.close()


async def test_all_kinds_of_jobs_and_ways_to_submit_have_limits(app: App, dsn: str) -> None:
    command = app.command("backup", ["true"], concurrency_key="{database}")
    call = app.http("ping", "GET", "https://shop.example/", max_running=1)
    async with app:
        await command.enqueue(database="shop")
        await call.using(concurrency_key="shop").enqueue()
        await command.using(concurrency_key="many").enqueue_many([{}, {}])
        async with app.database.acquire() as conn:
            await command.using(conn=conn, concurrency_key="theirs").enqueue()
    assert await keys(dsn) == ["shop", "shop", "many", "many", "theirs"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"concurrency_key": "{shop}"}, "concurrency_key: report.* has no parameter 'shop'"),
        ({"max_running": 0}, "max_running: 0; give a number from 1"),
        ({"max_running": 1, "broadcast": True}, "max_running: a broadcast runs on every agent"),
        ({"max_running": 1, "daemon": True}, "daemon: job 'report' has limits"),
        ({"rate": "1/second", "replicas": 2}, "daemon: job 'report' has limits"),
        ({"rate": "100/fortnight"}, "rate: '100/fortnight'; write starts per second"),
        ({"concurency_key": "k"}, "did you mean concurrency_key"),
    ],
)
def test_limits_that_cannot_be_are_refused_where_they_are_written(options: Any, says: str) -> None:
    app = App("test")

    async def report(day: str = "") -> None: ...

    with pytest.raises(ValidationError, match=says):
        app.job(**options)(report)
    assert app.definitions == {}


def test_a_further_schedule_makes_no_daemon_of_a_limited_job() -> None:
    app = App("test")

    @app.job(max_running=1)
    async def report() -> None: ...

    with pytest.raises(ValidationError, match="has limits"):
        report.schedule("kept", daemon=True)


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 201, 7])
def test_a_bad_key_of_a_task_is_refused(key: Any) -> None:
    app = App("test")

    @app.job
    async def report() -> None: ...

    with pytest.raises(ValidationError, match="concurrency_key: "):
        report.using(concurrency_key=key)


async def test_runs_of_a_schedule_have_the_limits_of_their_job(app: App) -> None:
    inside: list[int] = []
    most = 0

    @app.job(every="0.1s", max_running=1, overlap="allow")
    async def tick() -> None:
        nonlocal most
        inside.append(1)
        most = max(most, len(inside))
        await asyncio.sleep(0.15)
        inside.pop()

    async with app.running():
        for _ in range(2):
            await (await tick.using(priority="high").enqueue()).result(timeout=10)
    assert most == 1
