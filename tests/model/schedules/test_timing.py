"""The plan times of schedules of every kind."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.schedules.excluded_days import check_excluded
from mainspring.model.schedules.expressions.cron import Cron
from mainspring.model.schedules.schedules import Kind, Policies, Schedule
from mainspring.model.schedules.timing import Timing, timing

START = datetime(2026, 11, 15, 12, tzinfo=UTC)
PARIS = ZoneInfo("Europe/Paris")
DAY = timedelta(days=1)


def made(kind: Kind, expression: str, tz: str = "UTC", *, name: str = "report", **policies: Any) -> Timing:
    return timing(Schedule(name, "job", kind, expression, tz, Policies(**policies)))


def fires(timing: Timing, count: int, after: datetime = START) -> list[datetime]:
    return timing.between(after, datetime.max.replace(tzinfo=UTC), count)


class TestEvery:
    @pytest.mark.parametrize("seconds", ["0.1", "0.3", "1", "1.001", "7", "86400", "0.123457"])
    def test_it_never_drifts(self, seconds: str) -> None:
        period = timedelta(microseconds=round(float(seconds) * 1e6))
        every = made("every", seconds)
        for far in (START, START + 3650 * DAY, datetime(2190, 5, 5, 5, 5, 5, 555, tzinfo=UTC)):
            found = every.after(far)
            assert found is not None
            assert (found - datetime(1970, 1, 1, tzinfo=UTC)) % period == timedelta()
            assert timedelta() < found - far <= period

    @given(
        period=st.integers(100_000, 10**12),
        anchor=st.datetimes(datetime(1970, 1, 1), datetime(2199, 1, 1), timezones=st.just(UTC)),
        instant=st.datetimes(datetime(1970, 1, 1), datetime(2199, 1, 1), timezones=st.just(UTC)),
    )
    def test_its_times_are_whole_periods_from_its_anchor_on_both_sides(
        self, period: int, anchor: datetime, instant: datetime
    ) -> None:
        every = made("every", f"{period / 10**6:.6f}", anchor=anchor)
        step = timedelta(microseconds=period)
        found = every.after(instant)
        assert found is not None
        assert (found - anchor) % step == timedelta()
        assert timedelta() < found - instant <= step
        assert every.after(found) == found + step

    def test_the_clocks_do_not_move_it(self) -> None:
        every = made("every", "3600", "Europe/Paris")
        found = fires(every, 48, datetime(2026, 10, 24, 12, tzinfo=UTC))
        assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(hours=1)}

    def test_the_end_of_the_calendar_is_the_end(self) -> None:
        assert made("every", "86400").after(datetime.max.replace(tzinfo=UTC)) is None
        assert made("every", "86400", excluded=("fri",)).after(datetime(9999, 12, 30, 12, tzinfo=UTC)) is None

    @pytest.mark.parametrize("expression", ["0", "0.01", "-5", "soon", ""])
    def test_a_period_that_makes_no_sense_is_refused(self, expression: str) -> None:
        with pytest.raises(ValidationError) as caught:
            made("every", expression)
        assert caught.value.field == "every"


def test_once_is_once() -> None:
    once = made("once", "2026-12-24T17:00:00+00:00")
    at = datetime(2026, 12, 24, 17, tzinfo=UTC)
    assert once.after(START) == at
    assert once.after(at - timedelta(microseconds=1)) == at
    assert once.after(at) is None


def test_a_daemon_has_no_plan_times() -> None:
    assert made("daemon", "2").after(START) is None
    with pytest.raises(ValidationError, match="not a number of replicas"):
        made("daemon", "two")


class TestStartAndEnd:
    @pytest.mark.parametrize(("kind", "expression"), [("cron", "0 * * * *"), ("every", "3600")])
    def test_both_are_part_of_it(self, kind: Kind, expression: str) -> None:
        first, last = START + DAY, START + DAY + timedelta(hours=2)
        bounded = made(kind, expression, start=first, end=last)
        assert fires(bounded, 10) == [first, first + timedelta(hours=1), last]
        assert bounded.after(last) is None

    @pytest.mark.parametrize(("kind", "expression"), [("cron", "0 * * * *"), ("every", "3600")])
    def test_fractions_of_a_second_count(self, kind: Kind, expression: str) -> None:
        tick = timedelta(microseconds=1)
        bounded = made(kind, expression, start=START + DAY + tick, end=START + DAY + timedelta(hours=2) - tick)
        assert fires(bounded, 10) == [START + DAY + timedelta(hours=1)]

    def test_any_offset_does(self) -> None:
        first = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=PARIS)
        assert made("every", "1800", start=first).after(datetime(2026, 1, 1, tzinfo=PARIS)) == first.astimezone(UTC)

    def test_a_single_instant_outside_never_comes(self) -> None:
        assert made("once", "2026-12-24T17:00:00+00:00", start=datetime(2027, 1, 1, tzinfo=UTC)).after(START) is None
        assert made("once", "2026-12-24T17:00:00+00:00", end=START).after(START) is None


class TestExcluded:
    def test_a_date_a_yearly_day_and_a_weekday_are_left_out(self) -> None:
        daily = made("cron", "0 9 * * *", excluded=("2026-12-24", "12-25", "Sat", "sunday"))
        found = fires(daily, 8, datetime(2026, 12, 22, tzinfo=UTC))
        assert [instant.day for instant in found] == [22, 23, 28, 29, 30, 31, 1, 4]
        assert fires(daily, 1, datetime(2035, 12, 24, 10, tzinfo=UTC))[0].day == 26
        assert fires(daily, 1, datetime(2027, 12, 23, 10, tzinfo=UTC))[0].day == 24

    def test_the_day_is_that_of_the_timezone(self) -> None:
        auckland = made("cron", "0 9 * * *", "Pacific/Auckland", excluded=("2026-12-25",))
        found = fires(auckland, 2, datetime(2026, 12, 23, 12, tzinfo=UTC))
        assert [instant.astimezone(auckland.zone).day for instant in found] == [24, 26]
        assert auckland.is_excluded(datetime(2026, 12, 24, 11, tzinfo=UTC))
        assert not auckland.is_excluded(datetime(2026, 12, 25, 11, tzinfo=UTC))
        assert not made("cron", "0 9 * * *").is_excluded(START)

    def test_a_short_period_jumps_over_the_day(self) -> None:
        every = made("every", "0.1", "Europe/Paris", excluded=("2026-10-25",))
        found = every.after(datetime(2026, 10, 25, 10, tzinfo=UTC))
        assert found == datetime(2026, 10, 26, tzinfo=PARIS).astimezone(UTC)

    @pytest.mark.parametrize(
        ("kind", "expression", "excluded"),
        [
            ("every", "0.1", ("mon", "tue", "wed", "thu", "fri", "sat", "sun")),
            ("cron", "* * * * * *", ("mon", "tue", "wed", "thu", "fri", "sat", "sun")),
            ("cron", "0 0 25 12 *", ("12-25",)),
            ("cron", "0 0 29 2 *", ("02-29",)),
            ("once", "2026-12-25T00:00:00+00:00", ("fri",)),
        ],
    )
    def test_what_is_always_excluded_never_comes(self, kind: Kind, expression: str, excluded: tuple[str, ...]) -> None:
        assert made(kind, expression, excluded=excluded).after(START) is None

    @pytest.mark.parametrize(
        ("expression", "excluded", "most"), [("0 0 25 12 *", "12-25", 60), ("0 0 * * MON", "mon", 1100)]
    )
    def test_the_search_for_a_day_that_is_not_excluded_ends(self, expression: str, excluded: str, most: int) -> None:
        class Counting(Cron):
            asked = 0

            def after(self, instant: datetime) -> datetime | None:
                Counting.asked += 1
                return super().after(instant)

        assert Timing(Counting(expression, "UTC"), "UTC", excluded=(excluded,)).after(START) is None
        assert Counting.asked < most

    def test_a_day_that_comes_back_is_still_told_from_the_next(self) -> None:
        """At 00:01 on the 7th the clocks went back to 23:01 on the 6th."""
        noon = datetime(2010, 11, 6, 15, tzinfo=UTC)
        day = date(2010, 11, 7)
        every = made("every", "60", "America/St_Johns", excluded=(str(day),))
        assert walked(every, day, noon) == every.between(noon, noon + 2 * DAY, 5000)
        day -= DAY
        every = made("every", "60", "America/St_Johns", excluded=(str(day),))
        assert walked(every, day, noon) == every.between(noon, noon + 2 * DAY, 5000)

    @pytest.mark.parametrize(
        ("tz", "day"),
        [
            ("Africa/Cairo", "2026-04-24"),
            ("Africa/Cairo", "2026-10-29"),
            ("Pacific/Apia", "2011-12-29"),
            ("Pacific/Apia", "2011-12-30"),
            ("America/Havana", "2025-11-02"),
            ("America/Sao_Paulo", "2018-02-17"),
        ],
    )
    def test_days_on_which_the_clocks_change(self, tz: str, day: str) -> None:
        every = made("every", "60", tz, excluded=(day,))
        start = datetime.fromisoformat(day).replace(tzinfo=UTC) - DAY
        assert walked(every, date.fromisoformat(day), start) == every.between(start, start + 2 * DAY, 5000)

    @pytest.mark.parametrize("entry", ["2026-12-25", "12-25", "02-29", "2028-02-29", "sat", "SUN", "Monday"])
    def test_an_entry_names_a_day(self, entry: str) -> None:
        assert check_excluded(entry) == entry

    @pytest.mark.parametrize(
        "entry",
        [
            *(
                "",
                "2026-02-29",
                "02-30",
                "13-01",
                "2026-13-01",
                "0000-01-01",
                "25.12.2026",
                "12/25",
                "1-1",
                "sa",
                " sat",
            ),
            *("someday", "christmas", "２026-12-25", "2026-12-25T00:00", "x" * 1000, None, 5, date(2026, 12, 25)),
        ],
    )
    def test_any_other_entry_is_refused_with_advice(self, entry: Any) -> None:
        with pytest.raises(ValidationError, match="holidays: .*write ") as caught:
            check_excluded(entry, field="holidays")
        assert caught.value.field == "holidays"
        assert len(caught.value.message) < 200


def walked(every: Timing, excluded: date, start: datetime) -> list[datetime]:
    minutes = (start + timedelta(minutes=n) for n in range(1, 2 * 24 * 60 + 1))
    return [minute for minute in minutes if minute.astimezone(every.zone).date() != excluded]


class TestSharing:
    def test_schedules_that_share_a_timing_share_its_making(self) -> None:
        assert made("cron", "0 9 * * *", name="a") is made("cron", "0 9 * * *", name="b", args={"x": [1]})

    @pytest.mark.parametrize(
        "policies",
        [
            {"gap": "skip"},
            {"fold": "both"},
            {"start": START},
            {"end": START},
            {"excluded": ("sat",)},
            {"anchor": START},
        ],
    )
    def test_whatever_matters_tells_them_apart(self, policies: dict[str, Any]) -> None:
        assert made("cron", "0 9 * * *", **policies) is not made("cron", "0 9 * * *")

    def test_h_is_spread_by_name(self) -> None:
        found = {made("cron", "H H * * *", name=str(number)).after(START) for number in range(20)}
        assert len(found) > 15

    def test_gap_and_fold_reach_cron(self) -> None:
        october = datetime(2026, 10, 24, 12, tzinfo=UTC)
        assert fires(made("cron", "30 2 * * *", "Europe/Paris", fold="second"), 1, october) == [
            datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
        ]
        march = datetime(2026, 3, 28, 12, tzinfo=UTC)
        assert fires(made("cron", "30 2 * * *", "Europe/Paris", gap="skip"), 1, march)[0].day == 30


def test_between_has_its_end_but_not_its_start() -> None:
    hourly = made("cron", "0 * * * *")
    hour = timedelta(hours=1)
    assert hourly.between(START, START + 3 * hour, 10) == [START + hour, START + 2 * hour, START + 3 * hour]
    assert hourly.between(START, START + 3 * hour, 2) == [START + hour, START + 2 * hour]
    assert hourly.between(START, START, 10) == hourly.between(START, START + hour, 0) == []


def test_an_instant_may_have_any_offset() -> None:
    daily = made("cron", "0 9 * * *", "Europe/Paris")
    assert daily.after(START.astimezone(timezone(timedelta(hours=-7)))) == daily.after(START)
    assert daily.after(START.astimezone(PARIS)) == daily.after(START)


@pytest.mark.parametrize(
    ("kind", "expression", "words"),
    [
        ("cron", "0 9 * * *", "At 09:00 every day"),
        ("every", "30", "every 30 seconds"),
        ("every", "1", "every second"),
        ("every", "60", "every minute"),
        ("every", "300", "every 5 minutes"),
        ("every", "3600", "every hour"),
        ("every", "5400", "every 1 h 30 min"),
        ("every", "86400", "every day"),
        ("every", "90061", "every 1 d 1 h 1 min 1 s"),
        ("every", "0.1", "every 0.1 seconds"),
        ("every", "2.25", "every 2.25 seconds"),
        ("once", "2026-12-24T17:00:00+00:00", "once at 2026-12-24 18:00:00+01:00"),
        ("daemon", "1", "1 replica kept running"),
        ("daemon", "2", "2 replicas kept running"),
    ],
)
def test_a_schedule_is_told_in_words(kind: Kind, expression: str, words: str) -> None:
    assert made(kind, expression, "Europe/Paris").words == words
