"""Access: create, list and revoke the tokens that agents connect with.

Next: store/cluster/tokens.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from mainspring.model.words.names import check_name
from mainspring.store.cluster import tokens
from mainspring.store.cluster.tokens import Token
from mainspring.store.postgres.connection import Connection


class NewToken(msgspec.Struct, frozen=True):
    id: int
    name: str
    token: str  # the secret, in this answer only: the database keeps its hash


async def create_token(
    conn: Connection, name: str, *, lifetime: timedelta | None = None, once: bool = False
) -> NewToken:
    """With `once`, the first agent exchanges it for a credential and no other agent can use it."""
    id, secret = await tokens.create(conn, check_name(name, field="name"), expires=lifetime, once=once)
    return NewToken(id, name, secret)


async def listing(conn: Connection) -> Sequence[Token]:
    return await tokens.listing(conn)


async def revoke(conn: Connection, id: int) -> None:
    """End a token, and the credentials that came from it."""
    await tokens.revoke(conn, id)
