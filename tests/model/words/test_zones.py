"""Timezones by name, and the moments at which their clocks change."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring.errors import ValidationError
from mainspring.model.words.zones import change_around, change_at, check_zone, start_of_day


@pytest.mark.parametrize("name", ["UTC", "Europe/Paris", "America/Argentina/Buenos_Aires", "US/Central", "Etc/GMT+5"])
def test_a_zone_is_known_by_its_iana_name(name: str) -> None:
    assert check_zone(name) == ZoneInfo(name)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Europe/Pairs", "Europe/Paris"),
        ("europe/paris", "Europe/Paris"),
        ("Paris", "Europe/Paris"),
        ("new york", "America/New_York"),
        ("Europe/Paris ", "Europe/Paris"),
        ("localtime", "differs by host"),
        ("", "write a name"),
        ("+02:00", "write a name"),
        ("../../etc/passwd", "write a name"),
        ("/etc/localtime", "write a name"),
        ("Europe", "write a name"),
        ("Europe/Paris\x00", "Europe/Paris"),
        ("x" * 10_000, "write a name"),
        (None, "write a name"),
        (3, "write a name"),
        (["UTC"], "write a name"),
    ],
)
def test_any_other_name_is_refused_with_advice(name: Any, advice: str) -> None:
    with pytest.raises(ValidationError, match=advice) as caught:
        check_zone(name, field="timezone")
    assert caught.value.field == "timezone"
    assert len(caught.value.message) < 300


def test_a_gap_and_a_fold_are_found_to_the_second() -> None:
    paris = ZoneInfo("Europe/Paris")
    gap = change_around(paris, datetime(2026, 3, 29, 2, 30))
    assert gap is not None
    assert gap.is_gap
    assert (gap.at, gap.start, gap.end) == (
        datetime(2026, 3, 29, 1, tzinfo=UTC),
        datetime(2026, 3, 29, 2),
        datetime(2026, 3, 29, 3),
    )
    fold = change_around(paris, datetime(2026, 10, 25, 2, 59, 59))
    assert fold is not None
    assert not fold.is_gap
    assert (fold.at, fold.start, fold.end) == (
        datetime(2026, 10, 25, 1, tzinfo=UTC),
        datetime(2026, 10, 25, 2),
        datetime(2026, 10, 25, 3),
    )
    for ordinary in (gap.start - timedelta(seconds=1), gap.end, fold.start - timedelta(seconds=1), fold.end):
        assert change_around(paris, ordinary) is None
    for strange in (gap.start, fold.start):
        assert change_around(paris, strange) in (gap, fold)
    assert change_at(paris, gap.at) == gap
    assert change_at(paris, gap.at - timedelta(seconds=1)) is None


def test_a_day_begins_where_the_clocks_let_it() -> None:
    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    assert start_of_day(ZoneInfo("Africa/Cairo"), date(2026, 4, 24), after=long_ago) == datetime(
        2026, 4, 23, 22, tzinfo=UTC
    )
    assert start_of_day(ZoneInfo("Pacific/Apia"), date(2011, 12, 30), after=long_ago) == datetime(
        2011, 12, 30, 10, tzinfo=UTC
    )
    # From 23:30 to 00:30: the day begins with its second half hour.
    assert start_of_day(
        ZoneInfo("America/Toronto"), date(1919, 3, 31), after=datetime(1919, 1, 1, tzinfo=UTC)
    ) == datetime(1919, 3, 31, 4, 30, tzinfo=UTC)
    # At 00:01 the clocks went back to 23:01: the 7th began, ended, and began again.
    johns, first = ZoneInfo("America/St_Johns"), datetime(2010, 11, 7, 2, 30, tzinfo=UTC)
    assert start_of_day(johns, date(2010, 11, 7), after=long_ago) == first
    assert start_of_day(johns, date(2010, 11, 7), after=first) == first + timedelta(hours=1)
