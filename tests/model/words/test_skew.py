"""Skew: a clock that is wrong is told of, one that is nearly right is not."""

from __future__ import annotations

from mainspring.model.words.skew import skew_warning


def test_only_a_clock_beyond_the_limit_is_warned_of() -> None:
    assert skew_warning("agent a", 0.9, 1.0) is None
    assert skew_warning("agent a", -1.0, 1.0) is None
    assert skew_warning("agent a", 30.04, 1.0) == (
        "the clock of agent a is 30.0 s ahead of the database's; tasks fire on the database's time, but set it right"
    )
    assert "3600.0 s behind" in str(skew_warning("agent a", -3600.0, 1.0))
