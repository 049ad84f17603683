"""Aging: a task counts a level higher the longer it has been due; only the heads of the levels are compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.placement.aging import Aged, counts_as, outranking
from mainspring.model.tasks.claim_floors import Released

NOW = 10_000.0
AGING = 60.0


def head(priority: int, age: float, id: int = 1) -> Released:
    return Released(7, priority, (NOW - age, id))


@pytest.mark.parametrize(
    ("priority", "age", "level"),
    [(2, 0, 2), (2, 59, 2), (2, 60, 3), (2, 419, 8), (2, 420, 9), (2, 100_000, 9), (9, 60, 9), (5, -10, 5)],
)
def test_a_level_for_every_minute_up_to_the_highest(priority: int, age: float, level: int) -> None:
    assert counts_as(priority, age, AGING) == level
    assert counts_as(priority, age, None) == priority


def test_a_low_task_comes_before_critical_ones_once_it_counts_as_much_and_is_older() -> None:
    assert outranking([head(9, 70), head(2, 419)], NOW, AGING) is None
    assert outranking([head(9, 70), head(2, 420)], NOW, AGING) == Aged(2, 420.0)
    assert outranking([head(9, 500), head(2, 420)], NOW, AGING) is None, "the critical one is older"
    assert outranking([head(5, 0), head(2, 240)], NOW, AGING) == Aged(2, 180.0)
    assert outranking([head(5, 0), head(2, 240)], NOW, None) is None
    assert outranking([head(2, 240)], NOW, AGING) is None
    assert outranking([head(9, -5), head(2, 420)], NOW, AGING) is None, "one that is not due does not count"


Task = tuple[int, float]  # priority, age


def order(task: Task) -> tuple[int, float]:
    return -counts_as(task[0], task[1], AGING), -task[1]


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 900, allow_nan=False)), min_size=1, max_size=30))
def test_what_goes_first_is_all_of_its_level_that_outranks_the_first_in_plain_order(tasks: list[Task]) -> None:
    heads = {p: max(age for level, age in tasks if level == p) for p in {p for p, _ in tasks}}
    found = outranking([head(p, age) for p, age in heads.items()], NOW, AGING)
    plain = max(heads), heads[max(heads)]
    first = min(tasks, key=order)
    if found is None:
        assert order(first) == order(plain)
        return
    assert order((found.priority, heads[found.priority])) == order(first)
    for priority, age in tasks:
        if priority == found.priority and abs(age - found.age) > 1e-6:  # on the edge both are as good
            assert (age > found.age) == (order((priority, age)) < order(plain))
