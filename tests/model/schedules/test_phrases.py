"""Schedules in plain words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.schedules.expressions.cron import Cron
from mainspring.model.schedules.expressions.phrases import daily, monthly, parse, weekly


@pytest.mark.parametrize(
    ("phrase", "text", "expected"),
    [
        (daily, "09:00", "0 9 * * *"),
        (daily, "9:05", "5 9 * * *"),
        (daily, "00:00", "0 0 * * *"),
        (daily, "09:00:30", "30 0 9 * * *"),
        (daily, "09:00, 17:00", "0 9,17 * * *"),
        (daily, "17:00 and 09:00", "0 9,17 * * *"),
        (daily, "09:00, 09:30, 17:00, 17:30", "0,30 9,17 * * *"),
        (daily, "09:00, 09:00", "0 9 * * *"),
        (daily, " at 09:00 ", "0 9 * * *"),
        (daily, "at 9", "0 9 * * *"),
        (daily, "at 9, 17", "0 9,17 * * *"),
        (daily, "9am", "0 9 * * *"),
        (daily, "9:30 pm", "30 21 * * *"),
        (daily, "12am and 12PM", "0 0,12 * * *"),
        (weekly, "mon 09:00", "0 9 * * MON"),
        (weekly, "mon, thu 09:00", "0 9 * * MON,THU"),
        (weekly, "Monday and Thursday at 09:00, 17:00", "0 9,17 * * MON,THU"),
        (weekly, "mon-fri 09:00", "0 9 * * MON-FRI"),
        (weekly, "weekdays 09:00", "0 9 * * MON-FRI"),
        (weekly, "weekends 09:00", "0 9 * * SAT,SUN"),
        (weekly, "fri-mon 09:00", "0 9 * * FRI,SAT,SUN,MON"),
        (weekly, "sun 23:59:59", "59 59 23 * * SUN"),
        (weekly, "mondays at 9", "0 9 * * MON"),
        (monthly, "1, 15 at 9", "0 9 1,15 * *"),
        (monthly, "1, 15 09:00", "0 9 1,15 * *"),
        (monthly, "1st and 28th at 09:00", "0 9 1,28 * *"),
        (monthly, "last 18:00", "0 18 L * *"),
        (monthly, "1, last 18:00", "0 18 1,L * *"),
        (monthly, "last weekday 18:00", "0 18 LW * *"),
        (monthly, "first monday 09:00", "0 9 * * MON#1"),
        (monthly, "2nd tue 09:00", "0 9 * * TUE#2"),
        (monthly, "first monday and third monday 09:00", "0 9 * * MON#1,MON#3"),
        (monthly, "last friday 09:00", "0 9 * * 5L"),
        (monthly, "the 2nd at 09:00", "0 9 2 * *"),
    ],
)
def test_words_become_cron(phrase: Callable[[str], str], text: str, expected: str) -> None:
    assert phrase(text) == expected
    Cron(expected, "UTC")


@pytest.mark.parametrize(
    ("phrase", "text", "advice"),
    [
        (daily, "", "has no time of day; write"),
        (daily, "9", 'has no time of day; write "09:00"'),
        (daily, "at 24", "24 is not a time between"),
        (daily, "at 900", "900 is not a time of day"),
        (daily, "13pm", "13pm is not a time between 12am and 11:59pm"),
        (daily, "0am", "0am is not a time between 12am and 11:59pm"),
        (daily, "at 9 mon", "something after its time"),
        (daily, "24:00", "24:00 is not a time between"),
        (daily, "09:60", "09:60 is not a time between"),
        (daily, "09:00:60", "is not a time between"),
        (daily, "9:0", "9:0 is not a time of day"),
        (daily, "０9:00", "is not a time of day"),
        (daily, "-1:00", "is not a time of day"),
        (daily, "09:00+02:00", "is not a time of day"),
        (daily, "mon 09:00", "mon is not a time"),
        (daily, "09:00 mon", "something after its time"),
        (daily, "09:00, 17:30", "one schedule cannot say 09:00 and 17:30 alone.*make two schedules"),
        (daily, "09:00, 09:30, 17:00", "make two schedules"),
        (daily, None, "is not understood"),
        (daily, "09:00 " * 1000, "is not understood"),
        (weekly, "09:00", "no day of the week is given; write"),
        (weekly, "mon", "has no time of day"),
        (weekly, "moonday 09:00", "moonday is not a day of the week"),
        (weekly, "mon-xyz 09:00", "mon-xyz is not a day of the week"),
        (weekly, "1 09:00", "1 is not a day of the week"),
        (weekly, "monday to friday 09:00", "to is not a day of the week"),
        (monthly, "09:00", "no day of the month is given; write"),
        (monthly, "29 09:00", r"not every month has a 29th: write last, or cron='0 9 29 \* \*' if"),
        (monthly, "30th 09:00", "not every month has a 30th: write last"),
        (monthly, "1, 31 09:00", "not every month has a 31st: write last"),
        (monthly, "0 09:00", "0 is not a day from 1 to 28"),
        (monthly, "32 09:00", "32 is not a day from 1 to 28"),
        (monthly, "monday 09:00", "monday is not a day of the month"),
        (monthly, "first 09:00", "first is not a day of the month"),
        (monthly, "fifth monday 09:00", "fifth is not a day of the month"),
    ],
)
def test_other_words_are_refused_with_advice(phrase: Callable[[Any], str], text: Any, advice: str) -> None:
    name = getattr(phrase, "__name__", "")
    with pytest.raises(ValidationError, match=f"^{name}: .*{advice}") as caught:
        phrase(text)
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("text", "kind", "expression"),
    [
        ("0 9 * * MON-FRI", "cron", "0 9 * * MON-FRI"),
        ("  0  9 * * *  ", "cron", "0 9 * * *"),
        ("*/20 * * * * *", "cron", "*/20 * * * * *"),
        ("h/15 * * * *", "cron", "h/15 * * * *"),
        ("H(0-29) 3 * * *", "cron", "H(0-29) 3 * * *"),
        ("@daily", "cron", "@daily"),
        ("every 30s", "every", "30"),
        ("Every 1h30m", "every", "5400"),
        ("every 90", "every", "90"),
        ("every 100ms", "every", "0.1"),
        ("every 1.5s", "every", "1.5"),
        ("every 1w", "every", "604800"),
        ("every 30 seconds", "every", "30"),
        ("every 5 Minutes", "every", "300"),
        ("every 2 hours", "every", "7200"),
        ("every 1 hour and 30 min", "every", "5400"),
        ("every 1 h 30 min", "every", "5400"),
        ("every hour", "every", "3600"),
        ("hourly", "cron", "0 * * * *"),
        ("once 2026-12-24T18:00:00+01:00", "once", "2026-12-24T17:00:00+00:00"),
        ("2026-12-24T18:00:00+01:00", "once", "2026-12-24T17:00:00+00:00"),
        ("2026-12-24 18:00:00Z", "once", "2026-12-24T18:00:00+00:00"),
        ("daily at 09:00", "cron", "0 9 * * *"),
        ("daily 09:00", "cron", "0 9 * * *"),
        ("weekly on monday at 9:00", "cron", "0 9 * * MON"),
        ("weekly on mon and thu at 9:00", "cron", "0 9 * * MON,THU"),
        ("monthly on the 1st at 09:00", "cron", "0 9 1 * *"),
        ("monthly on the last day at 18:00", "cron", "0 18 L * *"),
        ("monthly on the first monday at 09:00", "cron", "0 9 * * MON#1"),
        ("every weekday at 9", "cron", "0 9 * * MON-FRI"),
        ("every weekend at 10am", "cron", "0 10 * * SAT,SUN"),
        ("every day at 09:00", "cron", "0 9 * * *"),
        ("Every Monday at 9", "cron", "0 9 * * MON"),
        ("every mon, thu at 09:00", "cron", "0 9 * * MON,THU"),
        ("every mon-fri at 09:00", "cron", "0 9 * * MON-FRI"),
        ("every week on monday at 09:00", "cron", "0 9 * * MON"),
        ("every month on the 1st at 9", "cron", "0 9 1 * *"),
        ("weekdays at 9", "cron", "0 9 * * MON-FRI"),
        ("mon, thu 09:00", "cron", "0 9 * * MON,THU"),
    ],
)
def test_any_schedule_is_read(text: str, kind: str, expression: str) -> None:
    assert parse(text) == (kind, expression)


@pytest.mark.parametrize(
    ("text", "field", "advice"),
    [
        ("", "expression", 'write cron such as "0 9'),
        (None, "expression", "write cron such as"),
        ("x" * 501, "expression", "write cron such as"),
        ("sometimes", "expression", "write cron such as"),
        ("hourly at 5", "expression", "write cron such as"),
        ("30s", "expression", 'write "every 30s"'),
        ("5 minutes", "expression", 'write "every 5 minutes"'),
        ("0 ? * * *", "expression", r"hour: \? stands alone"),
        ("0 9 * *", "expression", "4 fields"),
        ("@reboot", "expression", 'use every="5m"'),
        ("0 0 30 2 *", "expression", "never fires"),
        ("every", "every", "is not a duration"),
        ("every day", "every", 'no time of day; write "every day at 09:00"'),
        ("every week", "every", 'no time of day; write "every week on mon at 09:00"'),
        ("every weekday", "every", 'no time of day; write "every weekday at 09:00"'),
        ("every monday at", "weekly", "has no time of day"),
        ("every second monday at 9", "every", 'is not a duration.*; or days: "every weekday at 9"'),
        ("every 5 moons", "every", "is not a duration"),
        ("every 50ms", "every", "between 0.1 s and"),
        ("once", "once", "is not an instant"),
        ("once tomorrow", "once", "is not an instant"),
        ("once 1969-12-24T18:00:00Z", "once", "outside 1970 to 2200"),
        ("daily", "daily", "has no time of day"),
        ("weekly at 09:00", "weekly", "no day of the week"),
        ("monthly on the 31st at 09:00", "monthly", "write last"),
    ],
)
def test_what_is_no_schedule_is_refused_with_advice(text: Any, field: str, advice: str) -> None:
    with pytest.raises(ValidationError, match=advice) as caught:
        parse(text)
    assert caught.value.field == field


@given(st.text() | st.from_regex(r"\A(every|once|daily|weekly|monthly|@)[ a-z0-9:,.*-]*\Z"))
def test_nothing_but_a_validation_error_comes_of_any_text(text: str) -> None:
    with contextlib.suppress(ValidationError):
        kind, expression = parse(text)
        assert parse(f"every {expression}" if kind == "every" else expression) == (kind, expression)


@st.composite
def like_cron(draw: st.DrawFn) -> str:
    """Five or six fields, of which most make sense."""
    atom = st.sampled_from(
        ["*", "0", "5", "7", "31", "59", "60", "L", "LW", "H", "MON", "FRI", "JAN", "5L", "MON#2", "?", "15W", "31W"]
    )
    joined = st.sampled_from(["-", "/", ",", "#", "W", "("])
    field = atom | st.builds("".join, st.tuples(atom, joined, atom)) | st.text("0159*/-,#LWH()", max_size=5)
    return " ".join(draw(st.lists(field, min_size=5, max_size=6)))


@given(like_cron())
def test_nothing_but_a_validation_error_comes_of_anything_like_cron(text: str) -> None:
    with contextlib.suppress(ValidationError):
        assert Cron(text, "Europe/Paris", seed="x").words
