"""Globs as LIKE reads them."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest

from mainspring.errors import ValidationError
from mainspring.model.words.globs import as_like, covering, like, matches
from mainspring.store.postgres.database import Connection


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
        assert is_like(found[0], name)


def test_names_that_have_nothing_in_common_are_not_covered() -> None:
    [found] = covering(["report*"]) or []
    assert not is_like(found, "payroll")
    assert covering([]) is None


def is_like(pattern: str, name: str) -> bool:
    """As LIKE of PostgreSQL does."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    expression = "".join(".*" if part == "%" else "." if part == "_" else re.escape(part[-1]) for part in parts)
    return re.fullmatch(expression, name, re.DOTALL) is not None


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("report-*", "report-eu", True),
        ("report-*", "my-report-eu", False),
        ("*-eu", "report-eu", True),
        ("r*t**u", "report-eu", True),
        ("*", "any\nthing", True),
        ("report[1]", "report[1]", True),
        ("report[1]", "report1", False),
        ("report?", "report?", True),
        ("report?", "reports", False),
        ("a.b", "axb", False),
        ("", "", True),
    ],
)
def test_only_a_star_is_special_in_memory_as_in_sql(pattern: str, name: str, is_match: bool) -> None:
    assert matches(name, ["other", pattern]) is is_match


async def test_memory_and_sql_agree(conn: Connection) -> None:
    names = ["report-eu", "report[1]", "a_b", "a%b", "axb", "a\\b", "a*b", "report", ""]
    patterns = ["report*", "a_b", "a%b", "a\\b", "*", "a*b", "report[1]", "r?port", "*b", "a*"]
    for pattern in patterns:
        found = await conn.fetch("select n from unnest($1::text[]) n where n like $2", names, as_like(pattern))
        assert {row[0] for row in found} == {name for name in names if matches(name, [pattern])}, pattern
