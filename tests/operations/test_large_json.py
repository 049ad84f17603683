"""Large JSON in steps: the same values and the same refusals as small JSON, however it is cut."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.tasks.payload import MAX_DEPTH, decode, decode_part, encode
from mainspring.operations.requests import large_json
from mainspring.operations.requests.large_json import at_once, check_unreadable, decode_in_steps, is_plain_in_steps

TEXT = st.text(max_size=12) | st.sampled_from(["NaN", "a,b", "]{[", 'q"\\', "\\u0041", "é\u2028\\", "x" * 60])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 2**53, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXT, inner, max_size=8),
    max_leaves=40,
)
BROKEN = [
    '"',
    "[",
    "]",
    "{",
    "}",
    ",",
    "\\",
    ":",
    "1",
    "NaN",
    "\\u0000",
    "\\ud800",
    "1e999",
    "9" * 20,
    '"a":1,',
    "[" * 70,
]


def outcome(text: str, checked_at_once: int = large_json.AT_ONCE) -> tuple[str, Any]:
    try:
        return "read", at_once(decode_in_steps(text, "body", checked_at_once))
    except ValidationError:
        return "refused", None
    except msgspec.DecodeError:
        return "not JSON", None


def outcome_of_small(text: str) -> tuple[str, Any]:
    """As small bodies are read."""
    try:
        msgspec.json.decode(text)
        return "read", decode(text, "body")
    except ValidationError:
        return "refused", None
    except msgspec.DecodeError:
        try:
            at_once(check_unreadable(text, "body"))
        except ValidationError:
            return "refused", None
        return "not JSON", None


def cut_short(part: int, window: int) -> pytest.MonkeyPatch:
    patch = pytest.MonkeyPatch()
    patch.setattr(large_json, "PART", part)
    patch.setattr(large_json, "WINDOW", window)
    return patch


@given(VALUES, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 60), st.integers(2, 70))
def test_what_is_cut_anywhere_is_read_as_it_was_written(
    value: Any, indent: int | None, is_ascii: bool, part: int, window: int
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    patch = cut_short(part, window)
    try:
        assert outcome(text) == outcome_of_small(text)
    finally:
        patch.undo()


@given(VALUES, st.lists(st.tuples(st.integers(0, 500), st.sampled_from(BROKEN)), max_size=3), st.integers(1, 60))
def test_what_is_broken_is_refused_as_small_json_is(value: Any, changes: list[tuple[int, str]], part: int) -> None:
    text = json.dumps(value)
    for place, broken in changes:
        at = place % (len(text) + 1)
        text = text[:at] + broken + text[at + place % 2 :]
    patch = cut_short(part, 2 * part)
    try:
        assert outcome(text) == outcome_of_small(text), text
    finally:
        patch.undo()


@pytest.mark.parametrize("levels", [65, 1_000, 100_000])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "cut off"])
@pytest.mark.parametrize("start", ["[", '{"a":'], ids=["lists", "objects"])
def test_great_depth_is_told_with_the_limit(levels: int, closed: bool, start: str) -> None:
    text = start * levels + ("null" + ("]" if start == "[" else "}") * levels if closed else "")
    with pytest.raises(ValidationError, match=f"deeper than {MAX_DEPTH} levels"):
        at_once(decode_in_steps(text, "body"))


def test_64_levels_pass() -> None:
    text = "[" * MAX_DEPTH + ",".join(["1"] * 20_000) + "]" * MAX_DEPTH
    assert outcome(text)[0] == "read"


def test_brackets_in_strings_are_no_levels() -> None:
    assert outcome(json.dumps(["[" * 100_000, '\\"' * 50_000 + "[" * 100])) == (
        "read",
        ["[" * 100_000, '\\"' * 50_000 + "[" * 100],
    )


def test_a_key_that_appears_twice_in_parts_far_from_each_other_is_named() -> None:
    members = ",".join(f'"key {number}": {number}' for number in range(5_000))
    with pytest.raises(ValidationError, match="the key 'key 7' appears twice"):
        at_once(decode_in_steps(f'{{"args": {{{members}, "key 7": 1}}}}', "body"))


@pytest.mark.parametrize(
    "value",
    [
        {"rows": [{"id": number, "values": [1, 2, 3]} for number in range(4_000)]},
        [1] * 100_000,
        [[]] * 50_000,
        ["ab"] * 50_000,
        "\\" * 200_000,
        {str(number): number for number in range(20_000)},
    ],
    ids=["rows", "numbers", "lists", "strings", "escapes", "members"],
)
def test_no_step_reads_much(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each C call is given a part, or one value that is longer."""
    longest = 0

    def watched(text: str, *given: Any) -> Any:
        nonlocal longest
        longest = max(longest, len(text))
        return decode_part(text, *given)

    monkeypatch.setattr(large_json, "decode_part", watched)
    count = 0

    def counted() -> large_json.Steps[Any]:
        nonlocal count
        steps = decode_in_steps(json.dumps(value), "body")
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                return ended.value
            count += 1
            yield

    assert at_once(counted()) == value
    assert count > len(json.dumps(value)) / large_json.WINDOW
    assert longest <= 3 * large_json.PART or isinstance(value, str)


