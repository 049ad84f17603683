"""The driver reads what built-in types are once in a process; those of a database it reads in each connection."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from mainspring.store.postgres.connecting import client_connections
from mainspring.store.postgres.database import Database


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The types that the catalogue is asked for, from a process that knows none."""
    wanted: list[set[int]] = []
    ask = asyncpg.Connection._introspect_types

    async def counted(self: Any, types: set[int], timeout: float | None) -> Any:
        wanted.append(set(types))
        return await ask(self, types, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", counted)
    monkeypatch.setattr(client_connections, "_known", {})
    return wanted


async def test_built_in_types_are_read_once(dsn: str, asked: list[set[int]]) -> None:
    for _ in range(2):
        conn = await Database(dsn).connect()
        try:
            assert await conn.fetchval("select $1::bigint[]", [1, 2]) == [1, 2]
            assert await conn.fetchval("select $1::float8[]", [0.5]) == [0.5]
            assert await conn.fetchval("select array['00:00:01'::interval]::text[]") == ["00:00:01"]
        finally:
            await conn.close()
    [types] = asked
    assert types >= client_connections.ARRAYS


async def test_a_built_in_type_that_is_not_among_the_usual_ones_is_read_too(dsn: str, asked: list[set[int]]) -> None:
    for _ in range(2):
        conn = await Database(dsn).connect()
        try:
            assert await conn.fetchval("select array[true]") == [True]
            assert await conn.fetchval("select array['2026-11-17'::date]::date[]::text[]") == ["2026-11-17"]
            assert [str(day) for day in await conn.fetchval("select $1::text[]::date[]", ["2026-11-17"])] == [
                "2026-11-17"
            ]
        finally:
            await conn.close()
    assert len(asked) == 2


async def test_types_of_the_database_are_read_in_each_connection(dsn: str, asked: list[set[int]]) -> None:
    """Their numbers may differ in the next one."""
    for _ in range(2):
        conn = await Database(dsn).connect()
        try:
            await conn.execute("create type pg_temp.colour as enum ('red', 'blue')")
            assert await conn.fetchval("select array['red'::pg_temp.colour]") == ["red"]
        finally:
            await conn.close()
    assert len(asked) == 2
