"""Many numbers in few words."""

from __future__ import annotations

import pytest

from mainspring.model.words.ranges import ranges


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([], ""),
        ([7], "7"),
        ([67, *range(34)], "0-33, 67"),
        ([3, 1, 2, 2, 5], "1-3, 5"),
        (range(100), "0-99"),
        ([0, 2, 4], "0, 2, 4"),
    ],
)
def test_neighbours_are_told_together(numbers: list[int], told: str) -> None:
    assert ranges(numbers) == told
