"""Reports: what cannot be stored is replaced or left out, and everything else passes as it is."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.model.messages import (
    AttemptId,
    Chunk,
    Ending,
    Finished,
    Note,
    Output,
    Progress,
    Refused,
    Start,
    Started,
)
from mainspring.model.reports import LATEST, LONGEST_REASON, Report, about, bad_report, checked, items
from mainspring.model.tasks.states import TaskState

ENDING = Ending(1, 2, 3, 4, TaskState.SUCCEEDED, 10.0, 11.0, result='"fine"')
GOOD: list[Report] = [
    Finished([ENDING, replace(ENDING, state=TaskState.FAILED, code="exit_code", error="é", labels=("exit_code",))]),
    Started([Start(1, 2, 0.0), Start(1, 2, LATEST - 1)]),
    Progress([Note(1, 2, None, None), Note(1, 2, "1", "{}", healthy=True)]),
    Output([Chunk(1, 2, 1, stream, 10.0, b"\0") for stream in (0, 1, 2)]),
    Refused([AttemptId(1, 2)], "full"),
]


@pytest.mark.parametrize("report", GOOD, ids=lambda report: type(report).__name__)
def test_a_good_report_passes_as_it_is(report: Report) -> None:
    assert checked(report) == report


@pytest.mark.parametrize(
    "bad",
    [
        {"started_at": -1.0},
        {"finished_at": LATEST},
        {"finished_at": float("nan")},
        {"started_at": float("inf")},
        {"result": "\0"},
        {"code": "a\0"},
        {"error": "\0b"},
        {"labels": ("fine", "a\0b")},
    ],
    ids=str,
)
def test_a_bad_ending_fails_its_attempt_for_good_and_leaves_the_others(bad: dict[str, Any]) -> None:
    report = checked(Finished([ENDING, replace(ENDING, **bad), ENDING]))
    first, spoilt, last = items(report)
    assert (first, last) == (ENDING, ENDING)
    assert (spoilt.state, spoilt.code, spoilt.final) == (TaskState.FAILED, "bad_report", True)
    assert (spoilt.task, spoilt.token, spoilt.job, spoilt.attempt) == (1, 2, 3, 4)
    assert checked(Finished([spoilt])) == Finished([spoilt])


@pytest.mark.parametrize("time", [-1e12, 1e12, float("inf"), float("nan")])
def test_a_time_that_no_clock_shows_is_left_out_of_starts_and_output(time: float) -> None:
    assert checked(Started([Start(1, 2, time)])) == Started([Start(1, 2, 0.0)])
    assert checked(Output([Chunk(1, 2, 1, 1, time, b"x")])) == Output([Chunk(1, 2, 1, 1, 0.0, b"x")])


def test_notes_that_hold_nul_and_output_of_no_stream_are_left_out() -> None:
    fine = Note(1, 2, "1", None)
    assert checked(Progress([Note(1, 2, "\0", None), fine, Note(1, 2, None, "\0")])) == Progress([fine])
    chunk = Chunk(1, 2, 2, 1, 1.0, b"x")
    assert checked(Output([Chunk(1, 2, 1, 7, 1.0, b"x"), chunk])) == Output([chunk])


def test_a_reason_that_cannot_be_stored_either_is_made_plain() -> None:
    error = bad_report(ENDING, "\0\ud800" + "x" * 5000).error
    assert error is not None
    assert len(error) == LONGEST_REASON
    assert "\0" not in error
    error.encode()


@pytest.mark.parametrize("report", GOOD, ids=lambda report: type(report).__name__)
def test_a_report_can_be_cut_down_to_some_of_its_items(report: Report) -> None:
    assert items(about(report, items(report)[:1])) == items(report)[:1]


@pytest.mark.parametrize("number", [-1e12, 1e12, float("inf"), float("-inf"), float("nan")])
def test_an_instant_that_cannot_be_is_not_known_and_costs_the_attempt_nothing(number: float) -> None:
    for bad in ({"armed_ahead": number}, {"fire_at": number}):
        [ending] = items(checked(Finished([replace(ENDING, **bad)])))
        assert ending == replace(ENDING, armed_ahead=None, fire_at=0.0)
