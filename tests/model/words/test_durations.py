"""Durations as people write them."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.words.durations import MAX_SECONDS, compact, seconds


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (0, 0.0),
        (90, 90.0),
        (1.5, 1.5),
        ("90", 90.0),
        (" 1.5 ", 1.5),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("1w2d3h4m5s6ms", 604800 + 2 * 86400 + 3 * 3600 + 240 + 5 + 0.006),
        ("30m1h", 5400.0),
        ("10 m", 600.0),
        ("1h 30m", 5400.0),
        ("5 minutes", 300.0),
        ("5 Minutes", 300.0),
        ("1 hour 30 minutes", 5400.0),
        ("1 hour and 30 min", 5400.0),
        ("1 day, 2 hours", 93600.0),
        ("minute", 60.0),
        (" 2  weeks ", 1209600.0),
        (timedelta(minutes=2), 120.0),
        (MAX_SECONDS, MAX_SECONDS),
        ("3650d", MAX_SECONDS),
    ],
)
def test_a_duration_is_read(written: Any, expected: float) -> None:
    assert seconds(written, field="timeout") == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "soon",
        "1h30",
        "5 moons",
        "1 hour,",
        "and 5 minutes",
        "5 minutes and",
        "5M",
        "day",
        "m",
        "1y",
        "-5s",
        "+5s",
        "1e3",
        "٣s",
        "５m",
        "1.s",
        ".5s",
        "1..5s",
        "5S",
        "0x10",
        "1_000",
        "9" * 13,
        "inf",
        "nan",
        -1,
        -0.001,
        float("nan"),
        float("inf"),
        float("-inf"),
        MAX_SECONDS + 1,
        10**400,
        10**5000,
        -(10**5000),
        "3651d",
        timedelta(seconds=-1),
        timedelta.max,
        True,
        None,
        b"5s",
        [5],
        {},
    ],
    ids=lambda written: repr(written)[:20] if not isinstance(written, int) or abs(written) < 10**20 else "huge",
)
def test_what_is_no_duration_is_refused_by_the_name_of_its_field(written: Any) -> None:
    with pytest.raises(ValidationError, match=r"^timeout: ") as refused:
        seconds(written, field="timeout")
    assert refused.value.field == "timeout"
    assert len(refused.value.message) < 500


def test_a_lower_bound_is_kept() -> None:
    assert seconds(0.001, field="timeout", at_least=0.001) == 0.001
    with pytest.raises(ValidationError, match=r"between 0.001 s and 10 years"):
        seconds(0, field="timeout", at_least=0.001)


@example("0\x1f")  # stripped by `strip`, and not by `float`
@given(st.text(max_size=30) | st.from_regex(r"[0-9.]{1,5}(ms|s|m|h|d|w){0,3}", fullmatch=True))
def test_any_text_gives_seconds_or_a_validation_error(text: str) -> None:
    with contextlib.suppress(ValidationError):
        assert 0 <= seconds(text, field="x") <= MAX_SECONDS


@pytest.mark.parametrize(
    ("value", "text"),
    [(86400.0, "1d"), (5400.0, "1h30m"), (60.0, "1m"), (0.25, "250ms"), (1.0015, "1s1.5ms"), (0.0, "0s")],
)
def test_a_duration_is_written_as_people_write_it(value: float, text: str) -> None:
    assert compact(value) == text


@given(st.integers(0, int(MAX_SECONDS) * 1000))
def test_what_is_written_can_be_read_again(milliseconds: int) -> None:
    assert seconds(compact(milliseconds / 1000), field="x") == pytest.approx(milliseconds / 1000, abs=1e-6)
