"""Seen: tokens of attempts that this agent has taken. One that comes again is an echo, and runs no second time.

Next: agent/run/runner.py
"""

from __future__ import annotations

LIMIT = 50_000


class Seen:
    """Remembers the newest tokens; what lies below all that it has forgotten counts as seen."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._tokens: dict[int, None] = {}
        self._floor = 0

    def add(self, token: int) -> bool:
        """Remember a token; False if it was there before, or is older than what is remembered."""
        if token in self._tokens or token <= self._floor:
            return False
        self._tokens[token] = None
        if len(self._tokens) > self._limit:
            self._forget()
        return True

    def has_forgotten(self, token: int) -> bool:
        """Whether it is too old to tell."""
        return token <= self._floor

    def _forget(self) -> None:
        """The lower half: tokens grow, so these are the oldest."""
        ordered = sorted(self._tokens)
        half = len(ordered) // 2
        self._floor = ordered[half - 1]
        self._tokens = dict.fromkeys(ordered[half:])
