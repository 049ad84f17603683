"""Globs: names with `*` for any characters, as filters of lists take them.

Next: store/tasks/jobs.py
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from mainspring.model.words.names import check_name

_SET = re.compile(r"\[!?\]?[^\]]*\]")  # of characters: [a-z]


def several(given: Sequence[str]) -> list[str]:
    """The values of a filter that may be repeated. One text alone is one value, not its characters."""
    return [given] if isinstance(given, str) else list(given)


def like(patterns: Sequence[str], *, field: str) -> list[str] | None:
    """The patterns as LIKE of SQL reads them; None if there are none, which lets everything through."""
    if not patterns:
        return None
    return [as_like(check_name(pattern, field=field)) for pattern in patterns]


def covering(patterns: Sequence[str]) -> list[str] | None:
    """For LIKE, at least what these patterns of the shell match; None if there are none, which lets everything through.

    A list that is narrowed by them reads few names that its caller may not see, and its cursor holds none.
    """
    return [as_like(_SET.sub("*", pattern).replace("?", "*")) for pattern in patterns] or None


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of these patterns in which only `*` is special, as LIKE does with `as_like`."""
    return any(_compiled(pattern).fullmatch(name) for pattern in patterns)


@lru_cache(1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = (re.escape(part) for part in re.split(r"\*+", pattern))
    return re.compile(".*".join(parts), re.DOTALL)


def as_like(pattern: str) -> str:
    """A pattern in which only `*` is special, for LIKE."""
    for character in ("\\", "%", "_"):
        pattern = pattern.replace(character, f"\\{character}")
    return pattern.replace("*", "%")
