"""The oracle of fires, by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.torture.oracle import expected
from tests.torture.timetable import TIMETABLE, Tick

MINUTE = datetime(2026, 11, 16, 5, 0, tzinfo=UTC)


def seconds(tick: Tick, since: float, until: float) -> list[float]:
    found = expected([tick], MINUTE + timedelta(seconds=since), MINUTE + timedelta(seconds=until))
    return sorted(at - MINUTE.timestamp() for _, _, at in found)


@pytest.mark.parametrize(
    ("cron", "wanted"),
    [
        ("*/20 * * * * *", [0, 20, 40]),
        ("5,50 * * * * *", [5, 50]),
        ("10-12 * * * * *", [10, 11, 12]),
        ("30-40/4 * * * * *", [30, 34, 38]),
        ("50/5 * * * * *", [50, 55]),
    ],
)
def test_seconds_of_a_cron_expression(cron: str, wanted: list[int]) -> None:
    assert seconds(Tick("x", cron=cron), -0.5, 59.5) == wanted


def test_every_counts_from_1970() -> None:
    assert seconds(Tick("x", every=20), -0.5, 60.5) == [0, 20, 40, 60]
    assert all((MINUTE.timestamp() + at) % 7 == 0 for at in seconds(Tick("x", every=7), 0, 60))


def test_the_beginning_is_left_out_and_the_end_is_not() -> None:
    assert seconds(Tick("x", every=1), 3.0, 6.0) == [4, 5, 6]
    assert seconds(Tick("x", every=1), 2.5, 5.5) == [3, 4, 5]


def test_each_scope_has_its_own() -> None:
    found = expected([Tick("x", every=60, scopes=("a", "b"))], MINUTE - timedelta(seconds=1), MINUTE)
    assert found == {("x", "a", MINUTE.timestamp()), ("x", "b", MINUTE.timestamp())}


def test_it_says_so_where_it_does_not_understand() -> None:
    with pytest.raises(AssertionError, match="seconds only"):
        seconds(Tick("x", cron="0 0 * * * *"), 0, 1)


def test_it_understands_the_timetable() -> None:
    assert {name for name, _, _ in expected(TIMETABLE, MINUTE, MINUTE + timedelta(minutes=1))} == {
        tick.name for tick in TIMETABLE
    }
