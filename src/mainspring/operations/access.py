"""Access: create, list and revoke the tokens that agents connect with.

Next: store/cluster/tokens.py
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from mainspring.model.words.names import check_name
from mainspring.store.cluster import tokens
from mainspring.store.cluster.tokens import listing, revoke
from mainspring.store.postgres.connection import Connection

__all__ = ["NewToken", "create_token", "listing", "revoke"]


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
