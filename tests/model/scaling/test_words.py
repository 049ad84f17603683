"""The sentence that says why so many slots are wanted."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mainspring.model.scaling.wanted import Wanted
from mainspring.model.scaling.words import reason


@pytest.mark.parametrize(
    ("slots", "words"), [(0.00067, "less than one slot"), (0.97, "less than one slot"), (12.5, "12.5 slots")]
)
def test_a_share_of_a_slot_is_told_in_words(slots: float, words: str) -> None:
    told = reason(
        Wanted(1, 0, 0.0, slots, 0.0, None, is_ahead=False),
        due=3,
        rate=0.0,
        planned=0,
        peak_at=None,
        target_wait=30.0,
        horizon=300,
        daemons=0,
        busy=0,
        left_out=0,
        held=0,
    )
    assert told == f"3 due tasks need {words} to start within 30s; at 80% use"


def test_one_task_needs_one_slot() -> None:
    told = reason(
        Wanted(1, 1, 0.0, 1.0, 1.0, None, is_ahead=True),
        due=1,
        rate=0.0,
        planned=1,
        peak_at=datetime(2026, 11, 15, 9, tzinfo=UTC),
        target_wait=30.0,
        horizon=300,
        daemons=0,
        busy=1,
        left_out=0,
        held=0,
    )
    assert told == (
        "1 planned start within 5m needs 1 slot at 09:00:00 UTC; 1 runs; 1 due task needs 1 slot to start within 30s;"
        " at 80% use; 1 busy slot is kept"
    )
