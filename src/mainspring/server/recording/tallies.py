"""Tallies: what this server has recorded since its start, by job and outcome. Plain numbers and lists of counts.

The recorder counts after the commit, the figures writer and the metrics read. Counts and sums never decrease, so a
reader takes the difference between two looks; the maxima belong to the figures writer, which resets them. To count an
ending costs two searches in a tuple and a few additions; whatever costs more belongs to the readers.
Next: server/recording/figures.py
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable

from mainspring.model.figures.buckets import DURATION, LATENESS, empty
from mainspring.model.messages import Ending
from mainspring.model.tasks.states import TaskState

UNKNOWN_JOB = -1  # in place of a job that was deleted, or that an agent made up

Key = tuple[int, TaskState]  # job and outcome


class Cell:
    """Attempts of one job with one outcome. `planned` and `due` are histograms of the lateness of first attempts:
    of tasks that a schedule made, and of all others."""

    __slots__ = (
        "count",
        "due",
        "due_max",
        "due_sum",
        "duration_max",
        "duration_sum",
        "durations",
        "planned",
        "planned_max",
        "planned_sum",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = 0
        self.durations: list[int] | None = None  # None: no value yet
        self.duration_sum = 0.0  # seconds
        self.duration_max = 0.0  # since the figures writer last looked, as the other maxima
        self.planned: list[int] | None = None
        self.planned_sum = 0.0
        self.due: list[int] | None = None
        self.due_sum = 0.0
        self.planned_max = 0.0
        self.due_max = 0.0

    def count_run(self, ending: Ending) -> None:
        """Count the duration and the lateness of an attempt that has started."""
        duration = ending.finished_at - ending.started_at
        if duration < 0.0:
            duration = 0.0  # the agent's clock was corrected meanwhile
        if self.durations is None:
            self.durations = empty(DURATION)
        self.durations[bisect_left(DURATION, duration)] += 1
        self.duration_sum += duration
        if duration > self.duration_max:
            self.duration_max = duration
        if ending.fire_at and ending.attempt == 1:
            self._count_start(ending)

    def _count_start(self, ending: Ending) -> None:
        lateness = ending.started_at - ending.fire_at
        if lateness < 0.0:
            lateness = 0.0
        if ending.planned:
            if self.planned is None:
                self.planned = empty(LATENESS)
            self.planned[bisect_left(LATENESS, lateness)] += 1
            self.planned_sum += lateness
            if lateness > self.planned_max:
                self.planned_max = lateness
        else:
            if self.due is None:
                self.due = empty(LATENESS)
            self.due[bisect_left(LATENESS, lateness)] += 1
            self.due_sum += lateness
            if lateness > self.due_max:
                self.due_max = lateness


class Tallies:
    def __init__(self, knows: Callable[[int], bool] = lambda job: True) -> None:
        self._knows = knows  # whether a job exists; asked once for each
        self.ended: dict[Key, Cell] = {}  # attempts that ended their task; the outcome is the state of the task
        self.again: dict[Key, Cell] = {}  # attempts whose task runs again; the outcome is that of the attempt
        self.rescued: Counter[str] = Counter()  # by the code of the ending: lost, timeout
        self.stale = 0  # reports on attempts that no longer had their task

    def count(self, endings: Iterable[Ending], *, runs_again: bool = False) -> None:
        """Count attempts whose outcome is committed."""
        cells = self.again if runs_again else self.ended
        for ending in endings:
            cell = cells.get((ending.job, ending.state)) or self._cell(cells, ending)
            cell.count += 1
            if ending.started_at and ending.finished_at:
                cell.count_run(ending)

    def _cell(self, cells: dict[Key, Cell], ending: Ending) -> Cell:
        key = ending.job if self._knows(ending.job) else UNKNOWN_JOB, ending.state
        return cells.setdefault(key, Cell())
