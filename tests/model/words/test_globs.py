"""Globs as LIKE reads them."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest

from mainspring.errors import ValidationError
from mainspring.model.words.globs import covering, like


def test_only_the_asterisk_means_anything() -> None:
    assert like(["shop.*", "a_b", "100%", "a\\b"], field="name") == ["shop.%", "a\\_b", "100\\%", "a\\\\b"]
    assert like([], field="name") is None


def test_what_cannot_be_a_name_is_refused() -> None:
    with pytest.raises(ValidationError):
        like(["a\x00"], field="name")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("report*", ["report", "report-1"]),
        ("re?ort", ["report", "re%ort"]),
        ("[a-c]x", ["ax", "cx"]),
        ("[!a]x", ["bx"]),
        ("[]]x", ["]x"]),
        ("[!]]x", ["ax"]),
        ("a[b", ["a[b"]),
        ("100%_\\", ["100%_\\"]),
    ],
)
def test_what_a_pattern_of_the_shell_matches_is_covered(pattern: str, names: list[str]) -> None:
    found = covering([pattern])
    assert found is not None
    for name in names:
        assert fnmatchcase(name, pattern)
        assert matches(found[0], name)


def test_names_that_have_nothing_in_common_are_not_covered() -> None:
    [found] = covering(["report*"]) or []
    assert not matches(found, "payroll")
    assert covering([]) is None


def matches(pattern: str, name: str) -> bool:
    """As LIKE of PostgreSQL does."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    expression = "".join(".*" if part == "%" else "." if part == "_" else re.escape(part[-1]) for part in parts)
    return re.fullmatch(expression, name, re.DOTALL) is not None
