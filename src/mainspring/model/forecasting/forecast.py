"""Forecast: how many tasks the schedules will start, cell by cell, and in which seconds too many start at once.

Pure, and in small steps: `add` and `herds` are generators that yield after each millisecond or so of computing.
Schedules with equal plan times are one `Source`, computed once. Intervals are counted by arithmetic.
Next: model/schedules/timing.py
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from mainspring.model.schedules.planning import Decided, run_at
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.schedules.timing import Every, Timing, timing

HERD = 20  # starts within one second
MOST_HERDS = 20
NAMES_SHOWN = 10  # of the schedules in a herd

_SECOND = timedelta(seconds=1)
_TICK = timedelta(microseconds=1)
_AT_ONCE = 100  # plan times
_SECONDS_AT_ONCE = 20_000


class Source(NamedTuple):
    """Schedules with the same plan times."""

    schedule: Schedule  # one of them
    names: Sequence[str]  # the first of them
    starts: Mapping[str, int]  # by series, for one plan time: schedules × scopes
    left: int | None = None  # runs from `now` on, if they are limited

    @property
    def weight(self) -> int:
        return sum(self.starts.values())


class Herd(NamedTuple):
    at: datetime
    starts: int
    schedules: list[str]  # some of those without jitter, which is the remedy


class Counts:
    """The starts in a range, by cell and by second."""

    def __init__(self, start: datetime, end: datetime, cell: timedelta, now: datetime) -> None:
        self.start, self.end, self.now = start.astimezone(UTC), end.astimezone(UTC), now
        self.cell = cell // _SECOND
        self.length = (self.end - self.start) // _SECOND
        self.cells = -(-self.length // self.cell)
        self.by_second = array("L", bytes(array("L").itemsize * self.length))
        self.by_series: dict[str, list[int]] = {}
        self._sources: list[tuple[Source, Timing]] = []

    def add(self, source: Source) -> Iterator[None]:
        """Count the starts of a source. ValidationError if its plan times cannot be computed here."""
        times = timing(source.schedule, keep=False)
        policies = source.schedule.policies
        if policies.jitter:
            yield from self._add_spread(source, times)
            return
        self._sources.append((source, times))
        is_plain = isinstance(times.rule, Every) and source.left is None and not policies.excluded
        count = self._add_interval if is_plain else self._add_each
        yield from count(source, times)

    def _add_each(self, source: Source, times: Timing) -> Iterator[None]:
        delay = timedelta(seconds=source.schedule.policies.delay)
        for number, at in enumerate(self._plan_times(source, times, self.start - delay), 1):
            if at + delay >= self.end:
                return
            if at + delay >= self.start:
                self._count(at + delay, source.starts)
            if number % _AT_ONCE == 0:
                yield
        yield

    def _plan_times(self, source: Source, times: Timing, since: datetime) -> Iterator[datetime]:
        """From `since` on; those of limited runs from now on, until they are used up."""
        at = times.after((since if source.left is None else self.now) - _TICK)
        left = source.left
        while at is not None and (left is None or left > 0):
            yield at
            left = None if left is None else left - 1
            at = times.after(at)

    def _add_spread(self, source: Source, times: Timing) -> Iterator[None]:
        """A source with jitter is one schedule: where each task lands depends on its name and scope."""
        schedule, policies = source.schedule, source.schedule.policies
        delay, series = timedelta(seconds=policies.delay), next(iter(source.starts))
        since = self.start - delay - timedelta(seconds=policies.jitter)
        for number, at in enumerate(self._plan_times(source, times, since), 1):
            if at + delay >= self.end:
                return
            for scope in policies.scopes or ("",):
                due = run_at(schedule.name, Decided(at, at + delay, None), scope, policies.jitter)
                if self.start <= due < self.end:
                    self._count(due, {series: 1})
            if number % _AT_ONCE == 0 or len(policies.scopes) > _AT_ONCE:
                yield
        yield

    def _count(self, due: datetime, starts: Mapping[str, int]) -> None:
        second = (due - self.start) // _SECOND
        for series, count in starts.items():
            self._cells_of(series)[second // self.cell] += count
            self.by_second[second] += count

    def _cells_of(self, series: str) -> list[int]:
        if (cells := self.by_series.get(series)) is None:
            cells = self.by_series[series] = [0] * self.cells
        return cells

    def _add_interval(self, source: Source, times: Timing) -> Iterator[None]:
        """Cells by arithmetic; seconds one by one, but never more often than there are seconds."""
        assert isinstance(times.rule, Every)
        delay = timedelta(seconds=source.schedule.policies.delay)
        first = times.after(self.start - delay - _TICK)  # not before the start of the schedule
        if first is None:
            return
        end = self.end - delay
        if (stop := source.schedule.policies.end) is not None:
            end = min(end, stop + _TICK)
        # In microseconds from the start of the range on.
        begin, period = (first + delay - self.start) // _TICK, times.rule.period // _TICK
        until = (end + delay - self.start) // _TICK
        if begin >= until:
            return
        for number in range(self.cells):
            low, high = (max(begin, min(until, edge * self.cell * 1_000_000)) for edge in (number, number + 1))
            # The number of `begin + k × period` in [low, high).
            starts = (high - begin + period - 1) // period - (low - begin + period - 1) // period
            for series, count in source.starts.items():
                self._cells_of(series)[number] += starts * count
        yield
        yield from self._add_seconds(begin, until, period, source.weight)

    def _add_seconds(self, begin: int, until: int, period: int, weight: int) -> Iterator[None]:
        seconds = self.by_second
        if period >= 1_000_000:
            for part in range(begin, until, period * _SECONDS_AT_ONCE):
                for at in range(part, min(until, part + period * _SECONDS_AT_ONCE), period):
                    seconds[at // 1_000_000] += weight
                yield
            return
        before = 0
        for second in range(begin // 1_000_000, -(-until // 1_000_000)):
            edge = max(begin, min(until, (second + 1) * 1_000_000))
            count = (edge - begin + period - 1) // period
            seconds[second] += (count - before) * weight
            before = count
            if second % _SECONDS_AT_ONCE == 0:
                yield

    # ── what was counted ────────────────────────────────────────────────────────────────────────

    def peak(self, cell: int) -> tuple[int, datetime | None]:
        """The most starts in a second of a cell, and the first such second."""
        seconds = self.by_second[cell * self.cell : (cell + 1) * self.cell]
        most = max(seconds, default=0)
        at = self.start + (cell * self.cell + seconds.index(most)) * _SECOND if most else None
        return most, at

    def herds(self) -> Iterator[Herd | None]:
        """The seconds with the most starts, in their order in time; None after each step on the way."""
        found: list[tuple[int, int]] = []
        for part in range(0, self.length, _SECONDS_AT_ONCE):
            seconds = self.by_second[part : part + _SECONDS_AT_ONCE]
            if max(seconds, default=0) >= HERD:
                some = [(starts, -part - number) for number, starts in enumerate(seconds) if starts >= HERD]
                found = heapq.nlargest(MOST_HERDS, found + some)
            yield None
        self._sources.sort(key=lambda one: -one[0].weight)
        for starts, number in sorted(found, key=lambda one: -one[1]):
            names: list[str] = []
            at = self.start - number * _SECOND
            for source, times in self._sources:
                if len(names) >= NAMES_SHOWN:
                    break
                delay = timedelta(seconds=source.schedule.policies.delay)
                due = times.after(at - delay - _TICK)
                if due is not None and due + delay < at + _SECOND:
                    names += source.names
                yield None
            yield Herd(at, starts, names[:NAMES_SHOWN])
