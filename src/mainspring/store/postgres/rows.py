"""Rows: what the driver returns → views and counts.

Next: store/tasks/jobs.py
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def views(kind: type[T], rows: Iterable[Any], *, json: Collection[str] = ()) -> list[T]:
    """Each row as a struct, by the names of its columns; `json` names those that hold JSON. Other columns are ignored.

    Rows may be records of the driver or mappings made from them.
    """
    return [msgspec.convert(_decoded(row, json), kind) for row in rows]


def _decoded(row: Any, json: Collection[str]) -> dict[str, Any]:
    columns = dict(row)
    for name in json:
        if columns[name] is not None:
            columns[name] = msgspec.json.decode(columns[name])
    return columns


def affected(tag: str) -> int:
    """The row count of a command tag such as "UPDATE 3"."""
    return int(tag.rpartition(" ")[2])


def columns(kind: type[tuple[Any, ...]], items: Collection[Any]) -> list[list[Any]]:
    """Named tuples of one kind as arrays for `unnest`, one for each field."""
    return [[item[field] for item in items] for field in range(len(kind._fields))]  # type: ignore[attr-defined]
