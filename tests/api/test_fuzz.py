"""A few requests for each operation, made from the OpenAPI document; `python -m tests.api.fuzz` makes more."""

from __future__ import annotations

from tests.api.fuzz import fuzzing

CASES = 2  # for each operation: a valid one and another


def test_nothing_that_is_made_from_the_document_breaks_a_promise(dsn: str) -> None:
    with fuzzing(dsn) as fuzz:
        fuzz.run(CASES, 7)
    assert not fuzz.findings, "\n".join(
        f"{found.operation}: {found.what}\n  {found.example}" for found in fuzz.findings
    )
    assert fuzz.cases > 100
    assert fuzz.statuses[200] > 30, "not everything is refused"
