"""Amounts of memory as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.words.sizes import MAX_BYTES, size, size_in_words


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (1, 1),
        ("1048576", 1 << 20),
        ("512MB", 512 << 20),
        (" 512 mb ", 512 << 20),
        ("512MiB", 512 << 20),
        ("1.5GB", 3 << 29),
        ("4kB", 4096),
        ("2TB", 2 << 40),
        ("100 B", 100),
    ],
)
def test_a_size_is_read(written: Any, expected: int) -> None:
    assert size(written, field="memory") == expected


@pytest.mark.parametrize(
    "written",
    ["", "MB", "-1", "1e9", "12XB", "1 2MB", "٣MB", 1.5, True, None, [1], "1,5GB", 0, MAX_BYTES + 1, "9" * 21],
)
def test_what_is_no_size_is_refused_by_name(written: Any) -> None:
    with pytest.raises(ValidationError, match="^memory: ") as refused:
        size(written, field="memory")
    assert refused.value.field == "memory"


@given(st.integers(1, MAX_BYTES))
def test_words_say_the_same_amount(amount: int) -> None:
    assert size(size_in_words(amount).removesuffix(" bytes"), field="memory") == amount
