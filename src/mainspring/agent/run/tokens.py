"""Tokens: a dispatch that is repeated, because its answer was lost, runs once.

Next:   agent/run/runner.py
"""

from __future__ import annotations

TOKENS = 50_000  # that are remembered


class TokenFilter:
    """Tokens of attempts that this agent has accepted, so that a repeated dispatch runs once.

    Remembers the newest, in two generations; a token below all that it has forgotten counts as accepted.
    """

    def __init__(self, limit: int = TOKENS) -> None:
        self._half = limit // 2
        self._recent = set[int]()
        self._older = set[int]()
        self._newest = 0
        self._floor = 0

    def add(self, token: int) -> bool:
        """Remember a token; False if it was there before, or is older than what is remembered."""
        if token > self._newest:  # as most: no search
            self._newest = token
        elif token in self._recent or token in self._older or token <= self._floor:
            return False
        self._recent.add(token)
        if len(self._recent) >= self._half:
            self._floor = max(self._floor, max(self._older, default=0))
            self._recent, self._older = set(), self._recent
        return True

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def has_forgotten(self, token: int) -> bool:
        return token <= self._floor and token not in self._recent and token not in self._older
