"""Tokens: how agents, programs and people authenticate. Only a hash is stored; a lost token is replaced by a new one.

A single-use token is exchanged for a credential, which is revoked together with its token. The same agent process may
repeat the exchange, because an answer may be lost.
Next: store/access/sessions.py, server/agents/endpoint.py
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from mainspring.errors import TokenNotFound
from mainspring.model.access.actors import Actor, Role
from mainspring.model.placement.token_binding import TokenBinding
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import Batch, readable, views

PREFIX = "ms_"
NAME_TAKEN = "an agent of another token lives under this name; give this one another --name"


def new_secret() -> str:
    """256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    """256 random bits need no salt and no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class Token(msgspec.Struct, frozen=True):
    """A token as people see it, without its secret."""

    id: int
    name: str
    role: Role
    jobs: list[str]  # patterns of names that narrow the role; empty: all jobs
    namespaces: list[str]
    rate: float | None  # requests per second
    once: bool
    agents: list[str] | None  # patterns of names
    labels: list[str] | None
    created_by: str | None
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None  # first
    last_used_at: datetime | None  # by itself or by a credential that came from it
    revoked_at: datetime | None

    def acting(self, address: str | None = None, request_id: str | None = None) -> Actor:
        """Who acts when a request comes with this token."""
        return Actor(f"token:{self.name}", self.role, tuple(self.jobs), address, request_id, token=self.id)


_CREATE = """
    insert into mainspring.token
           (name, role, hash, expires_at, once, agents, labels, jobs, namespaces, rate, created_by)
    values ($1, $2, $3, mainspring.now() + $4::interval, $5, $6, $7, $8, $9, $10, $11) returning id
"""


async def create(
    conn: Connection,
    name: str,
    *,
    role: Role = Role.AGENT,
    jobs: Sequence[str] = (),
    namespaces: Sequence[str] = ("*",),
    rate: float | None = None,
    expires: timedelta | None = None,
    once: bool = False,
    binding: TokenBinding = TokenBinding(),  # noqa: B008 — frozen
    created_by: str | None = None,
) -> tuple[int, str]:
    """A new token: its id and its secret, which cannot be read again."""
    secret = new_secret()
    own = (jobs, namespaces, rate, created_by)
    id: int = await conn.fetchval(
        _CREATE, name, str(role), digest(secret), expires, once, binding.agents, binding.labels, *own
    )
    return id, secret


_COLUMNS = """
    t.id, t.name, t.role, t.jobs, t.namespaces, t.rate, t.once, t.agents, t.labels, t.created_by, t.created_at,
    t.expires_at, t.used_at, t.revoked_at,
    greatest(t.last_used_at, (select max(c.last_used_at) from mainspring.token c where c.parent = t.id)) as last_used_at
"""


def lives(token: str) -> str:
    """SQL: whether the token with the id `token` is valid, or there is none. A credential is void with its parent."""
    return f"""
        not exists (select from mainspring.token k left join mainspring.token p on p.id = k.parent
                     where k.id = {token} and (k.revoked_at is not null or p.revoked_at is not null
                                               or k.expires_at <= mainspring.now()))
    """


_FIND = f"""
    select {_COLUMNS} from mainspring.token t
     where t.hash = $1 and not (t.once and t.used_by is not null) and {lives("t.id")}
"""


async def find(conn: Connection, secret: str) -> Token | None:
    """The token with this secret, if it is valid now.

    The lookup is by hash: how long it takes says nothing about how much of a guess was right.
    """
    return next(iter(views(Token, await readable(conn, _FIND, digest(secret)))), None)


_NOTE_USED = """
    with due as (
        select id from mainspring.token
         where id = any ($1::integer[])
           and (last_used_at is null or last_used_at <= mainspring.now() - interval '1 minute')
           for update skip locked
    )
    update mainspring.token t set last_used_at = mainspring.now() from due where t.id = due.id
"""


async def note_used(conn: Connection, ids: Sequence[int]) -> None:
    """Note that these tokens were used; at most once a minute for each. Waits for no other transaction."""
    await conn.execute(_NOTE_USED, ids)


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
        update mainspring.token t
           set used_by = $2, used_at = coalesce(t.used_at, mainspring.now()), last_used_at = mainspring.now()
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
    secret = new_secret()
    row = await conn.fetchrow(_EXCHANGE, token, instance, name, digest(secret))
    if not row["allowed"]:
        return None
    return Admission(token, None) if row["credential"] is None else Admission(row["credential"], secret)


_REVOKE = """
    update mainspring.token set revoked_at = mainspring.now() where (id = $1::bigint or parent = $1::bigint)
       and revoked_at is null
    returning id
"""


async def revoke(conn: Connection, id: int) -> bool:
    """Revoke a token and its credentials; returns whether that is a change."""
    changed = bool(await conn.fetch(_REVOKE, id))
    if not changed:
        await get(conn, id)
    return changed


async def get(conn: Connection, id: int) -> Token:
    """A token by its number, valid or not."""
    rows = await readable(conn, f"select {_COLUMNS} from mainspring.token t where t.id = $1::bigint", id)
    for token in views(Token, rows):
        return token
    raise TokenNotFound(f"no token {id}; `mainspring token list` shows those there are", field="token")


_LISTING = f"""
    select {_COLUMNS} from mainspring.token t where t.parent is null and t.id > $1::bigint order by t.id limit $2
"""


async def listing(conn: Connection, *, after: int | None = None, limit: int | None = None) -> Batch[Token]:
    """All but credentials, the oldest first, from behind a number."""
    rows = await readable(conn, _LISTING, after or 0, limit)
    return Batch(views(Token, rows), rows[-1]["id"] if limit is not None and len(rows) == limit else None)


async def hold_admin_token(conn: Connection) -> None:
    """Let no other process make an admin token of its own until the caller's transaction ends."""
    await conn.execute("select from mainspring.work_lock where name = 'admin token' for update")


async def revoke_admin_tokens(conn: Connection, name: str) -> None:
    """Revoke the admin tokens of this name."""
    await conn.execute(
        """
        update mainspring.token set revoked_at = mainspring.now()
         where name = $1 and role = 'admin' and revoked_at is null
        """,
        name,
    )
