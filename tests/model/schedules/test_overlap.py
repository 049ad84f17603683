"""What a task of a schedule does when the one before it is still there: the six policies."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.schedules.overlap import Decisions, LiveTask, decide
from mainspring.model.schedules.schedules import Overlap

# A lane in the order of its plan times: R runs, S runs and was asked to stop, D waits and is due, W waits and is not.
# What becomes of it: by position, + released, x skipped, c cancelled, k killed, . left alone.
CASES: dict[Overlap, dict[str, str]] = {
    "allow": {
        "W": "+", "D": "+", "DDW": "+++", "RW": ".+", "RDDW": ".+++", "SD": ".+",
    },
    "skip": {
        "W": "+", "D": "+", "WW": "+.", "DW": "+.", "DD": "+x", "DDDW": "+xx.",
        "RW": "..", "RD": ".x", "RDD": ".xx", "RDW": ".x.", "SD": ".x", "RRD": "..x",
    },
    "queue": {
        "W": "+", "D": "+", "WW": "+.", "DW": "+.", "DD": "+.", "DDD": "+.x", "DDDW": "+.x.",
        "RW": "..", "RD": "..", "RDW": "...", "RDD": "..x", "RDDDW": "..xx.", "SDD": "..x",
    },
    "queue_all": {
        "W": "+", "D": "+", "WW": "+.", "DD": "+.", "DDDW": "+...",
        "RW": "..", "RD": "..", "RDDDW": ".....", "SD": "..",
    },
    "cancel_running": {
        "W": "+", "D": "+", "WW": "+.", "DW": "+.", "DD": "x+", "DDD": "xx+", "DDW": "x+.",
        "RW": "..", "RD": "c.", "RDW": "c..", "RDD": "cx.", "RRD": "cc.", "SD": "..", "SDD": ".x.", "SRD": ".c.",
    },
    "terminate_running": {
        "W": "+", "D": "+", "WW": "+.", "DW": "+.", "DD": "x+", "DDD": "xx+", "DDW": "x+.",
        "RW": "..", "RD": "k.", "RDW": "k..", "RDD": "kx.", "RRD": "kk.", "SD": "..", "SDD": ".x.", "SRD": ".k.",
    },
}  # fmt: skip


def lane(letters: str) -> list[LiveTask]:
    return [
        LiveTask(number, waits=letter in "DW", is_due=letter != "W", is_stopping=letter == "S")
        for number, letter in enumerate(letters)
    ]


def shown(verdicts: Decisions, length: int) -> str:
    marks = ["."] * length
    for mark, tasks in zip("+xck", verdicts, strict=True):
        for task in tasks:
            assert marks[task] == ".", "a task has one fate"
            marks[task] = mark
    return "".join(marks)


@pytest.mark.parametrize(
    ("overlap", "letters", "expected"),
    [(overlap, letters, expected) for overlap, cases in CASES.items() for letters, expected in cases.items()],
)
def test_each_policy_decides(overlap: Overlap, letters: str, expected: str) -> None:
    assert shown(decide(lane(letters), overlap), len(letters)) == expected


def test_every_policy_has_its_cases() -> None:
    assert set(CASES) == set(get_args(Overlap))


LANES = st.builds(
    lambda running, due, later: "".join(running) + "D" * due + "W" * later,
    st.lists(st.sampled_from("RS"), max_size=3),
    st.integers(0, 5),
    st.integers(0, 3),
).filter(lambda letters: "D" in letters or "W" in letters)


@given(overlap=st.sampled_from(get_args(Overlap)), letters=LANES)
def test_no_policy_but_allow_lets_two_run_and_none_loses_the_lane(overlap: Overlap, letters: str) -> None:
    fates = shown(decide(lane(letters), overlap), len(letters))
    runs = [letter for letter in letters if letter in "RS"]
    if overlap == "allow":
        assert "x" not in fates
        assert fates.count("+") == len(letters) - len(runs)
        return
    assert fates.count("+") == (0 if runs else 1), "a free lane is taken at once, by one"
    assert all(fate in "+." for fate, letter in zip(fates, letters, strict=True) if letter == "W"), (
        "not before its instant"
    )
    assert all(fate in ".ck" for fate, letter in zip(fates, letters, strict=True) if letter in "RS")
