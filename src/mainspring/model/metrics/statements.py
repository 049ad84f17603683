"""Statements: name them by what they do to which table, and errors by their code.

Next: store/postgres/database.py
"""

from __future__ import annotations

import re
from functools import lru_cache

_WRITES = re.compile(r"\b(insert(?=\s+into)|update|delete(?=\s+from))(?:\s+into|\s+from)?\s+mainspring\.(\w+)")
_READS = re.compile(r"\b(?:from|join)\s+mainspring\.(\w+)\b(?!\s*\()")
_CALLS = re.compile(r"\bmainspring\.(\w+)\s*\(")
_DAY = re.compile(r"_\d{6,}$")  # of a partition
_KNOWN = 1000  # texts; some are built with the names of partitions
_COMMON = frozenset(("now",))  # functions that any statement may call


@lru_cache(_KNOWN)
def name_of(query: str) -> str:
    """`update task`, `select agent`, `call enqueue`; a statement that writes is named by its first write."""
    text = query.lower()
    if found := _WRITES.search(text):
        return f"{found[1]} {_DAY.sub('', found[2])}"
    if found := _READS.search(text):
        return f"select {_DAY.sub('', found[1])}"
    if called := [name for name in _CALLS.findall(text) if name not in _COMMON]:
        return f"call {called[0]}"
    word = re.match(r"\s*(begin|commit|rollback|savepoint|release|set|listen|select|notify)\b", text)
    return word[1] if word else "other"


def code_of(error: BaseException) -> str:
    """SQLSTATE, or the kind of fault if PostgreSQL did not answer."""
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str) and state:
        return state
    if isinstance(error, TimeoutError):
        return "timeout"
    return "connection" if isinstance(error, OSError) else "driver"
