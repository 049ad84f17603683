"""L12: a batch ends with its last task, has counted each once, and has called back once.

Next: tests/torture/report.py
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from mainspring.model.flows.batches import FAILURES, BatchState
from mainspring.model.tasks.states import TaskState
from tests.torture.evidence import Batched, Ended, Evidence
from tests.torture.spans import Violation


def batches(evidence: Evidence) -> Iterator[Violation]:
    members: dict[int, list[Ended]] = defaultdict(list)
    callbacks: dict[int, list[Ended]] = defaultdict(list)
    for row in evidence.ended:
        if row.batch is not None:
            members[row.batch].append(row)
        if row.callback is not None:
            callbacks[row.callback[0]].append(row)
    known = {batch.id for batch in evidence.batches}
    for lost in evidence.opened.keys() - known:
        yield Violation("L12", f"batch {lost} was accepted, and is nowhere")
    for batch in evidence.batches:
        yield from _counts(batch, members[batch.id], evidence.opened.get(batch.id, 0))
        yield from _calls(batch, members[batch.id], callbacks[batch.id])
        yield from _order(evidence, batch, members[batch.id], callbacks[batch.id])


def _counts(batch: Batched, members: list[Ended], accepted: int) -> Iterator[Violation]:
    if batch.state != BatchState.ENDED:
        yield Violation("L12", f"batch {batch.id} has not ended")
    found = Counter(TaskState(row.state).label for row in members)
    told = {name: count for name, count in batch.counts.items() if count and name != "total"}
    if told != dict(found) or batch.counts["total"] != len(members):
        yield Violation("L12", f"batch {batch.id} has counted {batch.counts}, and its tasks are {dict(found)}")
    if len(members) < accepted:
        yield Violation("L12", f"batch {batch.id} has {len(members)} tasks, and was accepted with {accepted}")


def _calls(batch: Batched, members: list[Ended], callbacks: list[Ended]) -> Iterator[Violation]:
    states = {TaskState(row.state) for row in members}
    expected = Counter({"complete": 1, "success": states <= {TaskState.SUCCEEDED}, "failure": bool(states & FAILURES)})
    called = Counter(row.callback[1] for row in callbacks if row.callback is not None)
    for event, count in expected.items():
        if called[event] != count:
            told = f"batch {batch.id} has called {event} {called[event]} times, not {int(count)}"
            yield Violation("L12", told, callbacks[0].id if callbacks else None)


def _order(evidence: Evidence, batch: Batched, members: list[Ended], callbacks: list[Ended]) -> Iterator[Violation]:
    """Success and completion are told after the last end."""
    last = max((row.at for row in members), default=0)
    told = {row.id for row in callbacks if row.callback is not None and row.callback[1] != "failure"}
    for line in evidence.lines:
        if line.task in told and line.event == "start" and line.at < last:
            yield Violation("L12", f"batch {batch.id} has called back while a task was live", line.task, line.at)
