"""Tokens: found while they are valid, by nothing but their secret; their last use is noted once a minute."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from mainspring.model.access.actors import Role
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("role", Role)
async def test_a_token_is_found_by_its_secret_alone(conn: Connection, role: Role) -> None:
    given = {"jobs": ["report*"], "rate": 5.0, "expires": HOUR, "created_by": "os:alice@host"}
    id, secret = await tokens.create(conn, "ci", role=role, **given)  # type: ignore[arg-type]
    found = await tokens.find(conn, secret)
    assert found is not None
    assert (found.id, found.name, found.role, found.jobs, found.rate) == (id, "ci", role, ["report*"], 5.0)
    assert (found.namespaces, found.created_by) == (["*"], "os:alice@host")
    for guess in (secret[:-1], secret + "x", secret.swapcase(), "", "ms_", "\udcff\x00"):
        assert await tokens.find(conn, guess) is None


async def test_the_database_does_not_hold_the_secret(conn: Connection) -> None:
    _, secret = await tokens.create(conn, "ci", role=Role.ADMIN)
    assert secret.startswith("ms_")
    assert len(secret) >= 46, "256 bits"
    assert secret[3:] not in await conn.fetchval("select string_agg(t::text, ' ') from mainspring.token t")


@pytest.mark.parametrize(
    "ending", ["revoked_at = mainspring.now()", "expires_at = mainspring.now()", "once = true, used_by = 'x'"]
)
async def test_a_token_that_has_ended_is_not_found(conn: Connection, ending: str) -> None:
    id, secret = await tokens.create(conn, "ci", role=Role.VIEWER, expires=HOUR)
    assert await tokens.find(conn, secret) is not None
    await conn.execute(f"update mainspring.token set {ending} where id = $1", id)
    assert await tokens.find(conn, secret) is None


async def test_a_credential_is_not_found_once_its_token_is_revoked(conn: Connection) -> None:
    id, _ = await tokens.create(conn, "laptop", once=True)
    admission = await tokens.admit(conn, id, "instance", "laptop")
    assert admission is not None
    assert admission.credential is not None
    assert await tokens.find(conn, admission.credential) is not None
    await conn.execute("update mainspring.token set revoked_at = mainspring.now() where id = $1", id)
    assert await tokens.find(conn, admission.credential) is None


async def test_the_last_use_is_noted_at_most_once_a_minute(conn: Connection) -> None:
    id, secret = await tokens.create(conn, "ci", role=Role.VIEWER)
    other, _ = await tokens.create(conn, "other", role=Role.VIEWER)

    async def last_used() -> object:
        found = await tokens.find(conn, secret)
        return found and found.last_used_at

    assert await last_used() is None
    await tokens.note_used(conn, [id, id, 2**31 - 1])
    first = await last_used()
    assert first is not None
    await tokens.note_used(conn, [id])
    assert await last_used() == first
    await conn.execute(
        "update mainspring.token set last_used_at = last_used_at - interval '1 minute' where id = $1", id
    )
    await tokens.note_used(conn, [id])
    assert await last_used() > first  # type: ignore[operator]
    assert await conn.fetchval("select last_used_at from mainspring.token where id = $1", other) is None


async def test_noting_a_use_does_not_wait_for_another_transaction(conn: Connection, dsn: str) -> None:
    id, _ = await tokens.create(conn, "ci", role=Role.VIEWER)
    other = await Database(dsn).connect()
    try:
        async with other.transaction():
            await other.execute("select from mainspring.token for update")
            await asyncio.wait_for(tokens.note_used(conn, [id]), 10)
    finally:
        await other.close()


async def test_an_agent_that_connects_has_used_the_token_that_it_came_from(conn: Connection) -> None:
    id, _ = await tokens.create(conn, "laptop", once=True)
    await tokens.admit(conn, id, "instance", "laptop")
    [listed] = (await tokens.listing(conn)).items
    assert listed.last_used_at is not None
