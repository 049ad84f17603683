"""Access: the tokens that agents connect with, and what roles of PostgreSQL may do.

Next: store/access/tokens.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from mainspring.model.access.actors import Actor
from mainspring.model.placement.token_binding import define_binding
from mainspring.model.words.names import check_name
from mainspring.store.access import tokens
from mainspring.store.access.tokens import Token
from mainspring.store.postgres import roles
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.roles import Kind


class Change(msgspec.Struct, frozen=True):
    """What was run, or would be, for a role of PostgreSQL."""

    role: str
    kind: Kind
    statements: list[str]
    done: bool


async def grant_role(conn: Connection, actor: Actor, kind: Kind, role: str, *, dry_run: bool = False) -> Change:
    """Give a role of PostgreSQL the rights of a kind, and those alone. `dry_run`: only say how."""
    return await _change(conn, kind, role, await roles.grant_statements(conn, kind, role), dry_run)


async def revoke_role(conn: Connection, actor: Actor, kind: Kind, role: str, *, dry_run: bool = False) -> Change:
    """Take from a role of this kind all rights on the schema."""
    return await _change(conn, kind, role, await roles.revoke_statements(conn, kind, role), dry_run)


async def _change(conn: Connection, kind: Kind, role: str, statements: list[str], dry_run: bool) -> Change:
    if not dry_run:
        await roles.run(conn, statements)
    return Change(role, kind, statements, not dry_run)


class NewToken(msgspec.Struct, frozen=True):
    id: int
    name: str
    token: str  # the secret, in this answer only: the database keeps its hash


async def create_token(
    conn: Connection,
    actor: Actor,
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


async def list_tokens(conn: Connection, actor: Actor) -> Sequence[Token]:
    return await tokens.listing(conn)


async def revoke_token(conn: Connection, actor: Actor, id: int) -> None:
    """Revoke a token, and the credentials that came from it."""
    await tokens.revoke(conn, id)
