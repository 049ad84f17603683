"""Forecast: planned starts by cell, by job and by label; herds; kept until a schedule changes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any

import pytest
from tests.operations.conftest import ACTOR, echo, same_in_json

from mainspring.errors import ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import jobs, schedules
from mainspring.operations.planning import forecast
from mainspring.operations.planning.forecast import Forecast
from mainspring.store.postgres.database import Connection

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
async def two_jobs(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    await jobs.put(conn, ACTOR, "shop.sell", echo(requires={"zone": "eu"}))


async def put(conn: Connection, name: str, **spec: Any) -> None:
    await schedules.put(conn, ACTOR, name, ScheduleSpec(**{"job": "hello", "enabled": True, **spec}))


async def foresee(conn: Connection, actor: Actor = ACTOR, **given: Any) -> Forecast:
    return await forecast.forecast(conn, actor, **{"start": START, "end": START + 2 * HOUR, "cell": HOUR, **given})


async def test_starts_are_counted_by_cell_job_and_label(conn: Connection) -> None:
    await put(conn, "quarterly", every="15m")
    await put(conn, "hourly", cron="30 * * * *", job="shop.sell", scopes=["a", "b"])
    await put(conn, "off", every=1, enabled=False)
    await put(conn, "kept", daemon=2)
    await put(conn, "once", once="2030-01-01T01:15:00Z")
    found = await foresee(conn)
    assert [(cell.at, cell.starts, cell.peak) for cell in found.cells] == [(START, 6, 3), (START + HOUR, 7, 3)]
    assert (found.cells[0].peak_at, found.starts, found.complete, found.series) == (START + HOUR / 2, 13, True, [])
    assert same_in_json(found, Forecast)
    by_job = await foresee(conn, by="job")
    assert {one.name: one.starts for one in by_job.series} == {"hello": [4, 5], "shop.sell": [2, 2]}
    by_label = await foresee(conn, by="label")
    assert {one.name: one.starts for one in by_label.series} == {"": [4, 5], "zone=eu": [2, 2]}
    assert (await foresee(conn, Actor("x", jobs=("shop.*",)))).starts == 4


async def test_a_herd_names_its_schedules(conn: Connection) -> None:
    for number in range(21):
        await put(conn, f"s{number:02}", cron="0 1 * * *")
    [herd] = (await foresee(conn)).herds
    assert (herd.at, herd.starts, herd.schedules) == (START + HOUR, 21, [f"s{number:02}" for number in range(10)])


async def test_runs_that_are_left_are_the_only_ones(conn: Connection) -> None:
    await put(conn, "few", every=60, max_runs=5)
    await conn.execute("update mainspring.schedule set runs = 2")
    now: datetime = await conn.fetchval("select mainspring.now()")
    assert (await foresee(conn, start=now - HOUR, end=now + HOUR)).starts == 3
    assert (await foresee(conn)).starts == 0, "they are used up by then"


async def test_a_forecast_is_kept_until_a_schedule_changes(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(conn, "hourly", every="1h")
    first = await foresee(conn)
    assert await foresee(conn) is first
    await schedules.edit(conn, ACTOR, "hourly", {"every": "30m"})
    assert (await foresee(conn)).starts == 4
    await put(conn, "other", every="1h")
    assert (await foresee(conn)).starts == 6
    await schedules.delete(conn, ACTOR, "other")
    assert (await foresee(conn)).starts == 4
    now = await forecast.forecast(conn, ACTOR)
    assert (now.start.minute % 15, now.start.second, now.end - now.start) == (0, 0, timedelta(days=1))
    assert await forecast.forecast(conn, ACTOR) is now, "the start is that of a cell"


async def test_without_time_it_says_that_it_is_not_complete(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await put(conn, f"s{number}", cron=f"{number} * * * *")
    monkeypatch.setattr(forecast, "BUDGET", -1.0)
    assert not (await foresee(conn)).complete


async def test_what_cannot_be_planned_here_is_named(conn: Connection) -> None:
    await put(conn, "hourly", every="1h")
    await put(conn, "mars", every="1h")
    await put(conn, "odd", every="1h")
    await conn.execute("update mainspring.schedule set timezone = 'Mars/Base' where name = 'mars'")
    await conn.execute("update mainspring.schedule set policies = '{\"jitter\": \"x\"}' where name = 'odd'")
    found = await foresee(conn)
    assert (found.starts, sorted(found.unknown)) == (2, ["mars", "odd"])


async def test_the_event_loop_is_left_to_others(conn: Connection) -> None:
    """No assertion about time: while it computes, others get their turns."""
    for number in range(30):
        await put(conn, f"s{number}", every=1 + number / 1000)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    begin = perf_counter()
    await foresee(conn, end=START + 24 * HOUR)
    took = perf_counter() - begin
    task.cancel()
    assert took > 0
    assert turns > 30, "one for each schedule at least"


async def test_absurd_ranges_are_refused(conn: Connection) -> None:
    for given in (
        {"end": START},
        {"end": START + timedelta(days=9)},
        {"cell": timedelta(seconds=1)},
        {"cell": timedelta(seconds=0.5)},
        {"cell": timedelta(days=2)},
        {"start": datetime(2030, 1, 1)},
        {"by": "moon"},
    ):
        with pytest.raises(ValidationError):
            await foresee(conn, **given)
