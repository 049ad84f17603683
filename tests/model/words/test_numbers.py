"""Numbers from 2^53 on are refused on the way in, wherever users can store one, and none of ours gets there."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import ValidationError
from mainspring.model.tasks.payload import encode, why_not
from mainspring.model.words.numbers import MAX_INTEGER, check_id, is_exact


@pytest.mark.parametrize("number", [2**53 - 1, 1 - 2**53, 0])
def test_what_every_language_reads_is_taken(number: int) -> None:
    assert is_exact(number)
    assert float(number) == number
    assert encode({"n": [number]}, "args")
    assert why_not(f'{{"n": [{number}]}}') is None


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**53 + 1, 10**30])
def test_what_other_languages_would_read_wrong_is_refused(number: int) -> None:
    assert not is_exact(number)
    for value in (number, {"n": number}, [[number]]):
        with pytest.raises(ValidationError, match="beyond") as refused:
            encode(value, "args")
        assert refused.value.field == "args"
    assert why_not(f'{{"n": [{number}]}}') is not None, "results, progress and checkpoints of agents"


@pytest.mark.parametrize("id", [0, -1, 2**53, 2**63, True, "1", 1.0, None])
def test_a_number_of_a_task_is_positive_and_below(id: Any) -> None:
    with pytest.raises(ValidationError, match="after") as refused:
        check_id(id, field="after")
    assert refused.value.field == "after"


def test_the_largest_number_of_a_task_is_taken() -> None:
    assert check_id(MAX_INTEGER, field="id") == MAX_INTEGER == 2**53 - 1
