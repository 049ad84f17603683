"""The order of turns, medians and ratios of `benchmarks.peers`."""

from __future__ import annotations

import pytest
from benchmarks.peers.rounds import Results, medians, orders, ratio

NAMES = ["ours", "a", "b", "c"]


def test_the_first_round_is_in_the_given_order_and_each_round_has_everyone_once() -> None:
    rounds = list(orders(NAMES, 6))
    assert rounds[0] == NAMES
    assert all(sorted(order) == sorted(NAMES) for order in rounds)


@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_nobody_is_always_first_nor_always_behind_the_same_one(rounds: int) -> None:
    found = list(orders(NAMES, rounds))
    assert len({order[0] for order in found}) > 1
    for name in NAMES:
        assert len({order[order.index(name) - 1] for order in found}) > 1


def test_one_peer_alone_takes_every_turn() -> None:
    assert list(orders(["ours"], 3)) == [["ours"]] * 3


def test_the_median_of_each_figure_ignores_an_outlier() -> None:
    found = [{"p50_ms": 1.0, "max_ms": 5.0}, {"p50_ms": 90.0, "max_ms": 7.0}, {"p50_ms": 2.0, "max_ms": 6.0}]
    assert medians(found) == {"p50_ms": 2.0, "max_ms": 6.0}


def test_a_peer_that_failed_in_every_round_has_no_medians() -> None:
    results = Results(figures={"ours": [{"p50_ms": 1.0}]}, failures={"a": "no"})
    assert results.medians() == {"ours": {"p50_ms": 1.0}}


@pytest.mark.parametrize(
    ("figure", "ours", "theirs", "better"),
    [("one_process_per_s", 300.0, 200.0, 1.5), ("p99_ms", 2.0, 3.0, 1.5), ("p99_ms", 2.0, 1.0, 0.5)],
)
def test_a_ratio_says_how_many_times_better_ours_is(figure: str, ours: float, theirs: float, better: float) -> None:
    assert ratio(figure, ours, theirs) == better


def test_there_is_no_ratio_to_nothing() -> None:
    assert ratio("p50_ms", 0.0, 1.0) is None
    assert ratio("bulk_per_s", 10.0, 0.0) is None
