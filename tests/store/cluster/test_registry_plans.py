"""What agents hold is read in time that grows with what they hold, on connections without settings of ours too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mainspring.store.cluster import registry
from mainspring.store.postgres.database import Connection, Database

pytestmark = pytest.mark.usefixtures("dsn")  # statistics of the test's own database

_CLAIM = """
    with made as (
        insert into mainspring.task (run_at, created_at, job_id, pool, state, priority, args, token, session)
        select mainspring.now(), mainspring.now(), 1, 1, 2, 5, '{}', 1, 1 from generate_series(1, 50) returning id
    )
    insert into mainspring.claim (session, batch, tasks)
    select 1, nextval('mainspring.claim_batch'), array_agg(id) from made
"""


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


async def rows_read(conn: Connection, statement: str, *arguments: object) -> float:
    """By all parts of a statement, also those that a filter dropped."""
    [told] = json.loads(await conn.fetchval(f"explain (analyze, timing off, format json) {statement}", *arguments))
    dropped = ("Rows Removed by Join Filter", "Rows Removed by Filter")
    return sum(
        float((node["Actual Rows"] + sum(node.get(name, 0) for name in dropped)) * node["Actual Loops"])
        for node in nodes(told["Plan"])
    )


STATEMENTS: dict[str, tuple[str, tuple[object, ...]]] = {
    "load": (registry._HELD, ()),
    "armed": (registry._ARMED, ("eve", 500)),
    "all armed": (registry._ALL_ARMED, (100, None, 500)),
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_ten_times_as_many_claims_cost_ten_times_as_much(conn: Connection, database: Database, name: str) -> None:
    statement, arguments = STATEMENTS[name]
    await conn.execute(
        "insert into mainspring.agent (session, name, slots, lease_until) values (1, 'eve', 9, 'infinity')"
    )
    requests = database.for_api()
    async with requests.acquire() as reading:
        await conn.execute(_CLAIM)
        few = await rows_read(reading, statement, *arguments)
        for _ in range(9):
            await conn.execute(_CLAIM)
        many = await rows_read(reading, statement, *arguments)
    await requests.close()
    assert few >= 50
    assert many < 20 * few
