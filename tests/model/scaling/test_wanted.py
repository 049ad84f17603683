"""Wanted slots from figures: each part of the formula, and their sum."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.scaling.wanted import USE, Load, Runs, Wanted, wanted


def slots(*loads: Load, target_wait: float = 30.0, horizon: int = 300, **given: int) -> Wanted:
    return wanted(loads, target_wait=target_wait, horizon=horizon, **given)


def test_nothing_wants_nothing() -> None:
    assert slots() == slots(Load()) == Wanted(0, 0, 0.0, 0.0, 0.0, None, False)


def test_the_rate_times_the_duration_is_busy_at_80_percent() -> None:
    assert slots(Load(rate=4.0, unplanned=4.0, duration=10.0)).slots == 40 / USE


def test_what_is_due_starts_within_the_target_wait() -> None:
    assert slots(Load(due=600, duration=2.0)).slots == 600 * 2 / 30 / USE
    assert slots(Load(due=600, duration=2.0), target_wait=60.0).slots == 600 * 2 / 60 / USE
    assert slots(Load(due=600, duration=30.0)).slots == 600 / USE
    assert slots(Load(due=30, duration=1.0), target_wait=1.0).slots == math.ceil(30 / USE)
    assert slots(Load(due=30, duration=1.0), target_wait=3600.0).slots == 1
    assert slots(Load(due=30, duration=7200.0), target_wait=3600.0).slots == math.ceil(30 / USE)
    both = slots(Load(rate=4.0, unplanned=4.0, due=600, duration=10.0))
    assert both.slots == math.ceil((40 + 600 * 10 / 30) / USE)


@given(
    rate=st.floats(0.0, 1000.0),
    due=st.integers(0, 100_000),
    duration=st.floats(0.001, 60.0),
    target_wait=st.floats(1.0, 3600.0),
    horizon=st.integers(60, 600),
)
def test_without_plans_it_is_the_rate_and_the_backlog(
    rate: float, due: int, duration: float, target_wait: float, horizon: int
) -> None:
    load = Load(rate=rate, unplanned=rate, due=due, duration=duration)
    needed = (rate * duration + due * min(1.0, duration / target_wait)) / USE
    assert slots(load, target_wait=target_wait, horizon=horizon).slots == pytest.approx(needed, rel=1e-3, abs=1.001)


@given(
    starts=st.dictionaries(st.integers(0, 299), st.integers(1, 1000), min_size=1, max_size=20),
    duration=st.integers(1, 400),
)
def test_planned_runs_are_counted_one_by_one(starts: dict[int, int], duration: int) -> None:
    busiest = max(
        sum(count for second, count in starts.items() if second <= now < second + duration) for now in range(300)
    )
    found = slots(Load(planned=[Runs(starts, float(duration))]))
    assert (found.planned, found.slots) == (busiest, math.ceil(busiest / USE))


def test_a_due_task_needs_no_more_than_a_slot_however_long_it_runs() -> None:
    assert slots(Load(due=8, duration=3600.0)).slots == 8 / USE


def test_anything_at_all_wants_a_slot() -> None:
    assert slots(Load(due=1, duration=0.001)).slots == 1
    assert slots(Load(rate=0.001, unplanned=0.001, duration=0.001)).slots == 1
    assert slots(Load(planned=[Runs({299: 1}, 0.001)])).slots == 1


def test_planned_runs_overlap_for_as_long_as_they_take() -> None:
    herd = slots(Load(planned=[Runs({240: 200}, 10.0)]))
    assert (herd.slots, herd.planned, herd.planned_in, herd.is_ahead) == (200 / USE, 200.0, 240, True)
    spread = Runs(dict.fromkeys(range(100, 200), 1), 10.0)
    assert slots(Load(planned=[spread])).planned == 10.0
    assert slots(Load(planned=[Runs({5: 10}, 2.5)])).planned == 10.0
    assert slots(Load(planned=[Runs({5: 1000}, 0.1)])).planned == pytest.approx(100.0), "on average in that second"
    assert slots(Load(planned=[Runs({5: 10, 7: 10}, 2.5)])).planned == pytest.approx(15.0)
    assert slots(Load(planned=[Runs({5: 3}, 1e9)])).planned == 3.0


def test_planned_runs_come_beside_what_nobody_plans_and_are_not_counted_twice() -> None:
    herd = Runs({240: 100}, 10.0)
    events = Load(rate=5.0, unplanned=5.0, duration=10.0)
    assert slots(events, Load(planned=[herd])).slots == math.ceil(150 / USE)
    ticks = Runs(dict.fromkeys(range(300), 5), 10.0)
    assert slots(Load(rate=5.0, unplanned=0.0, duration=10.0, planned=[ticks])).slots == math.ceil(50 / USE)
    stream = Load(rate=5.0, unplanned=5.0, duration=10.0, delayed=dict.fromkeys(range(60), 5))
    assert slots(stream).slots == math.ceil(50 / USE), "what was submitted with a delay is what arrives, too"


def test_a_rate_is_expected_to_last_no_longer_than_it_was_measured() -> None:
    """A hundred tasks of ten minutes that came at once are no stream of them."""
    burst = Load(rate=100 / 60, unplanned=100 / 60, running=100, duration=600.0)
    assert slots(burst).slots <= (100 + 100) / USE
    stream = Load(rate=1.0, unplanned=1.0, running=600, duration=600.0)
    assert slots(stream).slots == 600 / USE


def test_with_nothing_to_come_what_runs_is_all_that_is_wanted() -> None:
    assert slots(Load(running=100, duration=600.0)).slots == 100


def test_a_limit_bounds_what_one_job_wants() -> None:
    limited = Load(rate=5.0, unplanned=5.0, due=100, duration=10.0, most=3, planned=[Runs({30: 50}, 10.0)])
    assert (slots(limited).slots, slots(limited).planned) == (math.ceil(3 / USE), 3.0)
    held = limited._replace(most=0)
    assert slots(held).slots == 0


def test_daemons_and_busy_slots_are_kept() -> None:
    assert slots(daemons=3).slots == 3
    assert slots(Load(rate=0.8, unplanned=0.8, duration=1.0), daemons=3).slots == 4
    assert slots(busy=7).slots == 7
    assert slots(Load(due=300, duration=3.0), busy=7).slots == math.ceil(30 / USE)


def test_without_a_horizon_only_the_present_counts() -> None:
    herd = Load(rate=2.0, unplanned=0.0, duration=10.0, planned=[])
    assert slots(herd, horizon=0).slots == 20 / USE, "what schedules start arrives like all else"
