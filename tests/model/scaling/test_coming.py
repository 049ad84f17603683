"""Starts that are not planned yet: the same as plan times one by one, from the cursor on."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring.model.scaling.coming import longest, starts
from mainspring.model.schedules.schedules import Policies, Schedule
from mainspring.model.schedules.skips import Skip
from mainspring.model.schedules.timing import timing

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HORIZON = 300


def second(number: float) -> datetime:
    return NOW + timedelta(seconds=number)


def count(
    schedule: Schedule, cursor: datetime, *, left: int | None = None, skips: tuple[Skip, ...] = ()
) -> Counter[int]:
    found: Counter[int] = Counter()
    for at, number in starts(schedule, timing(schedule), cursor, NOW, HORIZON, left, skips):
        found[at] += number
    return +found


def made(kind: Any = "every", expression: str = "60", **policies: Any) -> Schedule:
    return Schedule("s", "j", kind, expression, "UTC", Policies(**policies))


def test_plan_times_before_the_cursor_have_their_tasks() -> None:
    assert count(made(), NOW) == {0: 1, 60: 1, 120: 1, 180: 1, 240: 1}
    assert count(made(), second(100)) == {120: 1, 180: 1, 240: 1}
    assert count(made(delay=90.0), NOW) == {90: 1, 150: 1, 210: 1, 270: 1}
    assert count(made(scopes=("a", "b")), second(230)) == {240: 2}
    assert count(made(), NOW, left=2) == {0: 1, 60: 1}
    assert count(made("cron", "2 0 * * *"), NOW) == {120: 1}
    assert count(made("once", "2030-01-01T00:04:59Z"), NOW) == {299: 1}
    assert count(made("once", "2030-01-01T00:05:00Z"), NOW) == {}


def test_of_plan_times_that_are_late_the_last_counts_and_starts_at_once() -> None:
    late = count(made(), second(-600))
    assert late == count(made(), NOW) | {0: 1}
    assert count(made("once", "2029-12-31T23:00:00Z"), second(-3600)) == {0: 1}


def test_skips_and_jitter_move_what_they_say() -> None:
    skip = Skip(second(50), second(130), "os:alice", "", NOW)
    assert count(made(), NOW, skips=(skip,)) == {0: 1, 180: 1, 240: 1}
    spread = count(made(jitter=30.0), NOW)
    assert spread.total() == 5
    assert all(0 <= at % 60 <= 30 for at in spread)


@pytest.mark.parametrize("period", ["0.1", "0.3", "0.7", "0.999"])
def test_quick_intervals_are_counted_as_if_one_by_one(period: str) -> None:
    schedule = made("every", period, delay=0.25)
    skip = Skip(second(-100), second(-99), "x", "", NOW)  # over long ago: it only keeps the arithmetic away
    quick, slow = count(schedule, second(0.05)), count(schedule, second(0.05), skips=(skip,))
    assert quick.total() == pytest.approx(slow.total(), abs=1)
    assert all(abs(quick[at] - slow[at]) <= 1 for at in range(HORIZON)), "rounding at the edge of a second"
    ends = made("every", period, end=second(10))
    assert count(ends, NOW).total() == pytest.approx(count(ends, NOW, skips=(skip,)).total(), abs=1)


def test_runs_that_must_not_overlap_count_until_the_next() -> None:
    for policies, most in (({}, math.inf), ({"overlap": "skip"}, 60.0), ({"overlap": "queue"}, 60.0)):
        schedule = made(**policies)
        assert longest(schedule, timing(schedule), NOW) == most
    once = made("once", "2030-01-01T00:04:59Z", overlap="skip")
    assert longest(once, timing(once), NOW) == math.inf
