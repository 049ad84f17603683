"""Spreading: H in the place of the numbers that make schedules start together."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.model.forecasting.spreading import with_hash
from mainspring.model.schedules.expressions.cron_grammar import resolve


@pytest.mark.parametrize(
    ("expression", "minute", "second"),
    [
        ("0 2 * * *", "H 2 * * *", "H H 2 * * *"),
        ("@daily", "H 0 * * *", "H H 0 * * *"),
        ("*/5 * * * *", "H/5 * * * *", "H H/5 * * * *"),
        ("0,20,40 8-18 * * MON-FRI", "H/20 8-18 * * MON-FRI", "H H/20 8-18 * * MON-FRI"),
        ("0,7 2 * * *", None, "H 0,7 2 * * *"),
        ("* * * * *", None, "H * * * * *"),
        ("H 2 * * *", None, "H H 2 * * *"),
        ("30 15 2 * * *", "30 H 2 * * *", "H H 2 * * *"),
        ("H H 2 * * *", None, None),
        ("*/7 * * * *", None, "H */7 * * * *"),
    ],
)
def test_numbers_become_h(expression: str, minute: str | None, second: str | None) -> None:
    wanted: tuple[Any, ...] = (minute, second)
    assert (with_hash(expression, "minute"), with_hash(expression, "second")) == wanted
    for found in wanted:
        if found is not None:
            resolve(found, seed="s")
