"""Retention: each rule deletes what has expired, a bounded number of rows at a time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from mainspring.store.maintenance import retention
from mainspring.store.postgres.database import Connection, Database

DAY = timedelta(days=1)

_MOVES = """
    insert into mainspring.segment_move (term, reason, segments, at)
    select 1, 'free', array[7], mainspring.now() - days * interval '1 day' from generate_series(1, 40) as days
"""


@pytest.mark.parametrize("name", retention.RULES)
async def test_every_rule_finds_the_rows_it_deletes_by_their_place(conn: Connection, name: str) -> None:
    types = "bigint, interval" if "$2" in retention._STATEMENTS[name] else "bigint"
    arguments = "10, interval '1 day'" if "$2" in retention._STATEMENTS[name] else "10"
    await conn.execute(f"prepare rule ({types}) as {retention._STATEMENTS[name]}")
    lines = [row[0] for row in await conn.fetch(f"explain execute rule({arguments})")]
    assert any("Tid Scan" in line for line in lines)
    assert await retention.delete(conn, name, 10, DAY) == 0


async def test_a_rule_deletes_the_oldest_rows_first_and_no_more_than_the_limit(conn: Connection) -> None:
    await conn.execute(_MOVES)
    assert await retention.delete(conn, "moves", 6, DAY) == 6
    assert await conn.fetchval("select min(at) > mainspring.now() - interval '35 days' from mainspring.segment_move")
    assert await retention.delete(conn, "moves", 6, DAY) in (4, 5)  # the one of day 30 has just expired
    assert await retention.delete(conn, "moves", 6, DAY) == 0


async def test_a_row_that_another_transaction_has_locked_is_left(conn: Connection, dsn: str) -> None:
    await conn.execute(_MOVES)
    other = await Database(dsn).connect()
    try:
        async with other.transaction():
            await other.execute("select from mainspring.segment_move order by at limit 3 for update")
            assert await asyncio.wait_for(retention.delete(conn, "moves", 100, DAY), 10) in (7, 8)
    finally:
        await other.close()
