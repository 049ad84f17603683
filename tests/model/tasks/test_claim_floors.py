"""Claim floors: tip, mark, stragglers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.tasks.claim_floors import BOTTOM, Floors
from mainspring.model.tasks.jobs import PRIORITY_LEVELS

NORMAL = PRIORITY_LEVELS.index(5)


def test_a_fresh_one_starts_at_the_bottom_of_every_level() -> None:
    floors = Floors()
    for flowing in (True, False):
        assert floors.start(0.0, flowing=flowing) == [BOTTOM] * len(PRIORITY_LEVELS)


def test_full_flow_starts_at_the_tip_and_the_first_after_a_pause_at_the_mark() -> None:
    floors = Floors(lag=0.25)
    floors.start(10.0, flowing=False)
    floors.claimed(5, (100.0, 7))
    assert floors.start(10.1, flowing=True)[NORMAL] == (100.0, 7)
    assert floors.start(10.1, flowing=False)[NORMAL] == BOTTOM


def test_the_mark_reaches_a_tip_only_after_one_lag_and_before_three() -> None:
    floors = Floors(lag=0.25)
    floors.start(10.0, flowing=False)
    floors.claimed(5, (100.0, 7))
    reached = next(t for t in range(0, 1000, 10) if floors.start(10 + t / 1000, flowing=False)[NORMAL] != BOTTOM)
    assert 250 <= reached <= 750


def test_the_tip_only_rises() -> None:
    floors = Floors()
    floors.claimed(5, (100.0, 7))
    floors.claimed(5, (100.0, 6))
    floors.claimed(5, (99.0, 9))
    assert floors.tip[NORMAL] == (100.0, 7)
    floors.claimed(5, (100.0, 8))
    assert floors.tip[NORMAL] == (100.0, 8)


@pytest.mark.parametrize("priority", PRIORITY_LEVELS)
def test_levels_do_not_touch_each_other(priority: int) -> None:
    floors = Floors()
    floors.claimed(priority, (100.0, 7))
    assert [PRIORITY_LEVELS[i] for i, tip in enumerate(floors.tip) if tip != BOTTOM] == [priority]


def test_a_straggler_lowers_the_floor_for_good_also_in_full_flow() -> None:
    floors = Floors(lag=0.25)
    for now in (1.0, 2.0, 3.0):
        floors.start(now, flowing=True)
        floors.claimed(5, (now, 1))
    floors.lower(5, (0.5, 3))
    assert floors.start(4.0, flowing=True)[NORMAL] == (0.5, 3)
    assert floors.start(5.0, flowing=False)[NORMAL] == (0.5, 3)


_STEP = st.one_of(
    st.tuples(st.just("start"), st.floats(0, 2)),
    st.tuples(st.just("claimed"), st.integers(0, 50)),
    st.tuples(st.just("lower"), st.integers(0, 50)),
)


@given(st.lists(_STEP, max_size=40))
def test_the_mark_is_never_above_the_tip(steps: list[tuple[str, float]]) -> None:
    floors, now = Floors(lag=0.5), 0.0
    for kind, value in steps:
        if kind == "start":
            now += value
            floors.start(now, flowing=False)
        elif kind == "claimed":
            floors.claimed(5, (float(value), 1))
        else:
            floors.lower(5, (float(value), 1))
        assert floors.mark[NORMAL] <= floors.tip[NORMAL]
