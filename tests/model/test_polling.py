"""Pace: quicker while there is work, slower when there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.polling import Pace


def test_a_busy_poll_shortens_the_interval_by_a_fifth_down_to_a_half() -> None:
    pace = Pace(1.0)
    waits = [pace.after(1) for _ in range(6)]
    assert waits[:3] == pytest.approx([0.8, 0.64, 0.512])
    assert waits[3:] == [0.5, 0.5, 0.5]


def test_only_the_fifth_empty_poll_in_a_row_lengthens_it() -> None:
    pace = Pace(1.0)
    assert [pace.after(0) for _ in range(4)] == [1.0] * 4
    assert pace.after(0) == pytest.approx(1.2)
    assert [pace.after(0) for _ in range(4)] == pytest.approx([1.2] * 4)
    assert pace.after(0) == pytest.approx(1.44)


def test_a_find_starts_the_count_of_empty_polls_anew() -> None:
    pace = Pace(1.0)
    for _ in range(4):
        pace.after(0)
    pace.after(1)
    assert [pace.after(0) for _ in range(4)] == pytest.approx([0.8] * 4)


@given(st.floats(0.001, 1000), st.lists(st.integers(0, 2), max_size=200))
def test_it_stays_between_a_half_and_four_times_its_base(base: float, finds: list[int]) -> None:
    pace = Pace(base)
    for found in finds:
        assert base / 2 <= pace.after(found) <= base * 4


def test_it_reaches_four_times_its_base_when_nothing_ever_comes() -> None:
    pace = Pace(0.5)
    for _ in range(5 * 8):
        pace.after(0)
    assert pace.interval == 2.0
