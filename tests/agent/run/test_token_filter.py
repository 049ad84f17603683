"""Seen: which tokens an agent has taken before."""

from __future__ import annotations

from mainspring.agent.run.token_filter import Seen


def test_a_token_is_new_once() -> None:
    seen = Seen()
    assert [seen.add(token) for token in (5, 3, 5, 4, 3)] == [True, True, False, True, False]


def test_what_is_forgotten_counts_as_seen() -> None:
    seen = Seen(limit=10)
    assert all(seen.add(token) for token in range(1, 101))
    assert not any(seen.add(token) for token in range(1, 101))
    assert seen.add(101)
    assert len(seen._tokens) <= 10
