"""Expansion: all plan times of a cron expression in a range, without walking from one to the next.

A week of one expression is its times of day, on the days that match, moved by the offset of the zone; what many
expressions share (fields, days, zones) is computed once. A day with a clock change is taken piece by piece, by the
rules of `Cron`: a test compares the two.
Next: model/schedules/expressions/cron.py
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from mainspring.errors import ValidationError, shown
from mainspring.model.schedules.excluded_days import ExcludedDays
from mainspring.model.schedules.expressions.cron import parse
from mainspring.model.schedules.schedules import Policies
from mainspring.model.words.zones import Change, changes_between, check_zone, offsets_of

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_IN_A_DAY = 86_400


class _Piece(NamedTuple):
    """Local times of a day up to the next piece: their offset, or the change that skips or repeats them."""

    begin: int  # seconds after midnight
    moved: int  # midnight, as seconds from the start of the range on
    change: Change | None = None


class _LocalDay(NamedTuple):
    date: date
    midnight: int  # as seconds from the start of the range on
    pieces: list[_Piece]  # none on a day without a change


class Expansion:
    """Plan times as whole seconds from `start` on, each before `end`."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self.start, self.end = start.astimezone(UTC), end.astimezone(UTC)
        self.length = -((self.start - self.end) // _SECOND)
        self._zones: dict[str, list[_LocalDay]] = {}
        self._templates: dict[tuple[str, ...], CronSim] = {}
        self._days: dict[tuple[str, ...], list[_LocalDay]] = {}
        self._times: dict[tuple[str, ...], list[int]] = {}
        self._sets: dict[tuple[str, ...], frozenset[int]] = {}  # the same, for `has`

    def is_exact(self, timezone: str, policies: Policies) -> bool:
        """Whether it knows all rules that hold here: a day that is excluded by its date must not change its date."""
        if not policies.excluded:
            return True
        changes = [piece.change for day in self._local_days(timezone) for piece in day.pieces]
        return all(change is None or change.start.date() == change.end.date() for change in changes)

    def plan_times(self, text: str, timezone: str, policies: Policies) -> list[int]:
        """Of an expression without H, as `resolve` makes it; in no order. ValidationError for an unknown zone."""
        fields = text.split()
        seconds, minutes, hours, *days = fields if len(fields) == 6 else ["0", *fields]
        times = self._times_of(seconds, minutes, hours)
        is_fixed = not minutes.startswith("*") and not hours.startswith("*")
        excluded = ExcludedDays(policies.excluded) if policies.excluded else None
        low, high = self._bounds(policies)
        found: list[int] = []
        shifted: set[int] = set()  # to an instant that the next day may have as well
        for day in self._days_of(timezone, days):
            if excluded is not None and day.date in excluded:
                continue
            if day.pieces:
                some = self._changed(day, times, policies, is_fixed=is_fixed)
                shifted.update([at for at in some if low <= at < high])
            elif low <= day.midnight and day.midnight + _IN_A_DAY <= high:
                midnight = day.midnight
                found += [midnight + time for time in times]
            else:
                found += [day.midnight + time for time in times if low <= day.midnight + time < high]
        return [*shifted.union(found)] if shifted else found

    def has(self, text: str, timezone: str, policies: Policies, second: int) -> bool:
        """Whether a second of the range has a plan time."""
        fields = text.split()
        seconds, minutes, hours, *days = fields if len(fields) == 6 else ["0", *fields]
        low, high = self._bounds(policies)
        if not low <= second < high:
            return False
        key = (seconds, minutes, hours)
        for day in self._days_of(timezone, days):
            time = second - day.midnight
            if not -_IN_A_DAY <= time < 2 * _IN_A_DAY or (not day.pieces and not 0 <= time < _IN_A_DAY):
                continue
            if policies.excluded and day.date in ExcludedDays(policies.excluded):
                continue
            if day.pieces:
                is_fixed = not minutes.startswith("*") and not hours.startswith("*")
                if second in self._changed(day, self._times_of(*key), policies, is_fixed=is_fixed):
                    return True
                continue
            if key not in self._sets:
                self._sets[key] = frozenset(self._times_of(*key))
            if time in self._sets[key]:
                return True
        return False

    def _bounds(self, policies: Policies) -> tuple[int, int]:
        low, high = 0, self.length
        if policies.start is not None:
            low = max(low, -((self.start - policies.start) // _SECOND))
        if policies.end is not None:
            high = min(high, (policies.end - self.start) // _SECOND + 1)
        return low, high

    def _changed(self, day: _LocalDay, times: list[int], policies: Policies, *, is_fixed: bool) -> set[int]:
        begins = [piece.begin for piece in day.pieces]
        found: set[int] = set()
        for time in times:
            piece = day.pieces[bisect_right(begins, time) - 1]
            if piece.change is None:
                found.add(piece.moved + time)
            elif piece.change.is_gap:
                if is_fixed and policies.gap == "shift":
                    found.add((piece.change.at - self.start) // _SECOND)
            else:
                fold = policies.fold if is_fixed else "both"
                if fold in ("first", "both"):
                    found.add(piece.moved + time)
                if fold in ("second", "both"):
                    found.add(piece.moved + time + (piece.change.before - piece.change.after) // _SECOND)
        return found

    # ── what many share ─────────────────────────────────────────────────────────────────────────

    def _template(self, *fields: str) -> CronSim:
        if fields not in self._templates:
            try:
                self._templates[fields] = parse(" ".join(fields))
            except CronSimError:
                raise ValidationError(f"cron: {shown(' '.join(fields))} never fires", field="cron") from None
        return self._templates[fields]

    def _times_of(self, seconds: str, minutes: str, hours: str) -> list[int]:
        key = (seconds, minutes, hours)
        if key not in self._times:
            of_hour = [
                60 * minute + second
                for minute in sorted(self._template("0", minutes, "0", "*", "*", "*").minutes)
                for second in sorted(self._template(seconds, "0", "0", "*", "*", "*").seconds)
            ]
            of_day = sorted(self._template("0", "0", hours, "*", "*", "*").hours)
            self._times[key] = [3600 * hour + time for hour in of_day for time in of_hour]
        return self._times[key]

    def _days_of(self, timezone: str, fields: list[str]) -> list[_LocalDay]:
        key = (timezone, *fields)
        if key not in self._days:
            template = self._template("0", "0", "0", *fields)
            self._days[key] = [
                day
                for day in self._local_days(timezone)
                if day.date.month in template.months and template.match_day(day.date)
            ]
        return self._days[key]

    def _local_days(self, timezone: str) -> list[_LocalDay]:
        """The days of a zone that reach into the range, and one more on either side: a change may move a time."""
        if timezone not in self._zones:
            zone = check_zone(timezone)
            changes = changes_between(zone, self.start - 2 * _DAY, self.end + 2 * _DAY)
            first, last = (at.astimezone(zone).date() for at in (self.start, self.end))
            days = [first + number * _DAY for number in range(-1, (last - first).days + 2)]
            self._zones[timezone] = [self._local_day(day, zone, changes) for day in days]
        return self._zones[timezone]

    def _local_day(self, day: date, zone: ZoneInfo, changes: list[Change]) -> _LocalDay:
        midnight = datetime(day.year, day.month, day.day)
        own = [change for change in changes if change.end > midnight and change.start < midnight + _DAY]
        before = own[0].before if own else offsets_of(zone, midnight)[0]
        pieces = [_Piece(0, self._moved(midnight, before))] if own else []
        for change in own:
            begin = max(0, (change.start - midnight) // _SECOND)  # it may have begun the day before
            pieces.append(_Piece(begin, self._moved(midnight, change.before), change))
            pieces.append(_Piece((change.end - midnight) // _SECOND, self._moved(midnight, change.after)))
        return _LocalDay(day, self._moved(midnight, before), pieces)

    def _moved(self, midnight: datetime, offset: timedelta) -> int:
        return ((midnight - offset).replace(tzinfo=UTC) - self.start) // _SECOND
