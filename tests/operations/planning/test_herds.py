"""Herds: the seconds of a cell with their schedules; spreading them shows what would be, and changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.operations.conftest import ACTOR, echo, same_in_json

from mainspring.errors import ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import jobs, schedules
from mainspring.operations.planning import forecast, herds
from mainspring.operations.planning.herds import CellStarts, SpreadPreview
from mainspring.store.postgres.database import Connection

NOON = datetime(2031, 6, 2, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
async def some(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    await jobs.put(conn, ACTOR, "shop.sell", echo())
    for number in range(24):
        await put(conn, f"noon{number:02}", cron="0 12 * * *")
    await put(conn, "hourly", cron="@hourly", job="shop.sell", scopes=["eu", "us"])
    await put(conn, "quarter", every="15m")
    await put(conn, "late", cron="0 12 * * *", jitter="14m")


async def put(conn: Connection, name: str, **spec: Any) -> None:
    await schedules.put(conn, ACTOR, name, ScheduleSpec(**{"job": "hello", "enabled": True, **spec}))


async def test_a_cell_tells_its_seconds_and_their_schedules(conn: Connection) -> None:
    found = await herds.cell(conn, ACTOR, NOON + 100 * SECOND)
    assert (found.start, found.end, found.starts, found.peak, found.more) == (NOON, NOON + 900 * SECOND, 28, 27, 0)
    first, late = found.seconds
    assert (first.at, first.starts, len(first.schedules)) == (NOON, 27, 10)
    assert (late.starts, late.schedules) == (1, ["late"])
    assert NOON < late.at < found.end
    assert same_in_json(found, CellStarts)
    [own] = (await herds.cell(conn, Actor("x", jobs=("shop.*",)), NOON)).seconds
    assert (own.starts, own.schedules) == (2, ["hourly"])
    [next] = (await herds.cell(conn, ACTOR, NOON + 900 * SECOND)).seconds
    assert next.schedules == ["quarter"]


@pytest.mark.parametrize("by", ["minute", "second", "jitter"])
async def test_spreading_shows_what_saving_would_do(conn: Connection, by: Any) -> None:
    before = await forecast.forecast(conn, ACTOR, start=NOON, end=NOON + timedelta(hours=2))
    found = await herds.spread(conn, ACTOR, NOON, by=by, jitter="10m")
    assert same_in_json(found, SpreadPreview)
    assert (found.schedules, found.changed) == (26, 26 if by == "jitter" else 25), "an interval has no H"
    assert (found.peak_before, found.complete, sum(found.before[:60])) == (27, True, 6)
    assert found.peak_after < 20 > found.peak_after
    assert await forecast.forecast(conn, ACTOR, start=NOON, end=NOON + timedelta(hours=2)) is before, "nothing is saved"
    for stored in (await schedules.listing(conn, ACTOR, limit=100)).items:
        if stored.name == "late" or (by != "jitter" and stored.name == "quarter"):
            continue
        change = (
            {"jitter": "10m"} if by == "jitter" else {"cron": {"minute": "H 12 * * *", "second": "H H 12 * * *"}[by]}
        )
        if stored.name == "hourly" and by != "jitter":
            change = {"cron": {"minute": "H * * * *", "second": "H H * * * *"}[by]}
        await schedules.edit(conn, ACTOR, stored.name, change)
    saved = await forecast.forecast(conn, ACTOR, start=found.start, end=found.end, cell=timedelta(minutes=1))
    assert [cell.starts for cell in saved.cells] == found.after
    assert max(cell.peak for cell in saved.cells) == found.peak_after


async def test_what_is_written_differently_is_spread_by_its_own_expression(conn: Connection) -> None:
    await put(conn, "twice", cron="0,30 12 * * *")
    await put(conn, "often", cron="*/20 * * * *")
    await put(conn, "all", cron="* * * * *")
    await put(conn, "odd", cron="0,7 12 * * *")
    found = await herds.spread(conn, ACTOR, NOON, by="minute")
    assert found.schedules - found.changed == 3, "quarter, all and odd"
    after = {one.name: one.after for one in found.examples}
    assert {after.get("twice", "H/30 12 * * *"), after.get("often", "H/20 * * * *")} == {
        "H/30 12 * * *",
        "H/20 * * * *",
    }


async def test_absurd_wishes_are_refused(conn: Connection) -> None:
    for given in ({"by": "moon"}, {"by": "jitter", "jitter": "7h"}, {"by": "jitter", "jitter": 0}):
        with pytest.raises(ValidationError):
            await herds.spread(conn, ACTOR, NOON, **given)
    with pytest.raises(ValidationError):
        await herds.spread(conn, ACTOR, datetime(2031, 1, 1))
    with pytest.raises(ValidationError):
        await herds.cell(conn, ACTOR, NOON, cell=timedelta(days=2))
    quiet = await herds.spread(conn, ACTOR, NOON + 7 * SECOND)
    assert (quiet.schedules, quiet.changed, quiet.before) == (0, 0, quiet.after)
