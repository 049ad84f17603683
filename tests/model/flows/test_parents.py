"""What an attempt is told of its parents: as much as fits."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from mainspring.errors import ValidationError
from mainspring.model.flows.parents import MOST_TOLD, Outcome, Parent, read, shortened, told


def outcome(id: int, result: str = "null") -> Outcome:
    return Outcome(id, "load", "succeeded", None, Raw(json.dumps(result).encode()))


def test_all_is_told_of_a_few_by_number() -> None:
    text = told([outcome(2, "b"), outcome(1, "a")])
    assert [Parent(each, {}).result for each in read(text)] == ["a", "b"]


@pytest.mark.parametrize("over", [False, True])
def test_results_go_first_and_exactly_at_the_bound(over: bool) -> None:
    room = MOST_TOLD - len(told([outcome(1, "")]))
    [parent] = [Parent(each, {}) for each in read(told([outcome(1, "x" * (room + over))]))]
    assert parent.state == "succeeded"
    if not over:
        assert parent.result == "x" * room
        return
    with pytest.raises(ValidationError, match="over 64 kB together"):
        _ = parent.result


def test_a_result_that_was_not_read_leaves_out_all() -> None:
    """All or none: whoever adds them up must not add up some."""
    text = told([outcome(1, "a"), Outcome(2, "load", "succeeded", None)])
    assert json.loads(text) == [{"id": id, "job": "load", "state": "succeeded", "error_code": None} for id in (1, 2)]


def test_of_very_many_the_numbers_alone_are_told() -> None:
    text = told([outcome(id) for id in range(10**9, 10**9 + 1000)])
    assert len(text) <= MOST_TOLD
    parents = [Parent(each, {}) for each in read(text)]
    assert [(p.id, p.state, p.job) for p in parents] == [(10**9 + n, None, None) for n in range(1000)]


def test_a_header_gets_what_fits() -> None:
    text = told([outcome(id, "x" * 100) for id in range(10)])
    assert shortened(text, len(text)) == text
    shorter = shortened(text, len(text) - 1)
    assert shorter is not None
    assert json.loads(shorter)[0] == {
        "id": 0,
        "job": "load",
        "state": "succeeded",
        "error_code": None,
    }
    assert shortened(text, 200) == json.dumps([{"id": id} for id in range(10)], separators=(",", ":"))
    assert shortened(text, 10) is None


def test_a_result_is_read_as_its_job_is_annotated_here() -> None:
    assert Parent(outcome(1, "7"), {"load": lambda text: int(json.loads(text))}).result == 7
