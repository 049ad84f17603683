"""Fired: what the schedules have started, by the ledger, or by the figures where that is too long."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from tests.operations.conftest import ACTOR, echo, same_in_json

from mainspring.errors import ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import jobs, schedules
from mainspring.operations.planning import fired
from mainspring.operations.planning.fired import Fired
from mainspring.store.postgres.database import Connection

QUARTER = timedelta(minutes=15)
HOUR = timedelta(hours=1)


@pytest.fixture
async def yesterday(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> datetime:
    """A full hour. Two schedules have fired then: three times in one second, once skipped; and a quarter later."""
    monkeypatch.setattr(fired, "_kept", OrderedDict())  # other tests have had another past in this database
    at: datetime = await conn.fetchval("select date_trunc('hour', mainspring.now()) - interval '20 hours'")
    for name, job in (("a", "hello"), ("b", "shop.sell")):
        await jobs.put(conn, ACTOR, job, echo())
        await schedules.put(conn, ACTOR, name, ScheduleSpec(job=job, every="1h", scopes=["x", "y"]))
    await conn.execute(
        """insert into mainspring.fire (schedule_id, plan_time, scope, task_id, reason, origin)
           select s.id, $1::timestamptz + f.after, f.scope, f.task, case when f.task is null then 'overlap' end,
                  f.origin
             from mainspring.schedule s join (values
                 ('a', interval '0', 'x', 1, 'plan'), ('a', interval '0.4 s', 'y', 2, 'plan'),
                 ('b', interval '0', 'x', 3, 'plan'), ('b', interval '0', 'y', null, 'plan'),
                 ('b', interval '15 min', 'x', 4, 'plan'), ('b', interval '16 min', 'x', 5, 'backfill')
             ) as f(name, after, scope, task, origin) on f.name = s.name""",
        at,
    )
    return at


async def test_the_ledger_is_counted_by_cell(conn: Connection, yesterday: datetime) -> None:
    found = await fired.fired(conn, ACTOR, yesterday - HOUR, yesterday + HOUR)
    assert [(one.at, one.starts, one.skipped, one.peak, one.peak_at) for one in found.cells] == [
        (yesterday, 3, 1, 3, yesterday),
        (yesterday + QUARTER, 1, 0, 1, yesterday + QUARTER),
    ]
    assert (found.source, found.cell, found.starts) == ("ledger", 900.0, 4)
    assert same_in_json(found, Fired)
    assert await fired.fired(conn, ACTOR, yesterday - HOUR, yesterday + HOUR) is found, "the past does not change"
    assert (await fired.fired(conn, Actor("x", jobs=("shop.*",)), yesterday, yesterday + HOUR)).starts == 2


async def test_what_is_to_come_has_not_fired(conn: Connection, yesterday: datetime) -> None:
    now: datetime = await conn.fetchval("select mainspring.now()")
    found = await fired.fired(conn, ACTOR, yesterday, now + HOUR)
    assert now <= found.end < now + HOUR
    assert found.starts == 4
    assert (await fired.fired(conn, ACTOR, now + HOUR, now + 2 * HOUR)).cells == []


async def test_figures_tell_what_the_ledger_is_too_long_for(
    conn: Connection, yesterday: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job, count in ((0, 7), ((await conn.fetchval("select id from mainspring.job where name = 'shop.sell'")), 5)):
        await conn.execute(
            """insert into mainspring.figure (minute, writer, job_id, count, outcome, again, planned)
               values ($1, $2, $3, $4, 4, false, array[1, 2, $4 - 3])""",
            yesterday + QUARTER, UUID(int=1), job, count,
        )  # fmt: skip

    async def too_long(*given: object, **more: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("mainspring.store.schedules.fires.started", too_long)
    found = await fired.fired(conn, ACTOR, yesterday - HOUR, yesterday + 3 * HOUR)
    assert [(one.at, one.starts, one.skipped, one.peak) for one in found.cells] == [(yesterday, 7, None, None)]
    assert (found.source, found.cell) == ("figures", 3600.0)
    assert (await fired.fired(conn, Actor("x", jobs=("shop.*",)), yesterday, yesterday + HOUR)).starts == 5


async def test_absurd_ranges_are_refused(conn: Connection) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for end, cell in ((start, QUARTER), (start + timedelta(days=9), QUARTER), (start + HOUR, timedelta(0))):
        with pytest.raises(ValidationError):
            await fired.fired(conn, ACTOR, start, end, cell=cell)
