"""Payload: JSON that every language and PostgreSQL can hold, or a clear error."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.tasks.payload import MAX_BYTES, MAX_DEPTH, MAX_ERROR, cut, decode, encode, why_not


def nested(levels: int, kind: type = list) -> Any:
    value: Any = [] if kind is list else {}
    for _ in range(levels - 1):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ({}, "{}"),
        ({"a": [1, 2.5, "é", None]}, '{"a":[1,2.5,"é",null]}'),
        (2**53 - 1, str(2**53 - 1)),
        (1 - 2**53, str(1 - 2**53)),
        ({1: "x"}, '{"1":"x"}'),
        ((1, 2), "[1,2]"),
        (datetime(2026, 11, 15, tzinfo=UTC), '"2026-11-15T00:00:00Z"'),
        ("\\u0000", r'"\\u0000"'),
        ("\x01", r'"\u0001"'),
    ],
)
def test_a_value_is_written(value: Any, text: str) -> None:
    assert encode(value, "args") == text


class _Opaque: ...


def _cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "minus Infinity": {"a": [-math.inf]},
    "2**53": 2**53,
    "-2**53": {"a": -(2**53)},
    "an integer that cannot even be printed": 10**5000,
    "65 lists": nested(MAX_DEPTH + 1),
    "65 objects": nested(MAX_DEPTH + 1, dict),
    "100,000 lists": nested(100_000),
    "a cycle": _cycle(),
    "NUL": "a\x00b",
    "NUL behind a backslash": "\\\x00",
    "NUL in a key": {"\x00": 1},
    "a lone surrogate": "\ud800",
    "a lone surrogate in a key": {"\udfff": 1},
    "an object of no known type": _Opaque(),
    "a class": _Opaque,
    "over 1 MB": "x" * MAX_BYTES,
    "over 1 MB of UTF-8 in fewer characters": "é" * (MAX_BYTES // 2),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_held_is_refused_and_named(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"^result: ") as refused:
        encode(value, "result")
    assert refused.value.field == "result"
    assert len(refused.value.message) < 1000


@pytest.mark.parametrize("kind", [list, dict])
def test_64_levels_pass(kind: type) -> None:
    assert decode(encode(nested(MAX_DEPTH, kind), "args"), "args") == nested(MAX_DEPTH, kind)


def test_exactly_1_mb_passes() -> None:
    assert len(encode("x" * (MAX_BYTES - 2), "args")) == MAX_BYTES


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abé", max_size=3), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(_JSON)
def test_what_is_accepted_comes_back_the_same(value: Any) -> None:
    text = encode(value, "args")
    assert decode(text, "args") == value
    assert json.loads(text) == value


@given(st.text())
def test_text_is_refused_only_for_what_postgresql_cannot_hold(text: str) -> None:
    storable = "\x00" not in text and text.isprintable() | (text == text.encode(errors="replace").decode())
    try:
        assert json.loads(encode(text, "args")) == text
    except ValidationError:
        assert not storable


TYPED = {
    "duplicate keys": '{"a": 1, "a": 2}',
    "duplicate keys far down": '[{"b": {"a": 1, "a": 1}}]',
    "nothing": "",
    "no JSON": "{a: 1}",
    "more than one value": "1 2",
    "NaN": "[NaN]",
    "Infinity": "-Infinity",
    "a number that overflows": "1e999",
    "2**53": str(2**53),
    "5,000 digits": "9" * 5000,
    "65 lists": "[" * 65 + "]" * 65,
    "100,000 lists": "[" * 100_000,
    "NUL": r'"\u0000"',
    "a lone surrogate": r'"\ud800"',
}


@pytest.mark.parametrize("text", TYPED.values(), ids=TYPED)
def test_typed_json_follows_the_same_rules(text: str) -> None:
    with pytest.raises(ValidationError, match=r"^args: "):
        decode(text, "args")


def test_a_duplicate_key_is_named() -> None:
    with pytest.raises(ValidationError, match="'day' appears twice"):
        decode('{"day": 1, "force": 1, "day": 2}', "args")


def test_a_short_error_is_kept_as_it_is() -> None:
    assert cut("x" * MAX_ERROR) == "x" * MAX_ERROR


def test_a_long_error_loses_its_middle_and_says_how_much() -> None:
    shown = cut("a" * MAX_ERROR + "b" * MAX_ERROR)
    assert shown.startswith("a" * 1000)
    assert shown.endswith("b" * 1000)
    assert f"{MAX_ERROR:,} characters left out" in shown
    assert len(shown) < MAX_ERROR + 100


def test_an_error_that_postgresql_cannot_hold_is_made_to_fit() -> None:
    assert cut("a\x00b\ud800c") == "a\ufffdb?c"


FINE = {
    "a number": "1",
    "null": "null",
    "an escaped backslash": '"\\\\u0000"',
    "a large float": "[1.5e300]",
    "64 levels": "[" * 64 + "]" * 64,
    "1 MB": '"' + "x" * (MAX_BYTES - 2) + '"',
    "many brackets": "[{}" + ",{}" * 1000 + "]",
}


@pytest.mark.parametrize("text", FINE.values(), ids=FINE)
def test_json_text_within_the_rules_has_nothing_against_it(text: str) -> None:
    assert why_not(text) is None


BEYOND = {
    "nothing": "",
    "no JSON": "{",
    "NaN": "NaN",
    "escaped NUL": '"\\u0000"',
    "NUL": '"a\0"',
    "surrogate": '"\\ud800"',
    "400 digits": "9" * 400 + ".5",
    "1e400": "1e400",
    "2**53": str(2**53),
    "65 levels": "[" * 65 + "]" * 65,
    "3000 levels": "[" * 3000 + "]" * 3000,
    "unclosed": "[" * 100_000,
    "over 1 MB": '"' + "x" * MAX_BYTES + '"',
    "over 1 MB of UTF-8": '"' + "é" * (MAX_BYTES // 2) + '"',
}


@pytest.mark.parametrize("text", BEYOND.values(), ids=BEYOND)
def test_json_text_beyond_the_rules_is_refused_with_a_short_reason(text: str) -> None:
    assert 0 < len(why_not(text) or "") < 300
