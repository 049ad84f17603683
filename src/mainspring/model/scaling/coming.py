"""Coming: the starts that a schedule has not planned yet, from its cursor on, by the second from now.

Tasks of plan times before the cursor exist already. Pure, in small steps: see model/forecasting/forecast.py, which
counts all plan times of a range, whatever the cursors.
Next: model/schedules/timing.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

from mainspring.model.schedules.planning import Decided, run_at
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.skips import Skip, unskipped
from mainspring.model.schedules.timing import Every, Timing

_TICK = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)


def starts(
    schedule: Schedule,
    times: Timing,
    cursor: datetime,
    now: datetime,
    horizon: int,
    left: int | None,
    skips: Sequence[Skip] = (),
) -> Iterator[tuple[int, int]]:
    """(second, starts) of each plan time that is due within the horizon; those that are late start in the first second.

    `left` is how many runs are left, if they are limited.
    """
    policies = schedule.policies
    delay, scopes = timedelta(seconds=policies.delay), policies.scopes or ("",)
    until = now + timedelta(seconds=horizon)
    if left is None and not policies.jitter and not policies.excluded and not skips and _is_quick(times):
        end = until if policies.end is None else min(until, policies.end + delay + _TICK)
        yield from _counted(times, cursor, now, end, delay, len(scopes))
        return
    coming = islice(unskipped(times, skips, cursor - _TICK), left)
    at = next(coming, None)
    while at is not None and at + delay < until:
        following = next(coming, None)
        if following is None or following + delay > now:  # of several that are late only the last counts
            for scope in scopes:
                due = run_at(schedule.name, Decided(at, at + delay, None), scope, policies.jitter)
                if due < until:
                    yield max(0, (due - now) // _SECOND), 1
        at = following


def _is_quick(times: Timing) -> bool:
    return isinstance(times.rule, Every) and times.rule.period < _SECOND


def _counted(
    times: Timing, cursor: datetime, now: datetime, until: datetime, delay: timedelta, scopes: int
) -> Iterator[tuple[int, int]]:
    """Several starts in a second, by arithmetic."""
    assert isinstance(times.rule, Every)
    at = times.after(cursor - _TICK)
    if at is None:
        return
    first, period = max(0.0, (at + delay - now) / _SECOND), times.rule.period / _SECOND
    last, before = (until - now) / _SECOND, 0
    for second in range(int(first), math.ceil(last)):
        count = max(0, math.ceil((min(second + 1, last) - first) / period))
        yield second, (count - before) * scopes
        before = count


def longest(schedule: Schedule, times: Timing, cursor: datetime) -> float:
    """How long its runs count at most, in seconds: where they must not overlap, until the next is due."""
    if schedule.policies.overlap == "allow":
        return math.inf
    at = times.after(cursor - _TICK)
    following = None if at is None else times.after(at)
    return math.inf if at is None or following is None else (following - at) / _SECOND
