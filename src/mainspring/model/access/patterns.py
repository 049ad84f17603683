"""Patterns of names, as the shell has them: `report*`. They narrow what a token reaches.

Next: model/access/actors.py
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from mainspring.errors import ValidationError
from mainspring.model.words.names import check_name

MOST = 100
_SET = re.compile(r"\[!?\]?[^\]]*\]")


def check_patterns(given: Sequence[str], *, field: str) -> tuple[str, ...]:
    """Each once. A text in place of a list is an error, not one pattern for each of its letters."""
    if isinstance(given, str) or len(given) > MOST:
        raise ValidationError(f"{field}: give a list of at most {MOST} patterns", field=field)
    return tuple(dict.fromkeys(check_name(pattern, field=field) for pattern in given))


def is_within(inner: Sequence[str], outer: Sequence[str]) -> bool:
    """Whether `outer` matches every name that `inner` matches; no pattern means all names.

    Where that is hard to tell it says no: patterns with `?` or `[` contain only names and themselves.
    """
    if not outer:
        return True
    return bool(inner) and all(any(_contains(wide, narrow) for wide in outer) for narrow in inner)


def overlap(globs: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether there can be a name that both match: globs, in which only `*` is special, and patterns of the shell.

    Where that is hard to tell it says yes: `[…]` may be any character.
    """
    plain = [_SET.sub("?", pattern) for pattern in patterns]
    return any(_overlap(glob, pattern) for glob in globs for pattern in plain)


def _overlap(glob: str, pattern: str) -> bool:
    """By the places in `pattern` that can be reached with each character of `glob`."""
    reached = _past_stars({0}, pattern)
    for character in glob:
        if character == "*":
            reached = set(range(min(reached), len(pattern) + 1))
            continue
        follow = {
            at + (pattern[at] != "*") for at in reached if at < len(pattern) and pattern[at] in ("*", "?", character)
        }
        reached = _past_stars(follow, pattern)
        if not reached:
            return False
    return len(pattern) in reached


def _past_stars(places: set[int], pattern: str) -> set[int]:
    found = set(places)
    for at in places:
        while at < len(pattern) and pattern[at] == "*":
            at += 1
            found.add(at)
    return found


def _contains(wide: str, narrow: str) -> bool:
    if narrow == wide:
        return True
    is_name = not any(wildcard in narrow for wildcard in "*?[")
    # A `*` of the wide pattern takes in whatever the wildcards of the narrow one stand for. Half a `[…]` it would not.
    is_plain = not any(wildcard in wide for wildcard in "?[") and "[" not in narrow
    return (is_name or is_plain) and fnmatchcase(narrow, wide)
