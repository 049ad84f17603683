"""Globs as LIKE reads them."""

from __future__ import annotations

import pytest

from mainspring.errors import ValidationError
from mainspring.model.words.globs import like


def test_only_the_asterisk_means_anything() -> None:
    assert like(["shop.*", "a_b", "100%", "a\\b"], field="name") == ["shop.%", "a\\_b", "100\\%", "a\\\\b"]
    assert like([], field="name") is None


def test_what_cannot_be_a_name_is_refused() -> None:
    with pytest.raises(ValidationError):
        like(["a\x00"], field="name")
