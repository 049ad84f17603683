"""Console sessions: a one-time login code is exchanged for the secret of a cookie. Only hashes are stored.

Codes and sessions are rows, so they hold on every server, and a revoked one is void everywhere at once. What was made
with a token ends with that token. All times are the database's.
Next: store/access/audit.py
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from mainspring.errors import NotFound
from mainspring.model.access.actors import Actor, Role
from mainspring.store.access.tokens import digest, lives
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import Batch, readable, views

CODE_LIFETIME = timedelta(minutes=10)
IDLE = timedelta(hours=12)  # a session that is not used for so long ends
MOST = timedelta(days=7)  # and so does one that is as old as this


class Session(msgspec.Struct, frozen=True):
    """A session as people see it, without its secret."""

    id: int
    actor: str  # whose login it came from: a token or `os:user@host`
    role: Role
    jobs: list[str]  # patterns of names that narrow the role; empty: all jobs
    token: int | None  # which it ends with
    address: str | None
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime

    def acting(self, address: str | None = None, request_id: str | None = None) -> Actor:
        """Who acts when a request comes with the cookie of this session."""
        name, jobs = f"session:{self.id}", tuple(self.jobs)
        return Actor(name, self.role, jobs, address, request_id, token=self.token, session=self.id)


class NewSession(msgspec.Struct, frozen=True):
    session: Session
    secret: str  # for the cookie, in this answer only
    csrf: str


def csrf(secret: str) -> str:
    """What requests that change something must carry beside the cookie: a script of another origin can read neither.

    It is derived from the cookie's secret, so the database does not hold it.
    """
    return hmac.digest(secret.encode("utf-8", "surrogateescape"), b"mainspring csrf", "sha256").hex()


_CREATE_CODE = """
    insert into mainspring.login_code (hash, actor, role, jobs, token_id, expires_at)
    values ($1, $2, $3, $4, $5, mainspring.now() + $6::interval)
    returning expires_at
"""


async def create_code(
    conn: Connection, actor: str, *, role: Role, jobs: Sequence[str] = (), token: int | None = None
) -> tuple[str, datetime]:
    """A one-time code for a session in this name and role, and when it expires."""
    code = secrets.token_urlsafe(32)
    expires_at = await conn.fetchval(_CREATE_CODE, digest(code), actor, str(role), jobs, token, CODE_LIFETIME)
    return code, expires_at


_COLUMNS = "s.id, s.actor, s.role, s.jobs, s.token_id as token, s.address, s.created_at, s.last_seen_at, s.expires_at"

_INSERT = f"""
    insert into mainspring.console_session as s (hash, actor, role, jobs, token_id, address, expires_at)
    select $1, origin.actor, origin.role, origin.jobs, origin.token_id, $2, mainspring.now() + $3::interval from origin
    returning {_COLUMNS}
"""

# Of two uses at the same time the second waits for the lock, and finds no row.
_EXCHANGE = f"""
    with origin as (
        delete from mainspring.login_code c
         where c.hash = $4 and c.expires_at > mainspring.now() and {lives("c.token_id")}
        returning c.actor, c.role, c.jobs, c.token_id
    )
    {_INSERT}
"""

_FROM_TOKEN = f"""
    with origin as (
        select 'token:' || t.name as actor, t.role, t.jobs, t.id as token_id from mainspring.token t
         where t.hash = $4 and t.role in ('viewer', 'submitter', 'operator', 'admin') and {lives("t.id")}
    )
    {_INSERT}
"""


async def exchange(conn: Connection, code: str, *, address: str | None = None) -> NewSession | None:
    """A session for a login code, which is used up by it; None if the code is unknown, used or expired."""
    return await _open(conn, _EXCHANGE, code, address)


async def from_token(conn: Connection, token: str, *, address: str | None = None) -> NewSession | None:
    """A session for the secret of a token; None if it is not valid, or not one that a person works with."""
    return await _open(conn, _FROM_TOKEN, token, address)


async def _open(conn: Connection, statement: str, given: str, address: str | None) -> NewSession | None:
    secret = secrets.token_urlsafe(32)
    row = await conn.fetchrow(statement, digest(secret), address, IDLE, digest(given))
    return None if row is None else NewSession(msgspec.convert(dict(row), Session), secret, csrf(secret))


_VALID = f"s.expires_at > mainspring.now() and {lives('s.token_id')}"

# A request never waits for another that moves the same expiry.
_FIND = f"""
    with found as materialized (
        select {_COLUMNS} from mainspring.console_session s where s.hash = $1 and {_VALID}
    ), due as (
        select s.id from mainspring.console_session s
         where s.id = (select id from found) and s.last_seen_at <= mainspring.now() - interval '1 minute'
           for update skip locked
    ), seen as (
        update mainspring.console_session s
           set last_seen_at = mainspring.now(),
               expires_at = least(mainspring.now() + $2::interval, s.created_at + $3::interval)
          from due where s.id = due.id
    )
    select * from found
"""


async def find(conn: Connection, secret: str) -> Session | None:
    """The session of a cookie, if it is valid now. Its expiry moves on, at most once a minute."""
    rows = await readable(conn, _FIND, digest(secret), IDLE, MOST)
    return next(iter(views(Session, rows)), None)


async def get(conn: Connection, id: int) -> Session | None:
    """A session by its number, if it is valid now."""
    rows = await readable(
        conn, f"select {_COLUMNS} from mainspring.console_session s where s.id = $1::bigint and {_VALID}", id
    )
    return next(iter(views(Session, rows)), None)


async def revoke(conn: Connection, id: int) -> Session:
    """End a session. Raises NotFound if there is none, or it has ended."""
    row = await conn.fetchrow(
        f"delete from mainspring.console_session s where s.id = $1::bigint and {_VALID} returning {_COLUMNS}", id
    )
    if row is None:
        raise NotFound(f"no session {id}; `mainspring sessions list` shows those there are", field="session")
    return msgspec.convert(dict(row), Session)


_LISTING = f"""
    select {_COLUMNS} from mainspring.console_session s where {_VALID} and s.id > $1::bigint order by s.id limit $2
"""


async def listing(conn: Connection, *, after: int | None = None, limit: int | None = None) -> Batch[Session]:
    """The sessions that are valid now, the oldest first, from behind a number."""
    rows = await readable(conn, _LISTING, after or 0, limit)
    return Batch(views(Session, rows), rows[-1]["id"] if limit is not None and len(rows) == limit else None)
