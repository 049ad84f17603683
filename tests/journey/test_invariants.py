"""The checks of the ledger find what they look for."""

from __future__ import annotations

import pytest

from tests.journey.invariants import check_at_most_once, check_no_overlap
from tests.ledger import Line


def run(task: int, token: int, pid: int, first: int, last: int) -> list[Line]:
    return [Line(task, 1, token, pid, "start", first), Line(task, 1, token, pid, "effect", last)]


def test_attempts_one_after_another_do_not_overlap() -> None:
    check_no_overlap([*run(1, 7, 100, 0, 10), *run(1, 8, 101, 10, 20), *run(2, 9, 100, 5, 15)])


def test_an_attempt_that_begins_while_another_is_at_work_is_found() -> None:
    with pytest.raises(AssertionError, match="began while"):
        check_no_overlap([*run(1, 7, 100, 0, 10), *run(1, 8, 101, 9, 20)])


def test_a_command_in_two_processes_at_once_is_found() -> None:
    with pytest.raises(AssertionError, match="began while"):
        check_no_overlap([*run(1, 0, 100, 0, 10), *run(1, 0, 101, 5, 20)])


def test_a_token_in_two_processes_is_found() -> None:
    with pytest.raises(AssertionError):
        check_no_overlap([*run(1, 7, 100, 0, 10), *run(1, 7, 101, 11, 20)])


def test_a_frozen_process_is_not_at_work_until_it_thaws() -> None:
    lines = [*run(1, 7, 100, 0, 30), *run(1, 8, 101, 10, 20)]
    with pytest.raises(AssertionError, match="began while"):
        check_no_overlap(lines)
    check_no_overlap(lines, [(100, 25)])
    with pytest.raises(AssertionError, match="began while"):
        check_no_overlap([*lines, Line(1, 1, 7, 100, "beat", 26), Line(1, 1, 8, 101, "beat", 27)], [(100, 25)])


def test_a_second_start_is_found_where_there_may_be_one_only() -> None:
    lines = [*run(1, 7, 100, 0, 10), *run(2, 8, 100, 0, 10), *run(2, 9, 100, 20, 30)]
    check_at_most_once(lines, [1])
    with pytest.raises(AssertionError):
        check_at_most_once(lines, [1, 2])
