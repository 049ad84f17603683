"""Masker: a stream of bytes with secret values replaced, also those that are split over two pieces.

What it returns, put together, is what one replacement over the whole stream would give: at each place the longest value
that begins there. It keeps back only an end that may be the beginning of a value: less than the longest value.
Next: agent/executors/capture.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = b"***"
LEAST = 4  # bytes: to hide shorter values would hide output that has nothing to do with them


class Masker:
    """For one stream. `values` are the ones to hide; those that are too short are not hidden."""

    def __init__(self, values: Iterable[bytes]) -> None:
        self._values = maskable(values)
        self._pattern = pattern_of(self._values)
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        """The next piece, masked, without an end that may be the beginning of a value."""
        if self._pattern is None:
            return data
        data = self._kept + data
        masked: list[bytes] = []
        at, undecided = 0, self._undecided(data, 0)
        while (found := self._pattern.search(data, at)) is not None and found.start() < undecided:
            masked += (data[at : found.start()], MASK)
            at = found.end()
            if at > undecided:
                undecided = self._undecided(data, at)
        masked.append(data[at:undecided])
        self._kept = data[undecided:]
        return b"".join(masked)

    def end(self, *, cut: bool = False) -> bytes:
        """What was kept back. With `cut` the stream goes on unseen: the beginning of a value is hidden too."""
        kept, self._kept = self._kept, b""
        if not kept or self._pattern is None:
            return kept
        return MASK if cut and len(kept) >= LEAST else self._pattern.sub(MASK, kept)

    def _undecided(self, data: bytes, at: int) -> int:
        """Where the first value may begin that ends behind `data`; its length if none may."""
        return min((_first_prefix(value, data, at) for value in self._values), default=len(data))


def _first_prefix(value: bytes, data: bytes, at: int) -> int:
    """The first position from `at` on from which the rest of `data` is the beginning of `value` and not all of it."""
    start = max(at, len(data) - len(value) + 1)
    while (start := data.find(value[:1], start)) >= 0:
        if value.startswith(data[start:]):
            return start
        start += 1
    return len(data)


def maskable(values: Iterable[bytes]) -> list[bytes]:
    """The values that are hidden, without the white space around them, the longest first."""
    found = {stripped for value in values if len(stripped := value.strip()) >= LEAST}
    return sorted(found, key=lambda value: (-len(value), value))


def pattern_of(values: list[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(map(re.escape, values))) if values else None
