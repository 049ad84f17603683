"""Placement: who takes the next task."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.placement import fits, spread


@pytest.mark.parametrize(
    ("requirements", "labels", "fit"),
    [
        ({}, {}, True),
        ({}, {"zone": "a"}, True),
        ({"zone": "a"}, {"zone": "a", "gpu": "yes"}, True),
        ({"zone": "a"}, {"zone": "b"}, False),
        ({"zone": "a"}, {}, False),
        ({"zone": "a", "gpu": "yes"}, {"zone": "a"}, False),
    ],
)
def test_an_agent_fits_when_it_has_every_label(requirements: dict[str, str], labels: dict[str, str], fit: bool) -> None:
    assert fits(requirements, labels) is fit


def test_tasks_go_round_until_each_agent_is_full() -> None:
    assert spread({1: 3, 2: 1, 3: 2}, 100) == [1, 2, 3, 1, 3, 1]
    assert spread({1: 3, 2: 1, 3: 2}, 4) == [1, 2, 3, 1]
    assert spread({}, 5) == []


@given(st.dictionaries(st.integers(1, 9), st.integers(0, 20), max_size=6), st.integers(1, 60))
def test_no_agent_gets_more_than_it_has_room_for(room: dict[int, int], limit: int) -> None:
    limit = min(limit, sum(room.values()))
    if not limit:
        return
    places = spread(room, limit)
    taken = Counter(places[turn % len(places)] for turn in range(limit))  # as the claim takes them
    assert sum(taken.values()) == limit
    assert all(taken[session] <= room[session] for session in taken)
