"""Expansion: the plan times of a cron expression in a range are those that walking finds, whatever the clocks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.errors import ValidationError
from mainspring.model.forecasting.expansion import Expansion
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.schedules.expressions.cron_grammar import Resolver, resolve
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.timing import timing

# Weeks with a change: by night, of half an hour, at midnight, of two hours, of a whole day; and without one.
WEEKS = [
    ("Europe/Berlin", datetime(2027, 3, 22, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 19, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 10, 26, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2027, 3, 29, tzinfo=UTC)),
    ("America/Havana", datetime(2027, 3, 8, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 10, 26, tzinfo=UTC)),
    ("Antarctica/Troll", datetime(2027, 3, 22, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 26, tzinfo=UTC)),
    ("America/Toronto", datetime(1987, 4, 1, tzinfo=UTC)),
    ("Asia/Kolkata", datetime(2026, 10, 19, tzinfo=UTC)),
    ("UTC", datetime(2026, 11, 16, tzinfo=UTC)),
]
MINUTES = st.sampled_from(["0", "30", "*", "*/15", "7,37", "15-20", "H", "H/20", "59"])
HOURS = st.sampled_from(["0", "1", "2", "3", "23", "*", "*/2", "1-3", "0,12", "H"])
DAYS = st.sampled_from(["*", "*", "*", "L", "28", "15W", "1-7", "*/2"])
WEEKDAYS = st.sampled_from(["*", "*", "*", "MON-FRI", "SUN", "0", "SUN#4", "5L"])


def walked(schedule: Schedule, start: datetime, end: datetime) -> list[int]:
    found = timing(schedule).between(start - timedelta(microseconds=1), end - timedelta(microseconds=1), 10**6)
    return [(at - start) // timedelta(seconds=1) for at in found]


@given(
    st.sampled_from(WEEKS),
    st.tuples(st.sampled_from(["0", "0", "45", "*/30"]), MINUTES, HOURS, DAYS, st.just("*"), WEEKDAYS),
    st.fixed_dictionaries(
        {},
        optional={
            "gap": st.sampled_from(["skip", "shift"]),
            "fold": st.sampled_from(["first", "second", "both"]),
            "start": st.just("2026-10-25T00:30:00.5Z"),
            "end": st.sampled_from(["2027-03-28T01:00:00Z", "2026-10-25T00:30:00.5Z"]),
        },
    ),
    st.integers(0, 6 * 24),
)
def test_the_plan_times_are_those_that_walking_finds(week: Any, fields: Any, policies: Any, later: int) -> None:
    zone, start = week
    start += timedelta(minutes=10 * later)
    end = start + timedelta(days=7)
    try:
        one = define_schedule("s", "job", {"cron": " ".join(fields), "tz": zone, **policies})  # type: ignore[typeddict-item]
    except ValidationError:
        return  # such as a day that no month has
    text, _ = resolve(one.expression, seed="s")
    expansion = Expansion(start, end)
    found = sorted(expansion.plan_times(text, zone, one.policies))
    assert found == walked(one, start, end)
    for second in {*found[:2], 0, 3600}:
        assert expansion.has(text, zone, one.policies, second) == (second in found)


@pytest.mark.parametrize(
    "expression", ["H H * * *", "H(10-20)/3 H,5 * * *", "H H/7 2 L * MON", "0 9 * * THU", "@hourly"]
)
def test_a_resolver_finds_what_resolve_does(expression: str) -> None:
    resolver = Resolver(expression)
    for seed in ("a", "b", "report", "ü", ""):
        assert (resolver.text(seed), resolver.is_spread) == resolve(expression, seed=seed)


def test_a_day_that_a_clock_change_moves_to_an_excluded_one_is_not_expanded() -> None:
    """In 2011 Samoa had no 30 December: what is due then shifts to the 31st, which may be excluded."""
    one = define_schedule("s", "job", {"cron": "0 9 * * *", "tz": "Pacific/Apia"})
    expansion = Expansion(datetime(2011, 12, 26, tzinfo=UTC), datetime(2012, 1, 2, tzinfo=UTC))
    assert expansion.is_exact("Pacific/Apia", one.policies)
    assert not expansion.is_exact("Pacific/Apia", replace(one.policies, excluded=("12-30",)))
    assert expansion.is_exact("UTC", replace(one.policies, excluded=("12-30",)))
