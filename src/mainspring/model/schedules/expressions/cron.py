"""Cron: the plan times of a cron expression in a timezone.

`cronsim` walks local times without an offset; this module maps each of them to instants, through clock changes.
A fixed time (neither minute nor hour begins with `*`) obeys `gap` and `fold`. Any other expression follows real time:
every instant whose local time matches, and no other, as in Debian's cron.
Next: model/schedules/timing.py
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Generator
from datetime import UTC, date, datetime, timedelta
from typing import get_args

from cronsim import CronSim, CronSimError
from cronsim.explain import Day, Expression, Field, Sequence

from mainspring.errors import ValidationError, shown
from mainspring.model.schedules.expressions.cron_grammar import NEAREST, resolve
from mainspring.model.schedules.schedules import Fold, Gap
from mainspring.model.words.zones import Change, change_around, change_at, check_zone, offsets_of

MAX_KNOWN = 8  # plan times that are remembered of one expression
YEARS = 50  # cronsim's horizon; 29 February on a given weekday is never more than 40 years away

_UNKNOWN = datetime.min  # no plan time
_SECOND = timedelta(seconds=1)
_FRIDAY = 4
_NEAREST_DAY = -3  # `nth` of a term such as 15W, for cronsim's words
_ANY_TIME = datetime(2026, 1, 1)  # the template is copied with another
_CHECKED_FROM = datetime(2026, 1, 1, tzinfo=UTC)  # any start works: what fires at all fires within YEARS of it


class Cron:
    """A cron expression that fires at least once; ValidationError for any other."""

    def __init__(
        self,
        expression: str,
        zone: str,
        *,
        gap: Gap = "shift",
        fold: Fold = "first",
        seed: str = "",
        field: str = "cron",
        is_checked: bool = False,
    ) -> None:
        """`is_checked`: it is known to fire, which takes as long to find out as all else."""
        if gap not in get_args(Gap):
            raise ValidationError(f"gap: {shown(gap)}; use {', '.join(get_args(Gap))}", field="gap")
        if fold not in get_args(Fold):
            raise ValidationError(f"fold: {shown(fold)}; use {', '.join(get_args(Fold))}", field="fold")
        text, self._spread = resolve(expression, seed=seed, field=field)
        self._zone = check_zone(zone)
        try:
            self._template = parse(text)
        except CronSimError:  # the grammar has accepted it: only the date can be wrong
            raise _never(expression, field) from None
        _, minute, hour, *_ = self._template.parts
        self.is_fixed = not minute.startswith("*") and not hour.startswith("*")
        self._gap: Gap = gap if self.is_fixed else "skip"
        self._fold: Fold = fold if self.is_fixed else "both"
        self._known: dict[datetime, datetime | None] = {}  # the last answers: schedules that share it ask the same
        if not is_checked and self.after(_CHECKED_FROM) is None:
            if self._next_local(_CHECKED_FROM.replace(tzinfo=None)) is None:
                raise _never(expression, field)
            raise ValidationError(
                f"{field}: {shown(expression)} never fires in {zone}: the clocks leave that time out whenever it "
                'comes; write another time, or a fixed one with gap="shift"',
                field=field,
            )

    @property
    def words(self) -> str:
        """The expression in English."""
        words = re.sub(r"\b(\d+)th\b", _ordinal, _Expression(self._template.parts).explain())
        words = words.replace(" and on ", " or on ")  # cronsim says `and`, and either of the two kinds of days matches
        return f"{words} (H resolved from the name)" if self._spread else words

    def after(self, instant: datetime) -> datetime | None:
        """The next plan time strictly after `instant`, in UTC; None when there is none in 50 years."""
        try:
            instant = instant.astimezone(UTC).replace(microsecond=0)  # plan times are whole seconds
        except OverflowError:  # the calendar ends with 9999
            return None
        found = self._known.get(instant, _UNKNOWN)
        if found is _UNKNOWN:
            found = self._after(instant)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[instant] = found
        return found

    def _after(self, instant: datetime) -> datetime | None:
        try:
            aware = instant.astimezone(self._zone)
            local = aware.replace(tzinfo=None, fold=0)
            found = self._search(local, instant)
            if self._fold == "first" or aware.fold == 1:
                return found
            change = change_around(self._zone, local)
            if change is None:
                return found
            # In the first pass of a fold: matches from its start on are repeated before what follows the fold.
            again = self._search(change.start - _SECOND, instant)
        except OverflowError:
            return None
        return again if found is None or (again is not None and again < found) else found

    def skipped_time(self, instant: datetime) -> datetime | None:
        """The skipped local time that this plan time replaces, if it was shifted."""
        change = change_at(self._zone, instant)
        if self._gap != "shift" or change is None or not change.is_gap:
            return None
        if self._next_local(change.end - _SECOND) == change.end:
            return None  # it would have fired here anyway
        match = self._next_local(change.start - _SECOND)
        return match if match is not None and match < change.end else None

    def has_local(self, local: datetime) -> bool:
        """Whether a local time matches, even if a clock change skips it."""
        return self._next_local(local - _SECOND) == local

    def _search(self, local: datetime, instant: datetime) -> datetime | None:
        """The first plan time after `instant` among the matches later than `local`."""
        last_year = local.year + YEARS
        while (match := self._next_local(local)) is not None and match.year <= last_year:
            before, after = offsets_of(self._zone, match)
            if before == after:
                found = (match - before).replace(tzinfo=UTC)
                if found > instant:
                    return found
                local = match
                continue
            change = change_around(self._zone, match)
            assert change is not None  # the offsets differ
            for found in self._instances(match, change):
                if found > instant:
                    return found
            local = change.end - _SECOND  # the rest of the change has no other match
        return None

    def _instances(self, match: datetime, change: Change) -> tuple[datetime, ...]:
        """The instants, in order, of a local time that is skipped or repeated."""
        if change.is_gap:
            return (change.at,) if self._gap == "shift" else ()
        first = (match - change.before).replace(tzinfo=UTC)
        second = (match - change.after).replace(tzinfo=UTC)
        return {"first": (first,), "second": (second,), "both": (first, second)}[self._fold]

    def _next_local(self, local: datetime) -> datetime | None:
        """The first local time after `local` that matches, even if a clock change skips it."""
        kind = type(self._template)
        walk = kind.__new__(kind)  # a copy: parsing again takes ten times as long, copy.copy twice
        walk.__dict__.update(self._template.__dict__)
        walk.dt = local
        return next(walk, None)


# ── 15W: the weekday nearest the 15th ───────────────────────────────────────────────────────────


class _NearestWeekday(CronSim):
    """With terms such as 15W in the day of the month, which cronsim does not know.

    The weekday, Monday to Friday, is of the same month, as in Quartz: 1W is Monday the 3rd if the 1st is a Saturday. A
    month without the day has none.
    """

    nearest: frozenset[int]

    def match_dom(self, d: date) -> bool:
        return super().match_dom(d) or (d.weekday() <= _FRIDAY and any(_is_nearest(d, day) for day in self.nearest))


def _is_nearest(weekday: date, day: int) -> bool:
    last = monthrange(weekday.year, weekday.month)[1]
    if day > last:
        return False
    wanted = weekday.replace(day=day).weekday()
    if wanted == _FRIDAY + 1:
        day += 2 if day == 1 else -1
    elif wanted == _FRIDAY + 2:
        day += -2 if day == last else 1
    return weekday.day == day


def parse(text: str) -> CronSim:
    """What `resolve` has made, read. CronSimError for a date that no month has."""
    parts = text.split()
    terms = parts[-3].split(",")
    nearest = frozenset(int(match[1]) for term in terms if (match := NEAREST.fullmatch(term)))
    if not nearest:
        return CronSim(text, _ANY_TIME)
    others = [term for term in terms if not NEAREST.fullmatch(term)]
    parsed = _NearestWeekday(" ".join([*parts[:-3], ",".join(others) or "1", *parts[-2:]]), _ANY_TIME)
    parsed.days = parsed.days if others else set()
    parsed.nearest = nearest
    parsed.parts[3] = ",".join(terms)
    return parsed


class _Day(Day):
    """The words for the day of the month, with those for 15W."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        if self._has_nearest:
            self.single_value = None  # or it would say `on the 15th day`

    @property
    def _has_nearest(self) -> bool:
        return any(sequence.nth == _NEAREST_DAY for sequence in self.parsed)

    def parse(self, value: str) -> Generator[Sequence, None, None]:
        for term in value.split(","):
            if match := NEAREST.fullmatch(term):
                yield Sequence(start=int(match[1]), stop=int(match[1]), nth=_NEAREST_DAY)
            else:
                yield from super().parse(term)

    def format_nth(self, value: int, nth: int) -> str:
        if nth == _NEAREST_DAY:
            return f"the weekday nearest the {value}th day of the month"
        return super().format_nth(value, nth)

    def format(self) -> str:
        return Field.format(self) if self._has_nearest else super().format()


class _Expression(Expression):
    def __init__(self, parts: list[str]) -> None:
        super().__init__([*parts[:3], "*", *parts[4:]])
        self.day = _Day(parts[3])
        self.day_and = parts[3].startswith("*") or parts[5].startswith("*")


def _never(expression: str, field: str) -> ValidationError:
    return ValidationError(
        f"{field}: day of month: {shown(expression)} never fires, for no month has such a day; "
        "write a date that exists, or L for the last day of the month",
        field=field,
    )


def _ordinal(match: re.Match[str]) -> str:
    """cronsim says 21th."""
    digits = match[1]
    suffix = "th" if digits[-2:] in ("11", "12", "13") else {"1": "st", "2": "nd", "3": "rd"}.get(digits[-1], "th")
    return digits + suffix
