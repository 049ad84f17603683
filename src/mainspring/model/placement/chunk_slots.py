"""ChunkSlots: how many slots of an agent the tasks that it holds take, where one call takes several of them.

The agent gathers the due tasks of a job with `chunk` into calls of so many, each in one slot: 250 tasks of a chunk of
100 take three. So the room of an agent is counted in slots, and a job without `chunk` takes one for each task.
Next: server/agents/session.py
"""

from __future__ import annotations

import heapq


class ChunkSlots:
    def __init__(self) -> None:
        self._jobs: dict[int, _Held] = {}
        self.job_of: dict[int, int] = {}  # by task, until its ending is reported

    def take(self, task: int, job: int, size: int, ahead_until: float | None) -> None:
        """A task of a job whose calls take `size` of them; its instant, if that is still to come."""
        self.release(task)  # it may be there under an older token
        held = self._jobs.setdefault(job, _Held(size))
        held.size = size
        held.tasks += 1
        if ahead_until is not None:
            heapq.heappush(held.ahead, ahead_until)
        self.job_of[task] = job

    def release(self, task: int) -> float:
        """It has ended; returns the share of a slot that it took, 0 if it is not known."""
        job = self.job_of.pop(task, None)
        if job is None:
            return 0.0
        held = self._jobs[job]
        held.tasks -= 1
        if not held.tasks:
            del self._jobs[job]
        return 1.0 / held.size

    def saved(self, now: float) -> int:
        """How many slots fewer than tasks those take that are due."""
        return sum(held.saved(now) for held in self._jobs.values())


class _Held:
    """The tasks of one job."""

    __slots__ = ("ahead", "size", "tasks")

    def __init__(self, size: int) -> None:
        self.size = size
        self.tasks = 0
        self.ahead: list[float] = []  # a heap: instants of those armed ahead of time

    def saved(self, now: float) -> int:
        while self.ahead and self.ahead[0] <= now:
            heapq.heappop(self.ahead)
        due = max(0, self.tasks - len(self.ahead))
        return due + -due // self.size
