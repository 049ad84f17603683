"""L15: what failed is noted once, told in few messages, and a message is the same however often it is sent.

Next: tests/torture/report.py
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from mainspring.model.tasks.states import TaskState
from tests.torture.evidence import Evidence
from tests.torture.spans import SECOND, Violation

FAILED = {TaskState.FAILED, TaskState.TIMED_OUT, TaskState.LOST}
EVERY = 60.0  # seconds between two messages of a rule
STEP = 5.0  # seconds by which the database's clock is set at once, at most


def alerts(evidence: Evidence) -> Iterator[Violation]:
    if evidence.alerted is None:
        return
    yield from _noted(evidence, evidence.alerted)
    yield from _messages(evidence)


def _noted(evidence: Evidence, alerted: dict[str, int]) -> Iterator[Violation]:
    """Each failure is noted once. After a step of the clock back, what happened just before may be found again."""
    failed = Counter(row.job for row in evidence.ended if TaskState(row.state) in FAILED)
    ahead = [0.0, *(step for _, step in evidence.clock_steps)]
    was_set_back = any(later < before for before, later in pairwise(ahead))
    for job in sorted(failed.keys() | alerted.keys()):
        noted, count = alerted.get(job, 0), failed[job]
        if noted < count or (noted > count and not was_set_back):
            yield Violation("L15", f"{count} tasks of {job} failed, and {noted} failures were noted")


def _messages(evidence: Evidence) -> Iterator[Violation]:
    bodies: dict[str, set[str]] = defaultdict(set)
    tries: Counter[str] = Counter()
    for receipt in evidence.receipts:
        bodies[receipt.id].add(receipt.body)
        tries[receipt.id] += 1
    sent = {one.id: one for one in evidence.deliveries}
    for id in bodies.keys() - sent.keys():
        yield Violation("L15", f"message {id} was sent, and is nowhere")
    for one in evidence.deliveries:
        if len(bodies[one.id]) > 1:
            yield Violation("L15", f"message {one.id} was sent with {len(bodies[one.id])} contents")
        if tries[one.id] > one.attempts:
            yield Violation("L15", f"message {one.id} was sent {tries[one.id]} times, in {one.attempts} tries")
        if one.state == "delivered" and not tries[one.id]:
            yield Violation("L15", f"message {one.id} is noted as delivered, and was not received")
    lasted = (_span(evidence) / SECOND + sum(abs(STEP) for _ in evidence.clock_steps)) / EVERY
    for rule, count in Counter(one.rule for one in evidence.deliveries).items():
        if count > lasted + 2:
            yield Violation("L15", f"rule {rule} has told {count} times")


def _span(evidence: Evidence) -> int:
    """From the first line of the ledger to the last end, in nanoseconds."""
    times = [line.at for line in evidence.lines] + [row.at for row in evidence.ended]
    return max(times, default=0) - min(times, default=0)
