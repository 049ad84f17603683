"""Tallies: what each part of a server counts as it works. A scrape reads them; nothing else depends on them.

Additions happen per statement, batch or message, never per task. Only the event loop of their part writes them.
Next: server/metrics.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mainspring.model.figures.buckets import LATENESS
from mainspring.model.messages import Armed
from mainspring.model.metrics.histogram import COARSE, SHORT, Histogram
from mainspring.model.metrics.metrics import JOBS, OTHER
from mainspring.model.tasks.jobs import PRIORITY_LEVELS

MINUTE = 60.0
FEW = 10  # tasks that are counted one by one
STATEMENTS = 150  # with a label of their own; the others share OTHER
CODES = 100  # of errors, the same


def _counts(*words: str) -> Counter[str]:
    """Counts that a scrape tells from the start: a rate needs a zero to begin with."""
    return Counter(dict.fromkeys(words, 0))


def _short() -> Histogram:
    return Histogram(SHORT)


class SegmentLoad:
    """Plan times by segment: those of the present minute and of the one before."""

    def __init__(self) -> None:
        self._began = 0.0
        self._now: Counter[int] = Counter()
        self._before: Counter[int] = Counter()

    def add(self, planned: Mapping[int, int], now: float) -> None:
        self._turn(now)
        self._now.update(planned)

    def _turn(self, now: float) -> None:
        if now - self._began >= MINUTE:
            self._before = self._now if now - self._began < 2 * MINUTE else Counter()
            self._now, self._began = Counter(), now

    def quantiles(self, now: float) -> dict[str, float]:
        """The median and the maximum, over the segments that had any."""
        self._turn(now)
        loads = sorted((self._before or self._now).values())
        middle = len(loads) // 2
        median = (loads[middle] + loads[~middle]) / 2 if loads else 0.0  # `statistics` takes long to import
        return {"0.5": median, "1": float(loads[-1]) if loads else 0.0}


class RecentMaximum:
    """The greatest value of the last minute or two: a scrape every half minute misses none."""

    def __init__(self) -> None:
        self._began = 0.0
        self._now = self._before = 0.0

    def add(self, value: float, now: float) -> None:
        self._turn(now)
        self._now = max(self._now, value)

    def _turn(self, now: float) -> None:
        if now - self._began >= MINUTE:
            self._before = self._now if now - self._began < 2 * MINUTE else 0.0
            self._now, self._began = 0.0, now

    def value(self, now: float) -> float:
        self._turn(now)
        return max(self._now, self._before)


@dataclass(slots=True)
class PlannerTally:
    scans: Histogram = field(default_factory=_short)
    fires: Counter[str] = field(default_factory=lambda: _counts("planned"))
    lag: RecentMaximum = field(default_factory=RecentMaximum)  # seconds
    load: SegmentLoad = field(default_factory=SegmentLoad)


@dataclass(slots=True)
class DispatchTally:
    claims: Counter[str] = field(default_factory=lambda: _counts("found", "empty", "failed"))
    claim_seconds: Histogram = field(default_factory=_short)
    aged: int = 0  # tasks

    def claimed(self, tasks: int, seconds: float) -> None:
        self.claims["found" if tasks else "empty"] += 1
        self.claim_seconds.add(seconds)


@dataclass(slots=True)
class GatewayTally:
    sent: int = 0  # attempts
    queue_waits: list[Histogram] = field(
        default_factory=lambda: [Histogram(LATENESS) for _ in PRIORITY_LEVELS]
    )  # by priority
    dispatches: Counter[str] = field(
        default_factory=lambda: _counts("acknowledged", "resent", "refused", "expired")
    )  # attempts
    ack_seconds: Histogram = field(default_factory=_short)
    heartbeats: Counter[str] = field(default_factory=lambda: _counts("ok", "expired"))
    connections: Counter[str] = field(default_factory=lambda: _counts("accepted", "resumed", "refused", "expired"))

    def queued(self, tasks: Sequence[Armed], now: float) -> None:
        """These are sent now, some of them ahead of their time. A batch costs little more than sorting it."""
        self.sent += len(tasks)
        if len(tasks) < FEW:
            for armed in tasks:
                self.queue_waits[armed.priority].add(max(0.0, now - armed.fire_at))
            return
        priorities = {armed.priority for armed in tasks}
        for priority in priorities:
            of_it = tasks if len(priorities) == 1 else [armed for armed in tasks if armed.priority == priority]
            self.queue_waits[priority].add_since(sorted([armed.fire_at for armed in of_it]), now)

    def acknowledged(self, attempts: int, seconds: float) -> None:
        self.dispatches["acknowledged"] += attempts
        self.ack_seconds.add(seconds)


@dataclass(slots=True)
class ClusterTally:
    """Membership, election and segments."""

    heartbeats: Counter[str] = field(default_factory=lambda: _counts("ok", "failed", "expired"))
    elections: int = 0
    moves: Counter[str] = field(default_factory=lambda: _counts("free", "dead", "stopped", "balance", "released"))


@dataclass(slots=True)
class BatchTally:
    ended: int = 0
    callbacks: int = 0


@dataclass(slots=True)
class ChoreTally:
    runs: int = 0
    rows: int = 0
    failures: int = 0
    seconds: float = 0.0


class StoreTally:
    """Statements by what they do, and what failed."""

    def __init__(self) -> None:
        self.statements: dict[str, Histogram] = {}
        self.errors: Counter[str] = Counter()
        self.queue_full: Counter[str] = Counter()  # by job

    def ran(self, statement: str, seconds: float) -> None:
        histogram = self.statements.get(statement)
        if histogram is None:
            if len(self.statements) >= STATEMENTS:
                statement = OTHER
            histogram = self.statements.setdefault(statement, Histogram(COARSE))
        histogram.add(seconds)

    def refused_by_queue(self, job: str) -> None:
        self.queue_full[job if job in self.queue_full or len(self.queue_full) < JOBS else OTHER] += 1

    def failed(self, code: str) -> None:
        self.errors[code if code in self.errors or len(self.errors) < CODES else OTHER] += 1
