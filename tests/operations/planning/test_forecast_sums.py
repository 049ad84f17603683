"""Forecast: the sums of a week are those of counting every task of every schedule, one by one, over clock changes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.operations.conftest import ACTOR, echo

from mainspring.model.forecasting.forecast import HERD
from mainspring.model.schedules.planning import Decided, run_at
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.model.schedules.skips import covering
from mainspring.model.schedules.timing import timing
from mainspring.operations.definitions import calendars, jobs, schedules
from mainspring.operations.planning import forecast, skips
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import schedules as stored_schedules

QUARTER = timedelta(minutes=15)
SECOND = timedelta(seconds=1)
# Weeks, by the clocks of the zone, in which they go forward, back, and (by half an hour) back.
WEEKS = {
    "Europe/Berlin": datetime(2031, 3, 23, 23, tzinfo=UTC),
    "America/New_York": datetime(2031, 10, 27, 4, tzinfo=UTC),
    "Australia/Lord_Howe": datetime(2031, 3, 30, 13, tzinfo=UTC),
}
CRON = (
    "0 0 * * *", "30 2 * * *", "30 1 * * SUN", "*/5 * * * *", "0 */2 * * *", "H H * * *", "H/7 * * * MON-FRI",
    "0 0 L * *",
)  # fmt: skip
OTHERS: tuple[dict[str, Any], ...] = (
    {"every": "7m"},
    {"every": "1h", "anchor": "2026-01-01T00:10:00Z"},
    {"every": "1h", "anchor": "2026-03-01T05:10:00Z"},
    {"every": "6h", "calendars": ["holidays"]},
    {"cron": "15 3 * * *", "jitter": "90m", "scopes": ["eu", "us"]},
    {"cron": "0 * * * *", "jitter": 30, "delay": "2d"},
    {"every": "5h", "jitter": "30h"},
    {"cron": "0 6 * * *", "delay": "90s"},
    {"cron": "0 7 * * *", "calendars": ["holidays"]},
    {"cron": "30 2 * * *", "gap": "skip", "fold": "both"},
    {"cron": "0 1 * * *", "max_runs": 1600},
    {"once": "2031-11-02T05:30:00Z"},
    {"once": "2031-03-30T01:00:00Z"},
    {"cron": "*/10 * * * *", "start": "2031-03-28T10:05:00Z", "end": "2031-11-01T10:00:00Z"},
)


async def fill(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    await jobs.put(conn, ACTOR, "other", echo())
    await calendars.put(conn, ACTOR, "holidays", ["2031-10-31", "2031-03-29", "sun"])
    for zone in (*WEEKS, "UTC"):
        for number, cron in enumerate(CRON):
            for copy in range(3):
                spec = ScheduleSpec(job="hello", cron=cron, tz=zone, enabled=True)
                await schedules.put(conn, ACTOR, f"{zone.replace('/', '-')}-{number}-{copy}", spec)
    for number, given in enumerate(OTHERS):
        own = {} if "every" in given or "once" in given else {"tz": [*WEEKS][number % 3]}
        await schedules.put(
            conn, ACTOR, f"o{number}", ScheduleSpec(**{"job": "other", "enabled": True, **own, **given})
        )
    for number in range(HERD):
        await schedules.put(conn, ACTOR, f"herd{number}", ScheduleSpec(job="hello", cron="30 12 * * *", enabled=True))
    await schedules.put(conn, ACTOR, "off", ScheduleSpec(job="hello", cron="* * * * *"))
    await skips.skip(conn, ACTOR, "UTC-0-1", until=datetime(2031, 3, 27, tzinfo=UTC))


async def one_by_one(conn: Connection, start: datetime, end: datetime, job: str | None = None) -> Counter[datetime]:
    """The second of every task that the schedules start, without any arithmetic."""
    found: Counter[datetime] = Counter()
    for stored in await stored_schedules.listing(conn):
        schedule, policies = stored.schedule, stored.schedule.policies
        if not stored.enabled or job not in (None, schedule.job):
            continue
        delay = timedelta(seconds=policies.delay)
        since = start - delay - timedelta(seconds=policies.jitter)
        if policies.max_runs is not None:
            since = stored.now
        plan_times = timing(schedule).between(since - timedelta(microseconds=1), end, 10**6)
        for at in [at for at in plan_times if covering(stored.skips, at) is None][: policies.max_runs]:
            for scope in policies.scopes or ("",):
                due = run_at(schedule.name, Decided(at, at + delay, None), scope, policies.jitter)
                if start <= due < end:
                    found[start + (due - start) // SECOND * SECOND] += 1
    return found


@pytest.mark.parametrize("zone", WEEKS)
async def test_the_sums_of_a_week_are_those_of_counting_one_by_one(conn: Connection, zone: str) -> None:
    await fill(conn)
    start = WEEKS[zone]
    week, longer = start + timedelta(days=7), start + timedelta(days=7, hours=1)  # the clocks go back: one hour more
    counted = await one_by_one(conn, start, longer)
    for end in (week, longer):
        found = await forecast.forecast(conn, ACTOR, start=start, end=end, cell=QUARTER)
        cells: dict[datetime, dict[datetime, int]] = {cell.at: {} for cell in found.cells}
        for at, count in counted.items():
            if at < end:
                cells[start + (at - start) // QUARTER * QUARTER][at] = count
        assert (found.complete, found.unknown) == (True, [])
        assert found.starts == sum(sum(own.values()) for own in cells.values())
        for cell in found.cells:
            own = cells[cell.at]
            peak = max(own.values(), default=0)
            first = min((at for at, count in own.items() if count == peak), default=None)
            assert (cell.at, cell.starts, cell.peak, cell.peak_at) == (cell.at, sum(own.values()), peak, first)
    assert max(cell.peak for cell in found.cells) >= HERD
    by_job = await forecast.forecast(conn, ACTOR, start=start, end=longer, cell=QUARTER, by="job")
    sums = {series.name: sum(series.starts) for series in by_job.series}
    other = (await one_by_one(conn, start, longer, "other")).total()
    assert sums == {"other": other, "hello": counted.total() - other}
