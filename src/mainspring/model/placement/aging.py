"""Aging: a task counts one level of priority higher for each `aging` seconds that it has been due, up to the highest.

Within a level the oldest task is first, so only the heads of the levels are compared; no row is rewritten.
Next: store/tasks/claims.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mainspring.model.tasks.claim_floors import Released
from mainspring.model.tasks.jobs import PRIORITY_LEVELS

HIGHEST = max(PRIORITY_LEVELS)


def counts_as(priority: int, age: float, aging: float | None) -> int:
    """The level of a task that has been due for `age` seconds; `aging` is None where it is off."""
    if aging is None or age <= 0:
        return priority
    return min(HIGHEST, priority + int(age / aging))


class Aged(NamedTuple):
    """Tasks of one level that come before all of a higher one."""

    priority: int
    age: float  # seconds that they have been due, at least


def outranking(heads: Sequence[Released], now: float, aging: float | None) -> Aged | None:
    """The tasks that come before the first one in plain order, if there are any. `heads` has the oldest of each level.

    Of several levels that qualify, the one with the first task in the order of aging.
    """
    due = [head for head in heads if head.position[0] <= now]
    if aging is None or len(due) < 2:
        return None
    plain = max(due, key=lambda head: head.priority)
    first = min(due, key=lambda head: (-counts_as(head.priority, now - head.position[0], aging), head.position))
    if first is plain:
        return None
    plain_age = now - plain.position[0]
    level = counts_as(plain.priority, plain_age, aging)
    higher = (level + 1 - first.priority) * aging if level < HIGHEST else float("inf")
    as_high = max((level - first.priority) * aging, plain_age)
    return Aged(first.priority, min(higher, as_high))
