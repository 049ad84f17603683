"""Names and text."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.words.names import MAX_NAME, check_name, check_path_name, check_text


@pytest.mark.parametrize("name", ["a", "nightly report", "früh/spät", "报告", "a" * MAX_NAME, "🚀", "a.b-c_d:e"])
def test_a_visible_name_is_kept(name: str) -> None:
    assert check_name(name, field="name") == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        " a",
        "a ",
        "a\n",
        "a\nb",
        "a\x00b",
        "a\tb",
        "\x7f",
        "a" * (MAX_NAME + 1),
        "a\u202eb",
        "a\u200bb",
        "a\u2066b",
        "\ufeffa",
        "a\u2028b",
        "a\ud800",
        "a\ue000",
        None,
        5,
        b"a",
    ],
    ids=ascii,
)
def test_what_cannot_be_seen_or_stored_is_no_name(name: Any) -> None:
    with pytest.raises(ValidationError, match=r"^name: ") as refused:
        check_name(name, field="name")
    refused.value.message.encode()  # the answer itself can be sent


@given(st.text(max_size=20))
def test_a_name_that_passes_holds_no_hidden_character(name: str) -> None:
    try:
        check_name(name, field="name")
    except ValidationError:
        return
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") for c in name)


def test_text_may_hold_lines_and_be_empty() -> None:
    assert check_text("", field="description") == ""
    assert check_text("a\n\tb\u202e", field="description") == "a\n\tb\u202e"


@pytest.mark.parametrize("text", ["a\x00", "\udc80", "x" * 10_001, None, 5, b"x"], ids=lambda text: ascii(text)[:10])
def test_text_that_postgresql_cannot_hold_is_refused(text: Any) -> None:
    with pytest.raises(ValidationError, match=r"^description: ") as refused:
        check_text(text, field="description")
    refused.value.message.encode()


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_in_a_path_is_no_directory(name: str) -> None:
    with pytest.raises(ValidationError, match="cannot be a name"):
        check_path_name(name, field="job")
    assert check_name(name, field="scope") == name
    assert check_path_name("...", field="job") == "..."
