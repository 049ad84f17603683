"""A request finds its token or session by index probes, whatever the statistics say."""

from __future__ import annotations

import json

import pytest

from mainspring.store.access import sessions, tokens
from mainspring.store.postgres.database import Connection

_TOKENS = """
    insert into mainspring.token (name, role, hash)
    select 't' || n, 'viewer', sha256(n::text::bytea) from generate_series(1, 20000) n
"""
_SESSIONS = """
    insert into mainspring.console_session (hash, actor, role, token_id, expires_at)
    select t.hash, t.name, 'viewer', t.id, mainspring.now() + interval '1 hour' from mainspring.token t
"""


async def plan(conn: Connection, statement: str, types: str, arguments: str) -> str:
    await conn.execute(f"prepare probe ({types}) as {statement}")
    found = await conn.fetchval(f"explain (format json) execute probe({arguments})")
    await conn.execute("deallocate probe")
    return json.dumps(json.loads(found))


@pytest.mark.parametrize("statistics", ["none", "of empty tables", "fresh"])
async def test_a_token_or_session_is_found_without_reading_a_table(conn: Connection, statistics: str) -> None:
    if statistics == "of empty tables":
        await conn.execute("analyze mainspring.token, mainspring.console_session")
    await conn.execute(_TOKENS)
    await conn.execute(_SESSIONS)
    if statistics == "fresh":
        await conn.execute("analyze mainspring.token, mainspring.console_session")
    for statement, types, arguments in (
        (tokens._FIND, "bytea", "'x'"),
        (sessions._FIND, "bytea, interval, interval", "'x', '12 hours', '7 days'"),
    ):
        assert "Seq Scan" not in await plan(conn, statement, types, arguments)
