"""Simulation: an autoscaler that follows the wanted slots, on a cluster whose agents take a while to start.

Second by second, in memory. What the function of the model is given are the figures that a server would have: rates by
the minute, the depth of the queue as it was counted, the mean of what has ended.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from mainspring.model.scaling.wanted import UNKNOWN, Load, Runs, wanted


class Work(NamedTuple):
    """One task."""

    at: int  # the second in which it is due
    seconds: float
    is_planned: bool = False


class Autoscaler(NamedTuple):
    poll: int = 15  # seconds between two questions
    boot: int = 45  # seconds until a new agent takes tasks
    stable: int = 60  # seconds for which fewer must be wanted before any are stopped
    slots_per_agent: int = 1
    target_wait: float = 30.0
    horizon: int = 300


class Run:
    """What happened: by second the slots there were, that were busy and were wanted; by task how long it waited."""

    def __init__(self, work: Sequence[Work], length: int, scaler: Autoscaler | None = None) -> None:
        self.scaler = scaler or Autoscaler()
        self.slots: list[int] = []
        self.busy: list[int] = []
        self.wanted: list[int] = []
        self.waits: list[tuple[Work, int]] = []
        self._coming = deque(sorted(work))
        self._due: deque[Work] = deque()
        self._ends: list[tuple[float, Work]] = []  # of what runs
        self._ended: list[tuple[int, Work]] = []  # when it was recorded
        self._depths: dict[int, int] = {}  # at the beginning of each minute
        self._booting: list[tuple[int, int]] = []  # (ready at, slots)
        self._there = 0
        for now in range(length):
            self._step(now)

    def _step(self, now: int) -> None:
        self._there += sum(slots for ready, slots in self._booting if ready <= now)
        self._booting = [one for one in self._booting if one[0] > now]
        self._ended += [(now, work) for end, work in self._ends if end <= now]
        self._ends = [one for one in self._ends if one[0] > now]
        while self._coming and self._coming[0].at <= now:
            self._due.append(self._coming.popleft())
        if now % 60 == 0:
            self._depths[now] = len(self._due) + len(self._ends)
        self._start(now)
        if now % self.scaler.poll == 0:
            self._scale(now)
        self.slots.append(self._there)
        self.busy.append(len(self._ends))

    def _start(self, now: int) -> None:
        """A slot that is free for a part of a second starts a short task in it."""
        room = (self._there - len(self._ends)) * 1.0
        while self._due and room > 0:
            work = self._due.popleft()
            room -= min(1.0, work.seconds)
            self.waits.append((work, now - work.at))
            if work.seconds < 1.0:
                self._ended.append((now, work))
            else:
                self._ends.append((now + work.seconds, work))

    def _scale(self, now: int) -> None:
        found = wanted(
            [self._load(now)], target_wait=self.scaler.target_wait, horizon=self.scaler.horizon, busy=len(self._ends)
        )
        agents = -(-found.slots // self.scaler.slots_per_agent)
        self.wanted += [agents * self.scaler.slots_per_agent] * self.scaler.poll
        coming = self._there + sum(slots for _, slots in self._booting)
        if self.wanted[-1] > coming:
            self._booting.append((now + self.scaler.boot, self.wanted[-1] - coming))
        least = max(self.wanted[-self.scaler.stable :])
        self._there = max(min(self._there, least), len(self._ends))

    def _load(self, now: int) -> Load:
        since = max((minute for minute in self._depths if minute <= now - 30), default=0)
        length = max(1, now - since)
        self._ended = [one for one in self._ended if one[0] > now - 600]
        window = [work for at, work in self._ended if at >= since]
        recent = [work.seconds for _, work in self._ended]
        growth = (len(self._due) + len(self._ends) - self._depths.get(since, 0)) / length
        rate = max(0.0, len(window) / length + growth)
        planned = sum(work.is_planned for work in window)
        ages = [now - (end - work.seconds) for end, work in self._ends]
        halfway = 2 * math.fsum(ages) / len(ages) if ages else 0.0
        duration = math.fsum(recent) / len(recent) if recent else max(UNKNOWN, halfway)
        ahead = Counter(
            work.at - now for work in self._coming if work.is_planned and work.at < now + self.scaler.horizon
        )
        return Load(
            rate=rate,
            unplanned=rate * ((len(window) - planned) / len(window) if window else 1.0),
            due=len(self._due),
            running=len(self._ends),
            duration=duration,
            planned=[Runs(ahead, duration)],
        )

    # ── what is judged ──────────────────────────────────────────────────────────────────────────

    def share(self, optimum: float, begin: int, end: int) -> float:
        """Slot-seconds in these seconds, as a share of those of the optimum."""
        return sum(self.slots[begin:end]) / (optimum * (end - begin))

    def waited(self, begin: int = 0, share: float = 0.99) -> int:
        """How long all but the last share of the tasks that were due from then on waited at most."""
        waits = sorted(wait for work, wait in self.waits if work.at >= begin)
        return waits[int(len(waits) * share) - 1]
