"""The id of an installation."""

from __future__ import annotations

import asyncpg
import pytest

from mainspring.store.cluster.settings import database_id
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.migrate import migrate


async def _id_of_a_new_schema(dsn: str) -> object:
    database = Database(dsn)
    await migrate(database)
    conn = await database.connect()
    try:
        found = await database_id(conn)
        await migrate(database)
        assert await database_id(conn) == found
        await conn.execute("drop schema mainspring cascade")
        return found
    finally:
        await conn.close()


async def test_each_schema_gets_an_id_of_its_own_and_keeps_it(empty_dsn: str) -> None:
    assert await _id_of_a_new_schema(empty_dsn) != await _id_of_a_new_schema(empty_dsn)


async def test_there_is_one_id_only(conn: Connection) -> None:
    with pytest.raises(asyncpg.UniqueViolationError):
        await conn.execute("insert into mainspring.installation default values")
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute("insert into mainspring.installation (the_one) values (false)")
