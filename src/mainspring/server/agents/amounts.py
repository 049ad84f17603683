"""Amounts: what an agent offers, such as GPUs, and how much of it the tasks that it holds use.

They are taken when a task is armed, not when it starts: nobody else may take them in between.
Next: server/agents/session.py
"""

from __future__ import annotations

from collections.abc import Mapping


class Amounts:
    def __init__(self, offers: Mapping[str, float]) -> None:
        self._offers = offers
        self.free = dict(offers)
        self.in_use: dict[int, Mapping[str, float]] = {}  # by task

    def take(self, task: int, needs: Mapping[str, float]) -> None:
        """A task that is here already, with an older token, has its amounts once."""
        self.release(task)
        self.in_use[task] = needs
        for name, amount in needs.items():
            self.free[name] = self.free.get(name, 0.0) - amount

    def release(self, task: int) -> None:
        needs = self.in_use.pop(task, None)
        if needs is None:
            return
        if not self.in_use:
            self.free = dict(self._offers)  # sums of fractions do not drift apart for ever
            return
        for name, amount in needs.items():
            self.free[name] += amount
