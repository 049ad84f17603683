"""The plan times of cron expressions, told case by case. The oracle in test_cron_oracle.py tells the rest."""

from __future__ import annotations

import json
import os
import sys
import time
from calendar import monthrange
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.schedules.expressions.cron import Cron
from mainspring.model.schedules.schedules import Fold, Gap

CASES = json.loads((Path(__file__).parents[2] / "cases" / "cron.json").read_text())
MORE_CASES = json.loads((Path(__file__).parents[2] / "cases" / "cron_more.json").read_text())


def fires(cron: Cron, after: datetime, count: int) -> list[datetime]:
    found: list[datetime] = []
    for _ in range(count):
        following = cron.after(found[-1] if found else after)
        assert following is not None
        assert following.tzinfo is UTC
        found.append(following)
    return found


@pytest.mark.parametrize("case", CASES + MORE_CASES, ids=lambda case: f"{case['expr']} {case['tz']} {case['after']}")
def test_a_case_holds(case: dict[str, Any]) -> None:
    cron = Cron(case["expr"], case["tz"], gap=case.get("gap", "shift"), fold=case.get("fold", "first"))
    expected = [datetime.fromisoformat(instant) for instant in case["expect"]]
    assert fires(cron, datetime.fromisoformat(case["after"]), len(expected)) == expected


GAP = {"shift": ["03:00:00-04:00"], "skip": []}
FOLD = {
    "first": ["01:30:00-04:00"],
    "second": ["01:30:00-05:00"],
    "both": ["01:30:00-04:00", "01:30:00-05:00"],
}


@pytest.mark.parametrize("gap", ["shift", "skip"])
@pytest.mark.parametrize("fold", ["first", "second", "both"])
def test_a_fixed_time_obeys_gap_and_fold(gap: Gap, fold: Fold) -> None:
    for prefix in ("", "0 "):  # with seconds just the same
        at_half_past_two = Cron(f"{prefix}30 2 * * *", "America/New_York", gap=gap, fold=fold)
        expected = [f"2026-03-08T{clock}" for clock in GAP[gap]] + ["2026-03-09T02:30:00-04:00"]
        start = datetime(2026, 3, 7, 12, tzinfo=UTC)
        assert fires(at_half_past_two, start, len(expected)) == [datetime.fromisoformat(text) for text in expected]

        at_half_past_one = Cron(f"{prefix}30 1 * * *", "America/New_York", gap=gap, fold=fold)
        expected = [f"2026-11-01T{clock}" for clock in FOLD[fold]] + ["2026-11-02T01:30:00-05:00"]
        start = datetime(2026, 10, 31, 12, tzinfo=UTC)
        assert fires(at_half_past_one, start, len(expected)) == [datetime.fromisoformat(text) for text in expected]


@pytest.mark.parametrize("gap", ["shift", "skip"])
@pytest.mark.parametrize("fold", ["first", "second", "both"])
def test_a_wildcard_follows_real_time_whatever_the_policies(gap: Gap, fold: Fold) -> None:
    cron = Cron("*/15 2 * * *", "Australia/Lord_Howe", gap=gap, fold=fold)
    assert fires(cron, datetime(2026, 4, 4, 14, 50, tzinfo=UTC), 5) == [
        datetime.fromisoformat(f"2026-04-05T02:{minute}:00+10:30") for minute in ("00", "15", "30", "45")
    ] + [datetime.fromisoformat("2026-04-06T02:00:00+10:30")]
    cron = Cron("*/15 1 * * *", "Australia/Lord_Howe", gap=gap, fold=fold)
    assert fires(cron, datetime(2026, 4, 4, 13, 50, tzinfo=UTC), 6) == [
        datetime.fromisoformat(f"2026-04-05T01:{clock}")
        for clock in ("00:00+11:00", "15:00+11:00", "30:00+11:00", "45:00+11:00", "30:00+10:30", "45:00+10:30")
    ]


