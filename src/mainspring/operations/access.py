"""Access: create, list and revoke the tokens that agents connect with.

Next: store/cluster/tokens.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from mainspring.model.placement.token_binding import define_binding
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
    conn: Connection,
    name: str,
    *,
    lifetime: timedelta | None = None,
    once: bool = False,
    agents: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> NewToken:
    """With `once`, the first agent exchanges it for a credential and no other agent can use it.

    `agents` are patterns of the names that its agents may have, `labels` of their labels; without any, all are allowed.
    """
    id, secret = await tokens.create(
        conn,
        check_name(name, field="name"),
        expires=lifetime,
        once=once,
        binding=define_binding(agents, labels),
    )
    return NewToken(id, name, secret)
