"""What is kept of a command's output, and that all of it is a sign of life."""

from __future__ import annotations

import pytest

from mainspring.agent.executors.capture import STDOUT, Capture, OutputLimit


@pytest.mark.parametrize("kind", ["head and tail", "rate"])
def test_output_that_is_not_kept_is_a_sign_of_life_too(kind: str) -> None:
    signs = 0
    emitted: list[bytes] = []

    def lives() -> None:
        nonlocal signs
        signs += 1

    def emit(_stream: int, data: bytes) -> None:
        emitted.append(data)

    capture = (
        Capture(emit, head=1, tail=1, on_output=lives)
        if kind == "head and tail"
        else OutputLimit(emit, lambda: 0.0, rate=1, burst=1, on_output=lives)
    )
    for _ in range(5):
        capture.write(STDOUT, b"x")
        capture.flush()
    assert emitted == [b"x"]
    assert signs == 5
