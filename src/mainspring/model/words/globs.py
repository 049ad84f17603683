"""Globs: names with `*` for any characters, as filters of lists take them.

Next: store/tasks/jobs.py
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.words.names import check_name


def like(patterns: Sequence[str], *, field: str) -> list[str] | None:
    """The patterns as LIKE of SQL reads them; None if there are none, which lets everything through."""
    if not patterns:
        return None
    return [_like(check_name(pattern, field=field)) for pattern in patterns]


def _like(pattern: str) -> str:
    for character in ("\\", "%", "_"):
        pattern = pattern.replace(character, f"\\{character}")
    return pattern.replace("*", "%")
