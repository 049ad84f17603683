"""Patterns: one set within another, for whoever hands out less than it has."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.errors import ValidationError
from mainspring.model.access.patterns import MOST, check_patterns, is_within, overlap
from mainspring.model.words.globs import matches

WITHIN: list[tuple[list[str], list[str]]] = [
    ([], []),
    (["report"], []),
    (["report"], ["report"]),
    (["report-a"], ["report*"]),
    (["report-*"], ["report*"]),
    (["report?"], ["report*"]),
    (["report-a", "bill"], ["bill", "report*"]),
    (["a?"], ["a?"]),
]
NOT_WITHIN: list[tuple[list[str], list[str]]] = [
    ([], ["report*"]),  # all jobs
    (["*"], ["report*"]),
    (["report*"], ["report-*"]),
    (["bill"], ["report*"]),
    (["report-a", "bill"], ["report*"]),
    (["a*"], ["a?"]),
    (["[ab]c]"], ["*c]"]),
    (["*"], ["[*]"]),
]


@pytest.mark.parametrize(("inner", "outer"), WITHIN)
def test_patterns_within_others(inner: list[str], outer: list[str]) -> None:
    assert is_within(inner, outer)


@pytest.mark.parametrize(("inner", "outer"), NOT_WITHIN)
def test_patterns_that_reach_further(inner: list[str], outer: list[str]) -> None:
    assert not is_within(inner, outer)


PATTERN = st.text(alphabet="ab*?[]!", min_size=1, max_size=5)


@given(PATTERN, PATTERN, st.lists(st.text(alphabet="ab[]!", max_size=5), max_size=30))
@example("[ab]c]", "*c]", ["ac]", "a", "b"])
def test_no_name_gets_through_that_the_outer_pattern_refuses(inner: str, outer: str, names: list[str]) -> None:
    if is_within([inner], [outer]):
        assert not [name for name in names if fnmatchcase(name, inner) and not fnmatchcase(name, outer)]


@pytest.mark.parametrize("given", ["report*", ["a\x00b"], [""], ["x"] * (MOST + 1)])
def test_what_is_no_list_of_patterns_is_refused(given: list[str]) -> None:
    with pytest.raises(ValidationError) as raised:
        check_patterns(given, field="jobs")
    assert raised.value.field == "jobs"


@pytest.mark.parametrize(
    ("glob", "pattern", "can"),
    [
        ("payroll*", "report*", False),
        ("*", "report*", True),
        ("report", "report*", True),
        ("*-eu", "report*", True),
        ("rep*", "report-eu", True),
        ("rep?rt", "rep?rt", True),
        ("reporx", "report", False),
        ("a*b", "?", False),
        ("ab*", "[ab]b", True),
        ("a*c", "a", False),
        ("", "*", True),
        ("*x*", "a*y", True),
        ("*x", "a*y", False),
    ],
)
def test_whether_a_name_can_match_both(glob: str, pattern: str, can: bool) -> None:
    assert overlap([glob], [pattern]) == can


@given(st.text("ab*", max_size=5), st.text("ab*?", max_size=5), st.text("ab", max_size=6))
def test_patterns_that_both_match_a_name_overlap(glob: str, pattern: str, name: str) -> None:
    if matches(name, [glob]) and fnmatchcase(name, pattern):
        assert overlap([glob], [pattern])
