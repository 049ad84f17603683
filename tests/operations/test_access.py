"""Tokens: create, list, revoke."""

from __future__ import annotations

import pytest
from tests.operations.conftest import ACTOR, BAD_NAME

from mainspring.errors import NotFound, ValidationError
from mainspring.operations import access
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection


async def test_a_token_lets_agents_in_until_it_is_revoked(conn: Connection) -> None:
    made = await access.create_token(conn, ACTOR, "rack-7", expires="1h", once=True)
    assert made.token is not None
    assert await tokens.check(conn, made.token) == made.id
    [listed] = await access.list_tokens(conn, ACTOR)
    assert (listed.id, listed.name, listed.once, listed.revoked_at) == (made.id, "rack-7", True, None)
    assert made.token not in str(listed), "the secret is never told again"
    await access.revoke_token(conn, ACTOR, made.id)
    assert await tokens.check(conn, made.token) is None
    assert (await access.list_tokens(conn, ACTOR))[0].revoked_at is not None


async def test_what_is_wrong_is_refused(conn: Connection) -> None:
    with pytest.raises(NotFound):
        await access.revoke_token(conn, ACTOR, 99)
    with pytest.raises(ValidationError):
        await access.create_token(conn, ACTOR, BAD_NAME)
