"""Statements are named by what they do to which table, and counted on every connection but the user's own."""

from __future__ import annotations

import asyncpg
import pytest

from mainspring.model.metrics.statements import code_of, name_of
from mainspring.store.postgres.database import Database


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("select id from mainspring.task where id = $1", "select task"),
        ("SELECT 1 FROM mainspring.agent a JOIN mainspring.server s ON true", "select agent"),
        ("with found as (select from mainspring.pool) update mainspring.task set state = 2", "update task"),
        ("insert into mainspring.task_history_20261117 (id) values (1)", "insert task_history"),
        ("delete from mainspring.claim", "delete claim"),
        ("select mainspring.enqueue($1, $2)", "call enqueue"),
        ("select id from mainspring.now()", "select"),
        ("select mainspring.now()", "select"),
        ("BEGIN;", "begin"),
        ("vacuum", "other"),
        ("select 'a secret of the user'", "select"),
    ],
)
def test_a_name_holds_words_of_the_schema_only(query: str, name: str) -> None:
    assert name_of(query) == name


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (asyncpg.DeadlockDetectedError(), "40P01"),
        (TimeoutError(), "timeout"),
        (ConnectionResetError(), "connection"),
        (asyncpg.InterfaceError("closed"), "driver"),
    ],
)
def test_an_error_has_a_code(error: Exception, code: str) -> None:
    assert code_of(error) == code


async def test_statements_of_handlers_are_not_counted(database: Database) -> None:
    handlers = database.for_handlers()
    async with handlers.acquire() as conn:
        await conn.fetchval("select id from mainspring.segment limit 1")
    assert handlers.tally.statements == {}
    await handlers.close()
    async with database.acquire() as conn:
        await conn.fetchval("select id from mainspring.segment limit 1")
    assert database.tally.statements["select segment"].count == 1


async def test_a_postgresql_that_cannot_be_reached_is_counted() -> None:
    database = Database("postgresql://127.0.0.1:1/nowhere")
    with pytest.raises(Exception, match="PostgreSQL"):
        await database.open()
    assert database.tally.errors["connect"] >= 1
    await database.close()
