"""Plan times around changes of the clocks, against an oracle that walks real time second by second.

The oracle shares nothing with the engine: it draws sets of values instead of parsing text, matches them without
cronsim, and sees gaps and folds as local times that it missed or met twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.model.schedules.expressions.cron import Cron
from mainspring.model.schedules.schedules import Fold, Gap

CHANGES = [
    ("America/New_York", "2026-03-08T07:00"),
    ("America/New_York", "2026-11-01T06:00"),
    ("Europe/Paris", "2026-03-29T01:00"),
    ("Europe/Paris", "2026-10-25T01:00"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("Africa/Cairo", "2026-04-23T22:00"),
    ("Africa/Cairo", "2026-10-29T21:00"),
    ("America/Sao_Paulo", "2018-11-04T03:00"),
    ("America/Sao_Paulo", "2018-02-18T02:00"),
    ("America/Havana", "2025-03-09T05:00"),
    ("America/Havana", "2025-11-02T05:00"),
    ("Asia/Beirut", "2026-03-28T22:00"),
    ("Asia/Beirut", "2026-10-24T21:00"),
    ("Pacific/Apia", "2011-12-30T10:00"),
    ("Pacific/Chatham", "2026-04-04T14:00"),
    ("Pacific/Chatham", "2026-09-26T14:00"),
    ("Europe/Dublin", "2026-03-29T01:00"),
    ("Europe/Dublin", "2026-10-25T01:00"),
    ("Africa/Casablanca", "2025-02-23T02:00"),
    ("Africa/Casablanca", "2025-04-06T02:00"),
    ("America/St_Johns", "2010-03-14T03:31"),
    ("America/St_Johns", "2010-11-07T02:31"),
    ("Asia/Kathmandu", "1985-12-31T18:30"),
    ("America/Caracas", "2016-05-01T07:00"),
    ("Asia/Pyongyang", "2018-05-04T15:00"),
]


@dataclass(frozen=True)
class Walk:
    """Every step of real time from `start` on, what the clocks showed, and what they never showed."""

    start: datetime
    stop: datetime
    shown: list[tuple[datetime, datetime]]  # instant, local
    left_out: dict[datetime, list[datetime]]  # the instant after a gap: the local times in it
    times: Counter[datetime]


@cache
def walk(zone_name: str, change: str, step: timedelta, reach: timedelta) -> Walk:
    zone, middle = ZoneInfo(zone_name), datetime.fromisoformat(change).replace(tzinfo=UTC)
    start, stop = middle - reach, middle + reach
    shown: list[tuple[datetime, datetime]] = []
    left_out: dict[datetime, list[datetime]] = {}
    instant = start
    while instant <= stop:
        local = instant.astimezone(zone).replace(tzinfo=None)
        if shown and local > (expected := shown[-1][1] + step):
            left_out[instant] = [expected + n * step for n in range((local - expected) // step)]
        shown.append((instant, local))
        instant += step
    return Walk(start, stop, shown, left_out, Counter(local for _, local in shown))


@dataclass(frozen=True)
class Expression:
    text: str
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int] | None  # None is a star
    weekdays: frozenset[int] | None  # from Monday = 1 to Sunday = 7
    follows_real_time: bool

    def matches(self, local: datetime) -> bool:
        if (
            local.minute not in self.minutes
            or local.hour not in self.hours
            or local.second not in self.seconds
            or local.microsecond
        ):
            return False
        day = self.days is not None and local.day in self.days
        weekday = self.weekdays is not None and local.isoweekday() in self.weekdays
        return day or weekday or (self.days is None and self.weekdays is None)


def oracle(expression: Expression, real: Walk, gap: Gap, fold: Fold) -> list[datetime]:
    if expression.follows_real_time:
        return [instant for instant, local in real.shown if expression.matches(local)]
    found, met = set(), set()
    for instant, local in real.shown:
        if gap == "shift" and any(expression.matches(missed) for missed in real.left_out.get(instant, ())):
            found.add(instant)
        if not expression.matches(local):
            continue
        pass_ = "second" if local in met else "first"
        met.add(local)
        if real.times[local] == 1 or fold in (pass_, "both"):
            found.add(instant)
    return sorted(found)


@st.composite
def values(draw: st.DrawFn, low: int, high: int, likely: list[int]) -> tuple[str, frozenset[int], bool]:
    """A field: its text, its values, whether it begins with a star."""
    one = st.sampled_from(likely) | st.integers(low, high)
    match draw(st.sampled_from(["one", "list", "range", "step", "star", "star step"])):
        case "one":
            value = draw(one)
            return str(value), frozenset([value]), False
        case "list":
            several = draw(st.lists(one, min_size=2, max_size=4))
            return ",".join(map(str, several)), frozenset(several), False
        case "range":
            first, last = sorted((draw(one), draw(one)))
            return f"{first}-{last}", frozenset(range(first, last + 1)), False
        case "step":
            first, last = sorted((draw(one), draw(one)))
            step = draw(st.integers(1, high - low + 1))
            return f"{first}-{last}/{step}", frozenset(range(first, last + 1, step)), False
        case "star step":
            step = draw(st.integers(1, high - low + 1))
            return f"*/{step}", frozenset(range(low, high + 1, step)), True
    return "*", frozenset(range(low, high + 1)), True


@st.composite
def expressions(draw: st.DrawFn, *, with_seconds: bool) -> Expression:
    minute, minutes, star_minute = draw(values(0, 59, [0, 1, 15, 29, 30, 31, 45, 59]))
    hour, hours, star_hour = draw(values(0, 23, [0, 1, 2, 3, 12, 23]))
    day, days = "*", None
    weekday, weekdays = "*", None
    if draw(st.integers(0, 4)) == 0:
        days = frozenset(draw(st.lists(st.integers(1, 31), min_size=1, max_size=8)))
        day = ",".join(map(str, days))
    if draw(st.integers(0, 4)) == 0:
        weekdays = frozenset(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
        weekday = ",".join(map(str, weekdays))
    text, seconds = f"{minute} {hour} {day} * {weekday}", frozenset([0])
    if with_seconds:
        second, seconds, _ = draw(values(0, 59, [0, 1, 30, 59]))
        text = f"{second} {text}"
    return Expression(text, seconds, minutes, hours, days, weekdays, star_minute or star_hour)


def check(expression: Expression, zone: str, real: Walk, gap: Gap, fold: Fold) -> None:
    cron = Cron(expression.text, zone, gap=gap, fold=fold)
    expected = [instant for instant in oracle(expression, real, gap, fold) if instant > real.start]
    found: list[datetime] = []
    instant = real.start
    while len(found) <= len(expected):
        following = cron.after(instant)
        if following is None or following > real.stop:
            break
        assert following > instant
        found.append(following)
        instant = following
    assert found == expected
    assert cron.words
    # And asked at any moment, not only at its own plan times.
    waiting = iter([*expected, None])
    upcoming = next(waiting)
    for moment, _ in real.shown[:: max(1, len(real.shown) // 97)]:
        while upcoming is not None and upcoming <= moment:
            upcoming = next(waiting)
        answer = cron.after(moment)
        assert answer == upcoming or (upcoming is None and (answer is None or answer > real.stop))


POLICIES = {"gap": st.sampled_from(["shift", "skip"]), "fold": st.sampled_from(["first", "second", "both"])}


@settings(max_examples=150)
@given(change=st.sampled_from(CHANGES), expression=expressions(with_seconds=False), **POLICIES)
def test_minutes_agree_with_the_oracle(change: tuple[str, str], expression: Expression, gap: Gap, fold: Fold) -> None:
    check(expression, change[0], walk(*change, timedelta(minutes=1), timedelta(hours=30)), gap, fold)


@settings(max_examples=40)
@given(
    change=st.sampled_from([change for change in CHANGES if change[0] != "Pacific/Apia"]),  # its gap is a whole day
    expression=expressions(with_seconds=True),
    **POLICIES,
)
def test_seconds_agree_with_the_oracle(change: tuple[str, str], expression: Expression, gap: Gap, fold: Fold) -> None:
    check(expression, change[0], walk(*change, timedelta(seconds=1), timedelta(minutes=100)), gap, fold)


@pytest.mark.parametrize(("zone", "change"), CHANGES)
@pytest.mark.parametrize("fold", ["first", "second", "both"])
@pytest.mark.parametrize("gap", ["shift", "skip"])
def test_each_change_agrees_with_the_oracle_on_every_quarter_of_an_hour(
    zone: str, change: str, gap: Gap, fold: Fold
) -> None:
    quarters, all_hours = frozenset([0, 15, 30, 45]), frozenset(range(24))
    fixed = Expression("0,15,30,45 0-23 * * *", frozenset([0]), quarters, all_hours, None, None, False)
    wild = Expression("*/15 * * * *", frozenset([0]), quarters, all_hours, None, None, True)
    real = walk(zone, change, timedelta(minutes=1), timedelta(hours=30))
    assert real.left_out or max(real.times.values()) == 2, "the clocks do change here"
    for expression in (fixed, wild):
        check(expression, zone, real, gap, fold)
