"""Ranges: many numbers in few words, for people.

Next: cli/fleet/segments.py
"""

from __future__ import annotations

from collections.abc import Iterable


def ranges(numbers: Iterable[int]) -> str:
    """0-33, 67"""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
