from __future__ import annotations

from mainspring.agent.run.tokens import TokenFilter


def test_a_token_is_new_once() -> None:
    tokens = TokenFilter()
    assert [tokens.add(token) for token in (5, 3, 5, 4, 3)] == [True, True, False, True, False]


def test_a_token_that_is_forgotten_counts_as_seen() -> None:
    tokens = TokenFilter(limit=10)
    assert all(tokens.add(token) for token in range(1, 101))
    assert not any(tokens.add(token) for token in range(1, 101))
    assert tokens.add(101)
    assert len(tokens) <= 10
