"""Wanted: how many slots the work of a cluster, or of a part of it, asks for.

How many runs are under way in each second from now to the horizon, if each starts when it should:

    what runs now     ends evenly over the duration of its job
    what is due       × duration / target wait: slots that clear the backlog in time
    what arrives      rate × duration, by Little's law; a rate is not expected to last longer than it was measured
    what is planned   from its second on, for the duration; these are known, so the rate has only unplanned tasks

The busiest second decides, at 80 % use; slots of daemons come on top, and no fewer are wanted than are busy.
Pure: clocks and figures are arguments. The units of a rate are attempts: one that is retried runs twice.
Next: model/scaling/words.py
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

USE = 0.8  # of the wanted slots that are to be busy
UNKNOWN = 1.0  # seconds that an attempt counts with where none has ended yet
MEASURED = 60  # seconds over which rates are measured, at least
_ROUNDING = 1e-6


class Runs(NamedTuple):
    """Starts that are known ahead, of runs that take equally long."""

    starts: Mapping[int, int]  # by the second from now
    duration: float


class Load(NamedTuple):
    """The work of one job."""

    rate: float = 0.0  # tasks a second that become due and may run
    unplanned: float = 0.0  # of which no schedule plans
    due: int = 0  # tasks that no agent holds and no limit holds back
    running: int = 0
    duration: float = UNKNOWN  # seconds of an attempt
    most: int | None = None  # that may run at once
    planned: Sequence[Runs] = ()  # by schedules
    delayed: Mapping[int, int] = {}  # other tasks that will be due, by the second from now


class Wanted(msgspec.Struct, frozen=True):
    """How many runs are under way, before any are rounded up."""

    slots: int
    running: int  # now
    arriving: float  # of unplanned tasks
    backlog: float  # to clear what is due within the target wait
    planned: float  # the most planned and delayed runs that overlap in a second of the horizon
    planned_in: int | None  # seconds until then; None: there are none
    is_ahead: bool  # they decide


def wanted(loads: Sequence[Load], *, target_wait: float, horizon: int, daemons: int = 0, busy: int = 0) -> Wanted:
    """Durations are seconds. `busy` slots have work that must not be stopped."""
    length = max(horizon, MEASURED, math.ceil(target_wait)) + 1  # as far as each part takes to reach its height
    now, ahead, known = _Curve(length), _Curve(length), _Curve(length)
    for load in loads:
        if load.most is None:
            _add(load, now, ahead, known, target_wait, horizon)
        else:
            _add_limited(load, float(load.most), (now, ahead, known), target_wait, horizon)
    expected, planned = now.values(), known.values()
    needed = max(map(float.__add__, expected, ahead.values()))
    most = max(planned)
    return Wanted(
        slots=max(math.ceil(needed / USE - _ROUNDING) + daemons, busy, int(needed > 0)),
        running=sum(load.running for load in loads),
        arriving=math.fsum(_arriving(load, horizon) for load in loads),
        backlog=math.fsum(_backlog(load, target_wait) for load in loads),
        planned=most,
        planned_in=planned.index(most) if most else None,
        is_ahead=needed > max(expected) * (1.0 + _ROUNDING),
    )


def _add(load: Load, now: _Curve, ahead: _Curve, known: _Curve, target_wait: float, horizon: int) -> None:
    """One job: what runs, is due and arrives; what is planned beyond that; and the planned alone."""
    arriving, backlog = _arriving(load, horizon), _backlog(load, target_wait)
    # No slot is kept free beside it, if nothing is to come, or the rate tells how many are wanted.
    is_measured = not load.rate or load.duration < MEASURED
    running = load.running * (USE if is_measured else 1.0)
    now.add_ramp(running, 0.0, math.ceil(load.duration))
    # As if it arrived evenly within the target wait: slots that are busy now take their part of it.
    now.add_ramp(0.0, backlog, math.ceil(min(load.duration, target_wait)))
    now.add_step(-backlog, math.ceil(max(target_wait, load.duration)) + 1)
    now.add_ramp(0.0, arriving, math.ceil(min(load.duration, MEASURED)))
    for runs in load.planned:
        ahead.add_runs(runs)
        known.add_runs(runs)
    if load.delayed:
        runs = Runs(load.delayed, load.duration)
        known.add_runs(runs)
        alone = _Curve(ahead.length)
        alone.add_runs(runs)
        # They are part of the rate of unplanned tasks, too: only what exceeds it counts.
        ahead.add_values([max(0.0, value - arriving) for value in alone.values()])


def _add_limited(
    load: Load, most: float, curves: tuple[_Curve, _Curve, _Curve], target_wait: float, horizon: int
) -> None:
    """A job of which no more than `most` may run at once."""
    now, ahead, known = (_Curve(curve.length) for curve in curves)
    _add(load, now, ahead, known, target_wait, horizon)
    present = now.values()
    both = map(float.__add__, present, ahead.values())
    curves[0].add_values([min(value, most) for value in present])
    curves[1].add_values([min(value, most) - min(before, most) for before, value in zip(present, both, strict=True)])
    curves[2].add_values([min(value, most) for value in known.values()])


def _arriving(load: Load, horizon: int) -> float:
    """Runs of unplanned tasks. Without a view of the plans, every arrival counts as one."""
    rate = load.unplanned if horizon >= MEASURED else load.rate
    return rate * min(load.duration, MEASURED)


def _backlog(load: Load, target_wait: float) -> float:
    return load.due * min(1.0, load.duration / target_wait)


class _Curve:
    """A value for each second, made of jumps and bends, so that adding a job costs the same whatever the horizon."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._jumps = [0.0] * (length + 2)
        self._bends = [0.0] * (length + 2)
        self._more: list[float] | None = None

    def _at(self, second: int) -> int:
        return min(second, self.length + 1)

    def add_step(self, value: float, since: int) -> None:
        """This value from that second on."""
        self._jumps[self._at(since)] += value

    def add_ramp(self, first: float, last: float, seconds: int) -> None:
        """From one value to another, evenly within so many seconds; that from then on."""
        slope = (last - first) / max(1, seconds)
        self._jumps[0] += first
        self._bends[1] += slope
        self._bends[self._at(1 + max(1, seconds))] -= slope

    def add_runs(self, runs: Runs) -> None:
        """How many of them are under way in each second, on average."""
        jumps, whole, part = self._jumps, int(min(runs.duration, self.length)), runs.duration % 1.0
        for second, count in runs.starts.items():
            jumps[self._at(second)] += count
            jumps[self._at(second + whole)] -= count * (1.0 - part)
            jumps[self._at(second + whole + 1)] -= count * part

    def add_values(self, values: Iterable[float]) -> None:
        self._more = list(values) if self._more is None else list(map(float.__add__, self._more, values))

    def values(self) -> list[float]:
        found = map(float.__add__, accumulate(self._jumps), accumulate(accumulate(self._bends)))
        told = [max(0.0, value) for value, _ in zip(found, range(self.length), strict=False)]
        return told if self._more is None else list(map(float.__add__, told, self._more))
