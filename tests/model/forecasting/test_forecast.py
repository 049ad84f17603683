"""Forecast: counted by arithmetic as by counting plan time by plan time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.model.forecasting.forecast import HERD, Counts, Herd, Source
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.schedules.planning import Decided, run_at
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.timing import timing

START = datetime(2026, 3, 29, tzinfo=UTC)  # the clocks of Paris go forward
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
TICK = timedelta(microseconds=1)


def schedule(name: str = "s", **when: Any) -> Schedule:
    return define_schedule(name, "job", when)  # type: ignore[arg-type]


def counted(*sources: Source, end: datetime = START + 4 * HOUR, cell: timedelta = HOUR / 2) -> Counts:
    counts = Counts(START, end, cell, START)
    for source in sources:
        for _ in counts.add(source):
            pass
    return counts


def one_by_one(schedule: Schedule, end: datetime, left: int | None = None) -> list[datetime]:
    """The starts of a schedule without arithmetic: every plan time, and where its task lands."""
    policies = schedule.policies
    delay = timedelta(seconds=policies.delay)
    since = START if left is not None else START - delay - timedelta(seconds=policies.jitter)
    plan_times = timing(schedule).between(since - TICK, end, 10**6 if left is None else left)
    starts = [
        run_at(schedule.name, Decided(at, at + delay, None), scope, policies.jitter)
        for at in plan_times
        for scope in policies.scopes or ("",)
    ]
    return [at for at in starts if START <= at < end]


INTERVALS = st.fixed_dictionaries(
    {"every": st.floats(0.3, 900) | st.sampled_from([1, 60, 3600, 0.5])},
    optional={
        "anchor": st.just("2026-03-01T00:00:07.25Z"),
        "delay": st.sampled_from([0.5, 90, 1200]),
        "start": st.just("2026-03-29T00:10:00.5Z"),
        "end": st.sampled_from(["2026-03-29T00:25Z", "2026-03-29T00:30:07.25Z"]),
    },
)
OTHERS = st.sampled_from(
    [
        {"cron": "*/7 * * * *", "tz": "Europe/Paris"},
        {"cron": "5 1 * * *", "tz": "Europe/Paris"},
        {"cron": "H H * * *", "delay": 30},
        {"once": "2026-03-29T00:15Z"},
        {"every": 60, "jitter": 300, "scopes": ["eu", "us"]},
        {"cron": "0 * * * *", "jitter": "30m", "delay": 60},
    ]
)


@given(INTERVALS | OTHERS, st.none() | st.integers(0, 5))
@example({"every": 0.3, "delay": 0.5}, None)
def test_cells_and_seconds_are_those_that_counting_finds(when: Any, left: int | None) -> None:
    end, cell = START + 40 * MINUTE, 5 * MINUTE
    one = schedule(**when)
    counts = counted(Source(one, ["s"], {"": max(1, len(one.policies.scopes))}, left), end=end, cell=cell)
    starts = one_by_one(one, end, left)
    seconds = Counter((at - START) // timedelta(seconds=1) for at in starts)
    assert {number: count for number, count in enumerate(counts.by_second) if count} == dict(seconds)
    cells = Counter((at - START) // cell for at in starts)
    assert counts.by_series.get("", [0] * 8) == [cells[number] for number in range(8)]


def test_series_are_counted_apart_and_peaks_together() -> None:
    hourly = Source(schedule(every=3600), ["a", "b"], {"x": 2, "y": 1})
    often = Source(schedule(every=60), ["c"], {"x": 1})
    counts = counted(hourly, often, end=START + HOUR)
    assert counts.by_series == {"x": [2 + 30, 30], "y": [1, 0]}
    assert counts.peak(0) == (4, START)
    assert counts.peak(1) == (1, START + HOUR / 2)


def test_herds_are_named_by_those_without_jitter() -> None:
    many = Source(schedule("a", cron="0 * * * *"), ["a", "b"], {"": HERD})
    spread = [Source(schedule(f"j{number}", every=3600, jitter=0.5), [f"j{number}"], {"": 1}) for number in range(3)]
    counts = counted(many, *spread, Source(schedule("c", every=60), ["c"], {"": 1}), end=START + 2 * HOUR)
    herds = [herd for herd in counts.herds() if herd is not None]
    assert herds == [Herd(START + number * HOUR, HERD + 4, ["a", "b", "c"]) for number in range(2)]


def test_excluded_days_have_no_starts() -> None:
    one = schedule(every=3600)
    one = replace(one, policies=replace(one.policies, excluded=("03-29",)))
    counts = counted(Source(one, ["s"], {"": 1}), end=START + 48 * HOUR, cell=24 * HOUR)
    assert counts.by_series == {"": [0, 24]}
