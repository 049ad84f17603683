"""Forecast: how many tasks the schedules will start, cell by cell, and in which seconds too many start at once.

Pure, and in small steps: `add` and `herds` are generators that yield after each millisecond or so of computing.
Schedules with equal plan times are one `Source`, computed once. Intervals are counted by arithmetic, cron expressions
expanded; only what is limited or skipped is walked from plan time to plan time.
Next: model/forecasting/expansion.py
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from mainspring.model.forecasting.expansion import Expansion
from mainspring.model.schedules.schedules import Schedule, stable_hash
from mainspring.model.schedules.skips import Skip, unskipped
from mainspring.model.schedules.timing import Every, Timing, timing

HERD = 20  # starts within one second
MOST_HERDS = 20
NAMES_SHOWN = 10  # of the schedules in a herd

_SECOND = timedelta(seconds=1)
_TICK = timedelta(microseconds=1)
_MICROSECONDS = 1_000_000
_DAY = 86_400  # seconds
_LONGEST_LEAD = 8  # days before the range of which plan times are expanded
_AT_ONCE = 25  # plan times
_SECONDS_AT_ONCE = 20_000
_HASHES_AT_ONCE = 500


class Source(NamedTuple):
    """Schedules with the same plan times."""

    schedule: Schedule  # one of them
    names: Sequence[str]  # the first of them; all of those with jitter
    starts: Mapping[str, int]  # by series, for one plan time: schedules × scopes
    left: int | None = None  # runs from `now` on, if they are limited
    skips: Sequence[Skip] = ()
    text: str | None = None  # the cron expression with H resolved
    expressions: Sequence[str] = ()  # as they are written

    @property
    def weight(self) -> int:
        return sum(self.starts.values())


class Herd(NamedTuple):
    at: datetime
    starts: int
    schedules: list[str]  # some of those without jitter, which is the remedy


class Counts:
    """The starts in a range, by cell and by second; by series too, unless that is not asked for."""

    def __init__(
        self,
        start: datetime,
        end: datetime,
        cell: timedelta,
        now: datetime,
        *,
        has_series: bool = True,
        names: int = 0,
    ) -> None:
        self.start, self.end, self.now = start.astimezone(UTC), end.astimezone(UTC), now
        self.cell = cell // _SECOND
        self.length = (self.end - self.start) // _SECOND
        self.cells = -(-self.length // self.cell)
        self.by_second = array("L", bytes(array("L").itemsize * self.length))
        self.by_series: dict[str, list[int]] = {}
        self.names: dict[int, list[str]] = {}  # by second, so many of them: for short ranges
        self._has_series, self._most_names = has_series, names
        self._expansions: dict[int, Expansion] = {}  # by the days that they begin before the range
        self._sources: list[Source] = []

    def add(self, source: Source) -> Iterator[None]:
        """Count the starts of a source. ValidationError if its plan times cannot be computed here."""
        policies = source.schedule.policies
        if policies.jitter:
            yield from self._add_spread(source)
            return
        self._sources.append(source)
        seconds = self._expanded(source)
        if seconds is not None:
            yield from self._add_seconds(source, seconds)
            return
        times = timing(source.schedule, keep=False)
        is_plain = isinstance(times.rule, Every) and source.left is None and not policies.excluded and not source.skips
        if is_plain and not self._most_names:
            yield from self._add_interval(source, times)
        else:
            yield from self._add_each(source, times)

    def _expanded(self, source: Source) -> list[int] | None:
        """The seconds of the range in which it starts, if they need not be walked to."""
        policies = source.schedule.policies
        expansion = self._expansion(source, policies.delay + policies.jitter)
        if expansion is None:
            return None
        assert source.text is not None
        lead = (self.start - expansion.start) // _SECOND - policies.delay
        found = expansion.plan_times(source.text, source.schedule.timezone, policies)
        if not lead:
            return found
        moved = [math.floor(at - lead) for at in found]
        return [second for second in moved if 0 <= second < self.length]

    def _expansion(self, source: Source, lead: float) -> Expansion | None:
        days = math.ceil(lead / _DAY)
        if source.text is None or source.left is not None or source.skips or days > _LONGEST_LEAD:
            return None
        if days not in self._expansions:
            self._expansions[days] = Expansion(self.start - timedelta(days=days), self.end)
        expansion = self._expansions[days]
        return expansion if expansion.is_exact(source.schedule.timezone, source.schedule.policies) else None

    def _add_seconds(self, source: Source, seconds: list[int]) -> Iterator[None]:
        weight, by_second = source.weight, self.by_second
        for part in range(0, len(seconds), _SECONDS_AT_ONCE):
            some = seconds[part : part + _SECONDS_AT_ONCE]
            for second in some:
                by_second[second] += weight
                if self._most_names:
                    self._name(second, source.names)
            if self._has_series:
                for cell, starts in Counter([second // self.cell for second in some]).items():
                    self._add_to_series(source.starts, cell, starts)
            yield
        yield

    def _add_each(self, source: Source, times: Timing) -> Iterator[None]:
        delay = timedelta(seconds=source.schedule.policies.delay)
        for number, at in enumerate(self._plan_times(source, times, self.start - delay), 1):
            if at + delay >= self.end:
                return
            if at + delay >= self.start:
                self._count(at + delay, source)
            if number % _AT_ONCE == 0:
                yield
        yield

    def _plan_times(self, source: Source, times: Timing, since: datetime) -> Iterator[datetime]:
        """From `since` on; those of limited runs from now on, until they are used up."""
        left = source.left
        for at in unskipped(times, source.skips, (since if left is None else self.now) - _TICK):
            if left is not None and left <= 0:
                return
            yield at
            left = None if left is None else left - 1

    def _add_spread(self, source: Source) -> Iterator[None]:
        """Where each task lands depends on the name of its schedule and its scope: each is counted by itself."""
        policies = source.schedule.policies
        scopes, share = policies.scopes or ("",), dict.fromkeys(source.starts, 1)
        assert len(share) == 1, "those with jitter have sources of their own by series"
        for number, (at, said) in enumerate(self._spread_times(source), 1):
            begin = (at + timedelta(seconds=policies.delay) - self.start) // _TICK
            for hashed, name in enumerate(source.names, 1):
                for scope in scopes:
                    portion = stable_hash(name, scope, said) / 2**64
                    second = (begin + round(policies.jitter * portion * _MICROSECONDS)) // _MICROSECONDS
                    if 0 <= second < self.length:
                        self.by_second[second] += 1
                        if self._most_names:
                            self._name(second, [name])
                        if self._has_series:
                            self._add_to_series(share, second // self.cell, 1)
                if hashed * len(scopes) % _HASHES_AT_ONCE < len(scopes):
                    yield
            if number % _AT_ONCE == 0:
                yield
        yield

    def _spread_times(self, source: Source) -> Iterator[tuple[datetime, str]]:
        """Its plan times from which a task may land in the range, and how `run_at` writes them."""
        policies = source.schedule.policies
        lead = policies.delay + policies.jitter
        expansion = self._expansion(source, lead)
        if expansion is not None:
            assert source.text is not None
            for second in expansion.plan_times(source.text, source.schedule.timezone, policies):
                at = expansion.start + second * _SECOND
                yield at, at.isoformat()
            return
        until = self.end - timedelta(seconds=policies.delay)
        times = timing(source.schedule, keep=False)
        for at in self._plan_times(source, times, self.start - timedelta(seconds=lead)):
            if at >= until:
                return
            yield at, at.isoformat()

    def _count(self, due: datetime, source: Source) -> None:
        second = (due - self.start) // _SECOND
        self.by_second[second] += source.weight
        if self._most_names:
            self._name(second, source.names)
        if self._has_series:
            self._add_to_series(source.starts, second // self.cell, 1)

    def _name(self, second: int, names: Sequence[str]) -> None:
        known = self.names.setdefault(second, [])
        known.extend(names[: self._most_names - len(known)])

    def _add_to_series(self, starts: Mapping[str, int], cell: int, times: int) -> None:
        for series, count in starts.items():
            if (cells := self.by_series.get(series)) is None:
                cells = self.by_series[series] = [0] * self.cells
            cells[cell] += count * times

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
        for number in range(self.cells if self._has_series else 0):
            low, high = (max(begin, min(until, edge * self.cell * _MICROSECONDS)) for edge in (number, number + 1))
            # The number of `begin + k × period` in [low, high).
            starts = (high - begin + period - 1) // period - (low - begin + period - 1) // period
            self._add_to_series(source.starts, number, starts)
        yield
        yield from self._add_periods(begin, until, period, source.weight)

    def _add_periods(self, begin: int, until: int, period: int, weight: int) -> Iterator[None]:
        seconds = self.by_second
        if period >= _MICROSECONDS:
            for part in range(begin, until, period * _SECONDS_AT_ONCE):
                for at in range(part, min(until, part + period * _SECONDS_AT_ONCE), period):
                    seconds[at // _MICROSECONDS] += weight
                yield
            return
        before = 0
        for second in range(begin // _MICROSECONDS, -(-until // _MICROSECONDS)):
            edge = max(begin, min(until, (second + 1) * _MICROSECONDS))
            count = (edge - begin + period - 1) // period
            seconds[second] += (count - before) * weight
            before = count
            if second % _SECONDS_AT_ONCE == 0:
                yield

    # ── what was counted ────────────────────────────────────────────────────────────────────────

    def starts(self, cell: int) -> int:
        return sum(self.by_second[cell * self.cell : (cell + 1) * self.cell])

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
        self._sources.sort(key=lambda source: -source.weight)
        for starts, number in sorted(found, key=lambda one: -one[1]):
            names: list[str] = []
            for source in self._sources:
                if len(names) >= NAMES_SHOWN:
                    break
                if self.is_starting(source, -number):
                    names += source.names
                yield None
            yield Herd(self.start - number * _SECOND, starts, names[:NAMES_SHOWN])

    def is_starting(self, source: Source, second: int) -> bool:
        """Whether a source without jitter starts within a second of the range."""
        policies = source.schedule.policies
        if not policies.delay and (expansion := self._expansion(source, 0.0)) is not None:
            assert source.text is not None
            return expansion.has(source.text, source.schedule.timezone, policies, second)
        at, delay = self.start + second * _SECOND, timedelta(seconds=policies.delay)
        due = next(unskipped(timing(source.schedule, keep=False), source.skips, at - delay - _TICK), None)
        return due is not None and due + delay < at + _SECOND
