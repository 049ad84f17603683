"""Tallies: what this server has recorded since its start, by job and outcome. Plain numbers and lists of counts.

The tasks that ended without an attempt are counted by the leader, when it folds their notes into the figures.

The recorder counts after the commit, the figures writer and the metrics read. Counts and sums never decrease, so a
reader takes the difference between two looks; the maxima belong to the figures writer, which resets them. To count an
ending costs a fifth of a microsecond; whatever costs more belongs to the readers.
Next: server/recording/figures.py
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence

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

    def add(self, endings: Sequence[Ending]) -> None:
        self.count += len(endings)
        if runs := [e.finished_at - e.started_at for e in endings if e.started_at and e.finished_at]:
            self.durations = self.durations or empty(DURATION)
            seconds, longest = _add(self.durations, DURATION, runs)
            self.duration_sum += seconds
            self.duration_max = max(self.duration_max, longest)
        # Of later attempts the instant is what the retry made it.
        late = [
            e.started_at - e.fire_at for e in endings if not e.planned and e.fire_at and e.attempt == 1 and e.started_at
        ]
        if late:
            self.due = self.due or empty(LATENESS)
            seconds, longest = _add(self.due, LATENESS, late)
            self.due_sum += seconds
            self.due_max = max(self.due_max, longest)
        late = [
            e.started_at - e.fire_at for e in endings if e.planned and e.fire_at and e.attempt == 1 and e.started_at
        ]
        if late:
            self.planned = self.planned or empty(LATENESS)
            seconds, longest = _add(self.planned, LATENESS, late)
            self.planned_sum += seconds
            self.planned_max = max(self.planned_max, longest)


def _add(counts: list[int], bounds: Sequence[float], values: list[float]) -> tuple[float, float]:
    """Add values to a histogram; returns their sum and the greatest. Sorted, they need a search for each bucket."""
    values.sort()
    if values[0] < 0.0:  # a clock was corrected meanwhile
        values = [max(0.0, value) for value in values]
    counted = 0
    for number, bound in enumerate(bounds):
        below = bisect_right(values, bound, counted)
        counts[number] += below - counted
        counted = below
        if counted == len(values):
            break
    counts[-1] += len(values) - counted
    return sum(values), values[-1]


class Tallies:
    def __init__(self, knows: Callable[[int], bool] = lambda job: True) -> None:
        self._knows = knows  # whether a job exists
        self.ended: dict[Key, Cell] = {}  # attempts that ended their task; the outcome is the state of the task
        self.again: dict[Key, Cell] = {}  # attempts whose task runs again; the outcome is that of the attempt
        self.noted: Counter[Key] = Counter()  # tasks that ended without an attempt: cancelled, skipped, expired
        self.rescued: Counter[str] = Counter()  # by the code of the ending: lost, timeout
        self.stale = 0  # reports on attempts that no longer had their task

    def count(self, endings: Sequence[Ending], *, runs_again: bool = False) -> None:
        """Count attempts whose outcome is committed."""
        cells = self.again if runs_again else self.ended
        for (job, state), group in _groups(endings).items():
            key = (job if self._knows(job) else UNKNOWN_JOB, state)
            cell = cells.get(key)
            if cell is None:
                cell = cells[key] = Cell()
            cell.add(group)

    def note(self, job: int, state: TaskState, tasks: int) -> None:
        """Count tasks that no attempt has ended. Not for the figures writer: the figures have them already."""
        self.noted[job if self._knows(job) else UNKNOWN_JOB, state] += tasks


def _groups(endings: Sequence[Ending]) -> dict[Key, Sequence[Ending]]:
    jobs, states = {ending.job for ending in endings}, {ending.state for ending in endings}
    if len(jobs) == len(states) == 1:  # as in most batches of a busy job
        return {(jobs.pop(), states.pop()): endings}
    groups: dict[Key, list[Ending]] = {}
    for ending in endings:
        groups.setdefault((ending.job, ending.state), []).append(ending)
    return {**groups}