class TestSpread:
    def test_h_is_the_same_for_a_name_and_differs_between_names(self) -> None:
        start = datetime(2026, 1, 1, tzinfo=UTC)
        by_name = {name: Cron("H H * * *", "UTC", seed=name).after(start) for name in map(str, range(50))}
        assert {name: Cron("H H * * *", "UTC", seed=name).after(start) for name in by_name} == by_name
        assert len(set(by_name.values())) > 40

    def test_h_never_changes_between_versions(self) -> None:
        """A schedule that moved on an upgrade would surprise its owner."""
        found = Cron("H H H * *", "UTC", seed="report").after(datetime(2026, 1, 1, tzinfo=UTC))
        assert found == datetime(2026, 1, 23, 16, 43, tzinfo=UTC)

    @given(seed=st.text(max_size=10))
    def test_h_stays_in_its_range(self, seed: str) -> None:
        start = datetime(2026, 1, 1, tzinfo=UTC)
        for expression, minutes, count in (
            ("H * * * *", range(60), 1),
            ("H(0-29) * * * *", range(30), 1),
            ("H/15 * * * *", range(60), 4),
            ("H(0-29)/10 * * * *", range(30), 3),
            ("H(30-59)/10 * * * *", range(30, 60), 3),
        ):
            found = fires(Cron(expression, "UTC", seed=seed), start - timedelta(seconds=1), count + 1)
            assert {instant.minute for instant in found} <= set(minutes)
            assert found[count] == found[0] + timedelta(hours=1)
            if count > 1:
                assert len({later - earlier for earlier, later in pairwise(found[:count])}) == 1

    @given(seed=st.text(max_size=10))
    def test_a_spread_over_days_fires_in_every_month_and_week(self, seed: str) -> None:
        start = datetime(2026, 1, 31, 23, tzinfo=UTC)
        monthly = fires(Cron("0 0 H * *", "UTC", seed=seed), start, 24)
        assert [instant.month for instant in monthly] == [*range(2, 13), *range(1, 13), 1]
        weekly = fires(Cron("0 0 * * H", "UTC", seed=seed), start, 10)
        assert {later - earlier for earlier, later in pairwise(weekly)} == {timedelta(days=7)}


def test_a_time_that_the_clocks_always_leave_out_is_refused_unless_it_may_shift() -> None:
    with pytest.raises(ValidationError, match='never fires in America/New_York.*gap="shift"'):
        Cron("30 2 * 3 SUN#2", "America/New_York", gap="skip")
    with pytest.raises(ValidationError, match="never fires in America/New_York"):
        Cron("*/30 2 * 3 SUN#2", "America/New_York")
    Cron("30 2 * 3 SUN#2", "America/New_York")


def test_the_search_for_a_time_that_never_comes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    find = Cron._next_local

    def counted(self: Cron, local: datetime) -> datetime | None:
        steps.append(local)
        return find(self, local)

    monkeypatch.setattr(Cron, "_next_local", counted)
    with pytest.raises(ValidationError):
        Cron("30 2 * 3 SUN#2", "America/New_York", gap="skip")
    assert len(steps) < 60


def test_only_a_shifted_time_stands_for_one_that_was_left_out() -> None:
    after_the_gap = datetime(2026, 3, 29, 1, tzinfo=UTC)
    moved = Cron("30 2 * * *", "Europe/Paris")
    assert moved.skipped_time(after_the_gap) == datetime(2026, 3, 29, 2, 30)
    assert moved.skipped_time(after_the_gap + timedelta(days=1)) is None
    assert Cron("30 2 * * *", "Europe/Paris", gap="skip").skipped_time(after_the_gap) is None
    assert Cron("30 9 * * *", "Europe/Paris").skipped_time(after_the_gap) is None
    assert Cron("30 2,3 * * *", "Europe/Paris").skipped_time(after_the_gap) == datetime(2026, 3, 29, 2, 30)
    assert Cron("0 2,3 * * *", "Europe/Paris").skipped_time(after_the_gap) is None


def test_an_answer_is_remembered_by_its_instant_and_not_by_its_local_time() -> None:
    zone = ZoneInfo("America/New_York")
    cron = Cron("*/30 * * * *", "America/New_York")
    first, second = (datetime(2026, 11, 1, 1, 10, fold=fold, tzinfo=zone) for fold in (0, 1))
    for _ in range(2):
        assert cron.after(first) == datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
        assert cron.after(second) == datetime(2026, 11, 1, 6, 30, tzinfo=UTC)


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="Europe/Paris") as caught:
        Cron("0 9 * * *", "Europe/Pairs")
    assert caught.value.field == "tz"


def test_the_end_of_the_calendar_is_the_end() -> None:
    cron = Cron("0 9 * * *", "Asia/Tokyo")
    assert cron.after(datetime(9999, 12, 31, 12, tzinfo=UTC)) is None
    assert Cron("0 9 * * *", "America/New_York").after(datetime.max.replace(tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 9 * * MON-FRI", "At 09:00 on Monday through Friday"),
        ("@daily", "At 00:00 every day"),
        ("0 0 21 * *", "At 00:00 on the 21st day of every month"),
        ("0 0 12 * *", "At 00:00 on the 12th day of every month"),
        ("0 0 22 * *", "At 00:00 on the 22nd day of every month"),
        ("0 9 * * FRIL", "At 09:00 on the last Friday of the month"),
        ("H(7-7) 9 * * *", "At 09:07 every day (H resolved from the name)"),
        ("0 9 * * THU", "At 09:00 on Thursday"),
        ("0 9 13 * FRI", "At 09:00 on the 13th day of month or on Friday"),
        ("0 9 1,15 * 5L", "At 09:00 on the first and the 15th day of month or on the last Friday of the month"),
        ("0 9 15W * *", "At 09:00 on the weekday nearest the 15th day of the month"),
        (
            "0 9 1W,LW 3 ?",
            "At 09:00 on the weekday nearest the 1st day of the month and the last weekday of the month in March",
        ),
        ("0 9 3W * MON", "At 09:00 on the weekday nearest the 3rd day of the month or on Monday"),
        ("0 9 ? * MON", "At 09:00 on Monday"),
        ("0 9 */2 * FRI", "At 09:00 on every second day of month if it's on Friday"),
    ],
)
def test_an_expression_is_told_in_words(expression: str, words: str) -> None:
    assert Cron(expression, "UTC").words == words