@given(VALUES)
def test_plain_values_are_those_that_can_be_written_as_they_are(value: Any) -> None:
    is_container = isinstance(value, (list, dict))
    assert at_once(is_plain_in_steps(value)) == is_container


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [[float("nan")], [-float("inf")], {1: 2}, [(1, 2)], [2**53], [b"x"], [{1, 2}], deep(MAX_DEPTH + 1)],
    ids=repr,
)
def test_other_values_are_not_plain(value: Any) -> None:
    assert not at_once(is_plain_in_steps(value))


def test_64_levels_are_plain() -> None:
    assert at_once(is_plain_in_steps(deep(MAX_DEPTH)))
    encode(deep(MAX_DEPTH), "args")


# ── texts whose syntax is not checked at once ───────────────────────────────────────────────────

CONTAINERS = st.lists(VALUES, max_size=8) | st.dictionaries(TEXT, VALUES, max_size=8)


@given(CONTAINERS, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 60), st.integers(2, 70))
def test_a_very_long_text_is_read_as_it_was_written(
    value: Any, indent: int | None, is_ascii: bool, part: int, window: int
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    patch = cut_short(part, window)
    try:
        assert outcome(text, 0) == outcome_of_small(text)
    finally:
        patch.undo()


@given(CONTAINERS, st.data(), st.sampled_from(BROKEN), st.integers(0, 3), st.integers(1, 60), st.integers(2, 70))
def test_a_very_long_text_that_is_broken_is_read_only_if_any_other_would_be(
    value: Any, data: st.DataObject, broken: str, removed: int, part: int, window: int
) -> None:
    text = json.dumps(value)
    place = data.draw(st.integers(0, len(text)))
    text = text[:place] + broken + text[place + removed :]
    patch = cut_short(part, window)
    try:
        found, read = outcome(text, 0)
    finally:
        patch.undo()
    wanted, value = outcome_of_small(text)
    if isinstance(value, (list, dict)) or wanted != "read":
        assert (found == "read", read) == (wanted == "read", value)


@pytest.mark.parametrize(
    "text", ["[1,,2]", "[1,2,]", "[,1]", "[1}", "{]", "[1]]", "[1] x", "x [1]", '{"a":1,}', "[[1,2", '["a', "[1 2]"]
)
def test_a_comma_or_a_bracket_too_much_is_found_wherever_the_text_is_cut(text: str) -> None:
    for part in range(1, len(text) + 1):
        patch = cut_short(part, 3)
        try:
            assert outcome(text, 0) == ("not JSON", None)
        finally:
            patch.undo()
