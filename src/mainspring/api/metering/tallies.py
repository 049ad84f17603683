"""Tallies of the HTTP skin and of this process: requests, streams, refused access, the lag of the event loop.

Next: api/metering/text.py
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Callable, Iterator

from mainspring.model.metrics import metrics
from mainspring.model.metrics.histogram import SHORT, Histogram
from mainspring.model.metrics.metrics import Family, family, single
from mainspring.model.metrics.tallies import StoreTally
from mainspring.version import VERSION

SAMPLE_EVERY = 0.5  # seconds between two samples of the event loop


class HttpTally:
    """`operation` is the name of a row of the table: a word of this program, never a path."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], Histogram] = {}
        self.streams: Callable[[], int] = lambda: 0  # how many are open
        self._refused: Counter[str] = Counter()

    def add(self, operation: str, status: int, seconds: float) -> None:
        """A request was answered."""
        key = operation, str(status)
        if (histogram := self._requests.get(key)) is None:
            histogram = self._requests[key] = Histogram(SHORT)
        histogram.add(seconds)

    def refuse(self, reason: str) -> None:
        """A request had no valid access; `reason` is a word, such as `expired`."""
        self._refused[reason] += 1

    def families(self) -> Iterator[Family]:
        yield Family(metrics.HTTP_REQUESTS, [(key, seconds.count) for key, seconds in self._requests.items()])
        yield Family(metrics.HTTP_SECONDS, [(key, seconds) for key, seconds in self._requests.items()])
        yield single(metrics.HTTP_STREAMS, self.streams())
        yield family(metrics.AUTH_FAILURES, self._refused)


class LoopLag:
    """How late the event loop runs a timer. `run` is a loop for a task group."""

    def __init__(self) -> None:
        self.seconds = Histogram(SHORT)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SAMPLE_EVERY
            await asyncio.sleep(SAMPLE_EVERY)
            self.seconds.add(max(0.0, loop.time() - due))

    def families(self) -> Iterator[Family]:
        yield single(metrics.LOOP_LAG, self.seconds)


def build() -> Iterator[Family]:
    """The version of this program."""
    yield Family(metrics.BUILD_INFO, [((VERSION, platform.python_version()), 1.0)])


def store(tally: StoreTally) -> Iterator[Family]:
    """The statements of a process that has no server, whose metrics have them."""
    yield family(metrics.STORE_SECONDS, tally.statements)
    yield family(metrics.STORE_ERRORS, tally.errors)
    yield family(metrics.QUEUE_FULL, tally.queue_full)
