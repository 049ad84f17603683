"""Histograms as lists of counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.figures.buckets import DURATION, LATENESS, added, empty, quantile


def histogram(bounds: Sequence[float], values: Sequence[float]) -> list[int]:
    counts = empty(bounds)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    return counts


@pytest.mark.parametrize("bounds", [LATENESS, DURATION])
def test_bounds_ascend_and_the_last_bucket_takes_what_is_beyond(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
    assert histogram(bounds, [bounds[-1] + 1]) == [0] * len(bounds) + [1]
    assert histogram(bounds, [bounds[0]]) == [1] + [0] * len(bounds), "a bound belongs to the bucket below it"


def test_nothing_has_no_quantile() -> None:
    assert quantile(LATENESS, empty(LATENESS), 0.5, 0.0) is None


def test_histograms_add_up_and_none_is_empty() -> None:
    assert added([None, [1, 2], None, [3, 4]], (1.0,)) == [4, 6]
    assert added([None], (1.0,)) == [0, 0]


@given(
    st.lists(st.floats(min_value=0.0, max_value=1000.0), min_size=1, max_size=200),
    st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
)
def test_a_quantile_is_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    found = quantile(LATENESS, histogram(LATENESS, values), share, max(values))
    ordered = sorted(values)
    true = ordered[max(0, -int(-share * len(values) // 1) - 1)]
    assert found is not None
    assert found <= max(values)
    bucket = bisect_left(LATENESS, true)
    low = LATENESS[bucket - 1] if bucket else 0.0
    high = LATENESS[bucket] if bucket < len(LATENESS) else max(values)
    assert low <= found <= high or found == pytest.approx(true)
    if share == 1.0:
        assert found == pytest.approx(max(values))
