"""Timing: the plan times of a schedule, whatever its kind.

Next: model/schedules/planning.py
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial

from mainspring.errors import ValidationError
from mainspring.model.schedules.excluded_days import ExcludedDays
from mainspring.model.schedules.expressions.cron import YEARS, Cron
from mainspring.model.schedules.expressions.phrases import MIN_PERIOD
from mainspring.model.schedules.schedules import Fold, Gap, Kind, Schedule
from mainspring.model.words import durations
from mainspring.model.words.instants import instant_text, parse_instant
from mainspring.model.words.zones import change_around, check_zone, start_of_day

MAX_TIMINGS = 2_000  # of up to 8 kB each
MAX_PERIODS = 1_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)
_HORIZON = timedelta(days=366 * YEARS)
_MAX_JUMPS = 1_000  # over separate runs of excluded days: a schedule that never fires must not hold up others
_UNITS = (("day", "d", 86_400), ("hour", "h", 3_600), ("minute", "min", 60), ("second", "s", 1))


class Every:
    """`anchor + k × period` for every integer k, in whole microseconds, so that no error accumulates."""

    def __init__(self, expression: str, anchor: datetime | None) -> None:
        self.period = _period(expression)
        self._anchor = (anchor or _EPOCH).astimezone(UTC)

    def after(self, instant: datetime) -> datetime | None:
        periods = (instant - self._anchor) // self.period + 1
        try:
            return self._anchor + periods * self.period
        except OverflowError:  # the calendar ends with 9999
            return None

    @property
    def words(self) -> str:
        rest, microseconds = self.period // timedelta(seconds=1), self.period.microseconds
        if microseconds:
            return f"every {self.period.total_seconds():.6f}".rstrip("0") + " seconds"
        parts = []
        for word, short, size in _UNITS:
            count, rest = divmod(rest, size)
            if count:
                parts.append((count, word, short))
        if len(parts) > 1:
            return "every " + " ".join(f"{count} {short}" for count, _, short in parts)
        count, word, _ = parts[0]
        return f"every {word}" if count == 1 else f"every {count} {word}s"


@lru_cache(maxsize=MAX_PERIODS)
def _period(expression: str) -> timedelta:
    """Cached: parsing takes longer than all else that a plan time of an interval costs."""
    seconds = durations.seconds(expression, field="every", at_least=MIN_PERIOD)
    return timedelta(microseconds=round(seconds * 1_000_000))


class Once:
    """A single instant."""

    def __init__(self, expression: str, timezone: str) -> None:
        self._at = parse_instant(expression, field="once").astimezone(UTC)
        self.words = f"once at {instant_text(self._at.astimezone(check_zone(timezone)))}"

    def after(self, instant: datetime) -> datetime | None:
        return self._at if self._at > instant else None


class Daemon:
    """A number of replicas; no plan times."""

    def __init__(self, expression: str) -> None:
        if not expression.isascii() or not expression.isdigit() or len(expression) > 4:
            raise ValidationError(f"replicas: {expression[:50]!r} is not a number of replicas", field="replicas")
        count = int(expression)
        self.words = f"{count} replica{'' if count == 1 else 's'} kept running"

    def after(self, instant: datetime) -> datetime | None:
        return None


class Timing:
    """When a schedule wants its job to run. All plan times are in UTC."""

    def __init__(
        self,
        rule: Cron | Every | Once | Daemon,
        timezone: str,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        excluded: tuple[str, ...] = (),
    ) -> None:
        self.rule = rule
        self.zone = check_zone(timezone)
        self._start = start.astimezone(UTC) if start else None
        self._end = end.astimezone(UTC) if end else None
        self._excluded = ExcludedDays(excluded)

    @property
    def words(self) -> str:
        return self.rule.words  # on demand: it takes as long as making the rule

    def after(self, instant: datetime) -> datetime | None:
        """The next plan time strictly after `instant`, if there is one."""
        instant = instant.astimezone(UTC)
        if self._start is not None and instant < self._start:
            instant = self._start - _TICK  # a plan time at `start` is one
        found = self._after_excluded(instant) if self._excluded else self.rule.after(instant)
        return None if found is None or (self._end is not None and found > self._end) else found

    def between(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """The plan times later than `after` and not later than `until`, the first `limit` of them."""
        found: list[datetime] = []
        while len(found) < limit:
            instant = self.after(found[-1] if found else after)
            if instant is None or instant > until:
                break
            found.append(instant)
        return found

    def is_excluded(self, instant: datetime) -> bool:
        """Whether its day, in the timezone of the schedule, has no plan times."""
        return bool(self._excluded) and instant.astimezone(self.zone).date() in self._excluded

    def _after_excluded(self, instant: datetime) -> datetime | None:
        try:
            found = self.rule.after(instant)
            for _ in range(_MAX_JUMPS):
                if found is None or not self.is_excluded(found):
                    return found
                resume = self._end_of_exclusion(found)
                if resume is None or resume - instant > _HORIZON:
                    return None
                found = self.rule.after(resume - _TICK)
        except OverflowError:  # the calendar ends with 9999
            return None
        return None

    def _end_of_exclusion(self, instant: datetime) -> datetime | None:
        """The first instant after this excluded one that may be a plan time."""
        local = instant.astimezone(self.zone)
        day = self._excluded.next_day(local.date())
        if day is None:
            return None
        resume = start_of_day(self.zone, day, after=instant)
        if local.fold == 0:
            change = change_around(self.zone, local.replace(tzinfo=None))
            if change is not None:  # the first pass of a fold over midnight: the day before is repeated
                resume = min(resume, change.at)
        return resume


def timing(schedule: Schedule, *, keep: bool = True, is_checked: bool = False) -> Timing:
    """The timing of a schedule, cached if it is slow to make. ValidationError if it cannot be made.

    A pass over all schedules does not `keep` them: that would push out those that planners need. If the schedule was
    defined just now, it `is_checked`: that its expression fires at all is not tried again.
    """
    policies = schedule.policies
    make = (
        partial(_timing, is_checked=True)
        if is_checked and not keep
        else _kept_timing
        if keep and (schedule.kind == "cron" or policies.excluded)
        else _timing
    )
    return make(
        schedule.kind,
        schedule.expression,
        schedule.timezone,
        policies.gap,
        policies.fold,
        schedule.name if schedule.kind == "cron" and "h" in schedule.expression.lower() else "",
        policies.anchor,
        policies.start,
        policies.end,
        policies.excluded,
    )


def _timing(
    kind: Kind,
    expression: str,
    timezone: str,
    gap: Gap,
    fold: Fold,
    seed: str,
    anchor: datetime | None,
    start: datetime | None,
    end: datetime | None,
    excluded: tuple[str, ...],
    is_checked: bool = False,
) -> Timing:
    rule: Cron | Every | Once | Daemon
    if kind == "cron":
        rule = Cron(expression, timezone, gap=gap, fold=fold, seed=seed, is_checked=is_checked)
    elif kind == "every":
        rule = Every(expression, anchor)
    elif kind == "once":
        rule = Once(expression, timezone)
    else:
        rule = Daemon(expression)
    return Timing(rule, timezone, start=start, end=end, excluded=excluded)


_kept_timing = lru_cache(maxsize=MAX_TIMINGS)(_timing)
