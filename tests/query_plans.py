"""The plans of statements, as PostgreSQL explains them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mainspring.store.postgres.database import Connection

_DROPPED = ("Rows Removed by Join Filter", "Rows Removed by Filter")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A node of a plan and all below it."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


async def rows_read(conn: Connection, statement: str, *arguments: object) -> float:
    """By all nodes of a statement, which is run; also the rows that a filter has dropped."""
    [told] = json.loads(await conn.fetchval(f"explain (analyze, timing off, format json) {statement}", *arguments))
    return sum(
        float((node["Actual Rows"] + sum(node.get(name, 0) for name in _DROPPED)) * node["Actual Loops"])
        for node in nodes(told["Plan"])
    )
