"""FiguresWriter: write what was tallied to the database, every two seconds at most, by the minute.

A process that dies loses the figures of its last two seconds, and no task. While PostgreSQL is down nothing is lost:
rows are written whole, and again until they are answered.
Reads   server/recording/tallies.py
Writes  store.figures.rollups
Next:   store/figures/rollups.py
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from uuid import UUID, uuid4

from mainspring.model.figures.counts import NOTHING, Counts, Histogram
from mainspring.model.tasks.states import TaskState
from mainspring.server.recording.tallies import Cell, Tallies
from mainspring.store.figures import rollups
from mainspring.store.figures.rollups import ALL_JOBS, Rollup
from mainspring.store.postgres.database import Database
from mainspring.wire.clock import Clock

WRITE_EVERY = 1.8  # seconds; a loop's interval varies by a tenth
MINUTE = 60
AT_ONCE = 500  # rows in one statement

Key = tuple[int, TaskState, bool]  # job, outcome, whether the task runs again


def _take(cell: Cell) -> Counts:
    """The cell as it is now; its maxima begin anew."""
    taken = Counts(
        cell.count, cell.duration_sum, cell.planned_sum, cell.due_sum, cell.duration_max, cell.planned_max,
        cell.due_max, _fixed(cell.durations), _fixed(cell.planned), _fixed(cell.due),
    )  # fmt: skip
    cell.duration_max = cell.planned_max = cell.due_max = 0.0
    return taken


def _fixed(counts: list[int] | None) -> Histogram:
    return None if counts is None else tuple(counts)


class FiguresWriter:
    def __init__(self, database: Database, tallies: Tallies, clock: Clock) -> None:
        self._database = database
        self._tallies = tallies
        self._clock = clock
        self._writer = uuid4()  # of this run
        self._seen: dict[Key, Counts] = {}  # the cells at the last step
        self._minute = 0  # in seconds since 1970
        self._counted: dict[Key, Counts] = {}  # in this minute
        self._unwritten: dict[tuple[int, UUID, Key], Rollup] = {}  # by minute and writer; not known to be written

    async def step(self) -> int:
        """Write the rows of this minute that have changed, and what could not be written before."""
        self._begin(int(self._clock.now()) // MINUTE * MINUTE)
        for key, counts in self._changes():
            self._count(key, counts)
            self._count((ALL_JOBS, *key[1:]), counts)
        while self._unwritten:
            part = dict(islice(self._unwritten.items(), AT_ONCE))
            async with self._database.acquire() as conn:
                await rollups.write(conn, list(part.values()))
            for row in part:
                del self._unwritten[row]
        return 0

    def _begin(self, minute: int) -> None:
        """What was counted since the last step counts as of this minute: it is off by two seconds at most."""
        if minute == self._minute:
            return
        if minute < self._minute:
            self._writer = uuid4()  # the clock was set back: what is written of that minute must stay
        self._minute = minute
        self._counted = {}

    def _changes(self) -> Iterator[tuple[Key, Counts]]:
        """What was counted since the last step."""
        for again, cells in ((False, self._tallies.ended), (True, self._tallies.again)):
            for (job, outcome), cell in cells.items():
                key = (job, outcome, again)
                before = self._seen.get(key, NOTHING)
                if cell.count != before.attempts:
                    now = self._seen[key] = _take(cell)
                    yield key, now.since(before)

    def _count(self, key: Key, counts: Counts) -> None:
        counted = self._counted[key] = self._counted.get(key, NOTHING).plus(counts)
        self._unwritten[self._minute, self._writer, key] = Rollup(self._minute, self._writer, *key, counted)
