"""Tokens: how agents authenticate. Only a hash is stored; a lost token is replaced by a new one.

A single-use token is exchanged for a credential, which is revoked together with its token. The same agent process may
repeat the exchange, because an answer may be lost.
Next: server/agents/endpoint.py
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from mainspring.errors import TokenNotFound
from mainspring.model.placement.token_binding import TokenBinding
from mainspring.store.postgres.database import Connection

PREFIX = "ms_"
NAME_TAKEN = "an agent of another token lives under this name; give this one another --name"


def digest(secret: str) -> bytes:
    """256 random bits need no salt and no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class Token(NamedTuple):
    """A token as people see it, without its secret."""

    id: int
    name: str
    role: str
    once: bool
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None
    revoked_at: datetime | None
    agents: list[str] | None  # patterns of names
    labels: list[str] | None


async def create(
    conn: Connection,
    name: str,
    *,
    role: str = "agent",
    expires: timedelta | None = None,
    once: bool = False,
    binding: TokenBinding = TokenBinding(),  # noqa: B008 — frozen
) -> tuple[int, str]:
    """A new token: its id and its secret, which cannot be read again."""
    secret = PREFIX + secrets.token_urlsafe(32)
    id: int = await conn.fetchval(
        """
        insert into mainspring.token (name, role, hash, expires_at, once, agents, labels)
        values ($1, $2, $3, mainspring.now() + $4::interval, $5, $6, $7) returning id
        """,
        name,
        role,
        digest(secret),
        expires,
        once,
        binding.agents,
        binding.labels,
    )
    return id, secret


# A credential is void once its token is revoked.
_VALID = """
    select t.id, t.once from mainspring.token t left join mainspring.token p on p.id = t.parent
     where t.hash = $1 and t.role = 'agent' and t.revoked_at is null and p.revoked_at is null
       and (t.expires_at is null or t.expires_at > mainspring.now())
"""


async def check(conn: Connection, secret: str) -> int | None:
    """The id of the token, if it is valid for an agent."""
    row = await conn.fetchrow(_VALID, digest(secret))
    return None if row is None else int(row["id"])


_EXCHANGE = """
    with used as (
        update mainspring.token t set used_by = $2, used_at = coalesce(t.used_at, mainspring.now())
         where t.id = $1 and (not t.once or t.used_by is null or t.used_by = $2)
        returning t.id, t.once
    ), credential as (
        insert into mainspring.token (name, role, hash, parent)
        select $3, 'agent', $4, id from used where once
        returning id
    )
    select (select id from credential) as credential, (select true from used) as allowed
"""


# A credential has the binding of its token, and counts as that token. An agent in a server's process has none.
_TAKEN = """
    exists (select from mainspring.agent a left join mainspring.token t on t.id = a.token_id
             where a.name = {name} and a.ended_at is null and a.lease_until > mainspring.now()
               and a.instance is distinct from {instance} and coalesce(t.parent, t.id) is distinct from root.id)
"""
_BINDING = f"""
    select root.agents, root.labels, {_TAKEN.format(name="$2", instance="$3")} as taken
      from mainspring.token own join mainspring.token root on root.id = coalesce(own.parent, own.id)
     where own.id = $1
"""


async def why_not(
    conn: Connection, token: int, name: str, instance: str, labels: Mapping[str, str], offers: Mapping[str, float]
) -> str | None:
    """Why an agent may not come under this name with these labels; None if it may."""
    row = await conn.fetchrow(_BINDING, token, name, instance)
    if row is None:
        return "its token is gone"
    binding = TokenBinding(*(None if given is None else tuple(given) for given in (row["agents"], row["labels"])))
    reason = binding.why_not(name, labels, offers)
    return NAME_TAKEN if reason is None and row["taken"] else reason


_CONTESTED = f"""
    select {_TAKEN.format(name="own.name", instance="own.instance")}
      from mainspring.agent own join mainspring.token k on k.id = own.token_id
      join mainspring.token root on root.id = coalesce(k.parent, k.id)
     where own.session = $1
"""


async def is_contested(conn: Connection, session: int) -> bool:
    """Whether another token has a living agent of the same name, now that this session is open.

    Two that came at once may both have found the name free. Whichever asks last finds the other: never do both stay.
    A lock instead would let a frozen server keep agents out.
    """
    return bool(await conn.fetchval(_CONTESTED, session))


class Admission(NamedTuple):
    token: int
    credential: str | None  # replaces the token from now on


async def admit(conn: Connection, token: int, instance: str, name: str) -> Admission | None:
    """Admit an agent process with this token; None: another process has used it up."""
    secret = PREFIX + secrets.token_urlsafe(32)
    row = await conn.fetchrow(_EXCHANGE, token, instance, name, digest(secret))
    if not row["allowed"]:
        return None
    return Admission(token, None) if row["credential"] is None else Admission(row["credential"], secret)


async def revoke(conn: Connection, id: int) -> None:
    """Revoke a token and its credentials."""
    revoked = await conn.fetchval(
        """
        update mainspring.token set revoked_at = coalesce(revoked_at, mainspring.now())
         where id = $1 or parent = $1 returning id
        """,
        id,
    )
    if revoked is None:
        raise TokenNotFound(f"no token {id}; `mainspring token list` shows those there are", field="token")


async def listing(conn: Connection) -> Sequence[Token]:
    rows = await conn.fetch(
        """
        select id, name, role, once, created_at, expires_at, used_at, revoked_at, agents, labels from mainspring.token
         where parent is null order by id
        """
    )
    return [Token(*row) for row in rows]
