"""What people type."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring.cli.parse import arguments, new_task, pairs, since, task_id
from mainspring.errors import ValidationError


@pytest.mark.parametrize("text", ["0", "-1", "1.0", "1_000", "٣", "²", "", " 1", "x", str(2**53), "9" * 5000, "\udcff"])
def test_a_task_id_is_a_positive_number_that_every_language_can_hold(text: str) -> None:
    with pytest.raises(ValidationError, match="not the number of a task"):
        task_id(text)


@pytest.mark.parametrize("text", ["1", "9007199254740991"])
def test_the_smallest_and_the_largest_task_id_are_taken(text: str) -> None:
    assert task_id(text) == int(text)


def test_pairs_keep_further_equal_signs_and_empty_values() -> None:
    assert pairs(["a=b=c", "d="], field="env") == {"a": "b=c", "d": ""}


@pytest.mark.parametrize("text", ["a", "=b", ""])
def test_pairs_refuse_what_has_no_name_or_no_sign(text: str) -> None:
    with pytest.raises(ValidationError, match="NAME=VALUE"):
        pairs([text], field="env")


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("x=3", 3),
        ("x=true", True),
        ("x=null", None),
        ('x={"a": [1]}', {"a": [1]}),
        ('x="3"', "3"),
        ("x=2026-11-15", "2026-11-15"),
        ("x=NaN", "NaN"),
        ("x=-Infinity", "-Infinity"),
        ("x=", ""),
        ("x=é", "é"),
        ("x=" + "[" * 100_000, "[" * 100_000),
        ("x=" + "9" * 5000, "9" * 5000),
    ],
)
def test_an_argument_is_json_where_it_can_be_and_text_otherwise(given: str, value: Any) -> None:
    assert json.loads(arguments(None, [given])) == {"x": value}


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("{", ()),
        ("[1]", ()),
        ("3", ()),
        ("null", ()),
        ('{"a": NaN}', ()),
        ('{"a": 1, "a": 2}', ()),
        ('{"a": 9007199254740993}', ()),
        ('{"a": "\\u0000"}', ()),
        ('{"a": "\udcff"}', ()),
        ('{"a": ' + "[" * 65 + "]" * 65 + "}", ()),
        ('{"a": "' + "x" * 2**20 + '"}', ()),
        ("{}", ("a=1",)),
        (None, ("a",)),
        (None, ('a={"b": 1, "b": 2}',)),
        (None, ("a=9007199254740993",)),
        (None, ("a=\udcff",)),
        (None, ("a=x\x00y",)),
    ],
)
def test_arguments_that_json_and_postgresql_cannot_hold_are_refused(text: str | None, given: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        arguments(text, given)
    assert caught.value.field == "args"


_NOTHING: dict[str, Any] = {
    "delay": None,
    "run_at": None,
    "priority": None,
    "key": None,
    "concurrency_key": None,
    "after": (),
    "tz": None,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delay", "soon"),
        ("delay", "-1"),
        ("delay", "99999d"),
        ("run_at", "2026-11-15T09:00:00"),
        ("run_at", "2026-11-15"),
        ("run_at", "tomorrow"),
        ("run_at", "1969-12-31T23:59:59Z"),
        ("run_at", "2200-01-01T00:00:00Z"),
        ("run_at", "\udcff"),
        ("priority", "urgent"),
        ("priority", "10"),
        ("key", ""),
        ("key", "\udcff"),
        ("key", "k" * 201),
    ],
)
def test_a_submission_names_the_option_that_is_wrong(field: str, value: str) -> None:
    with pytest.raises(ValidationError) as caught:
        new_task("job", args="{}", **{**_NOTHING, field: value})
    assert caught.value.field == field


def test_a_submission_takes_an_instant_or_a_delay_but_not_both() -> None:
    with pytest.raises(ValidationError, match="not both"):
        new_task("job", args="{}", **{**_NOTHING, "delay": "1s", "run_at": "2026-11-15T09:00:00Z"})


def test_an_instant_without_an_offset_needs_a_timezone() -> None:
    local = {**_NOTHING, "run_at": "2026-11-15 09:00"}
    run_at = new_task("job", args="{}", **{**local, "tz": "Europe/Paris"}).run_at
    assert run_at is not None
    assert run_at.isoformat() == "2026-11-15T09:00:00+01:00"
    with pytest.raises(ValidationError, match="has no offset; write .* or give --tz"):
        new_task("job", args="{}", **local)


def test_a_time_is_an_instant_or_so_long_ago() -> None:
    assert since("2026-11-15T09:00:00+01:00", field="since") == datetime(2026, 11, 15, 8, tzinfo=UTC)
    before = datetime.now(UTC)
    hour_ago = since("1h", field="since")
    assert hour_ago is not None
    assert before <= hour_ago + timedelta(hours=1) <= datetime.now(UTC)
    assert since(None, field="since") is None
    for wrong in ("yesterday", "2026-11-15T09:00:00", "-1h"):
        with pytest.raises(ValidationError) as refused:
            since(wrong, field="since")
        assert refused.value.field == "since"