@pytest.fixture
def host_timezone() -> Iterator[None]:
    before = os.environ.get("TZ")
    yield
    if before is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("host_timezone")
def test_the_timezone_of_the_host_changes_nothing() -> None:
    found = []
    for host in ("UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"):
        os.environ["TZ"] = host
        time.tzset()
        cron = Cron("30 1,2 * * *", "Europe/Paris", fold="both")
        found.append(fires(cron, datetime(2026, 3, 1, tzinfo=UTC), 600))
    assert all(each == found[0] for each in found)


@given(
    instant=st.datetimes(datetime(2026, 10, 24), datetime(2026, 10, 26), timezones=st.just(UTC)),
    microsecond=st.integers(0, 999_999),
    fold=st.sampled_from(["first", "second", "both"]),
)
def test_fractions_of_a_second_change_nothing(instant: datetime, microsecond: int, fold: Fold) -> None:
    cron = Cron("*/7 30 1,2,3 * * *", "Europe/Paris", fold=fold)
    assert cron.after(instant) == cron.after(instant.replace(microsecond=microsecond))


def test_threads_may_share_a_cron() -> None:
    cron = Cron("0 9 * * MON", "Europe/Paris")
    moments = [datetime(year, 1, 1, tzinfo=UTC) for year in range(2000, 2100)] * 5
    expected = [cron.after(moment) for moment in moments]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(cron.after, moments)) == expected
    finally:
        sys.setswitchinterval(interval)


# ── 15W and ? ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("day", range(1, 32))
def test_the_nearest_weekday_is_the_nearest_of_its_month_in_every_month_of_28_years(day: int) -> None:
    """28 years: each date falls on each day of the week, in leap years too."""
    expected = []
    for year, month in product(range(2024, 2052), range(1, 13)):
        last = monthrange(year, month)[1]
        if day <= last:
            weekdays = [date(year, month, one) for one in range(1, last + 1) if date(year, month, one).weekday() < 5]
            expected.append(min(weekdays, key=lambda one: abs(one.day - day)))
    found = fires(Cron(f"0 9 {day}W * *", "UTC"), datetime(2023, 12, 31, 23, tzinfo=UTC), len(expected))
    assert [one.date() for one in found] == expected
    assert {(one.hour, one.minute) for one in found} == {(9, 0)}


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 9 15W 2,8 *", "2026-02-16 2026-08-14"),  # a Sunday, a Saturday
        ("0 9 1W 8 *", "2026-08-03"),  # a Saturday: not July
        ("0 9 31W 5 *", "2026-05-29"),  # a Sunday: not June
        ("0 9 30W 2,4 *", "2026-04-30"),  # February has none
        ("0 9 1W,LW 8 *", "2026-08-03 2026-08-31"),
        ("0 9 14,15W 8 *", "2026-08-14"),  # once
        ("0 9 15W 6 SUN#1", "2026-06-07 2026-06-15"),  # either, as in any cron
        ("0 9 15W 8 */5", "2026-08-14"),  # a weekday that begins with * must match too, and this is a Friday
        ("0 9 ? 6 MON#2", "2026-06-08"),
        ("0 0 9 8 6 ?", "2026-06-08"),
        ("0 9 15w jun ?", "2026-06-15"),
    ],
)
def test_a_nearest_weekday_is_one_term_among_others(expression: str, days: str) -> None:
    cron, found = Cron(expression, "Europe/Paris"), []
    at = cron.after(datetime(2026, 1, 1, tzinfo=UTC))
    while at is not None and at.year == 2026:
        found.append(at.date().isoformat())
        at = cron.after(at)
    assert " ".join(found) == days


def test_a_nearest_weekday_that_the_clocks_skip_is_shifted_like_any_fixed_time() -> None:
    cron = Cron("30 2 29W 3 *", "Europe/Paris")  # 2027: Monday the 29th; the clocks change on Sunday the 28th
    assert cron.after(datetime(2027, 1, 1, tzinfo=UTC)) == datetime(2027, 3, 29, 0, 30, tzinfo=UTC)
    apia = Cron("0 9 30W 12 *", "Pacific/Apia")  # Friday, 30 December 2011 did not exist
    assert apia.after(datetime(2011, 12, 1, tzinfo=UTC)) == datetime(2011, 12, 30, 10, tzinfo=UTC)
