"""Access: tokens, logins and sessions of the console, the audit, and what roles of PostgreSQL may do.

A token or login never gives more than its maker has. An admin that is narrowed to some jobs sees, makes and revokes
only what is within them.
Next: store/access/tokens.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from mainspring.errors import Forbidden, NotFound, TokenNotFound, Unauthorized, ValidationError, shown
from mainspring.model.access.actors import Actor, Role
from mainspring.model.access.patterns import check_patterns, is_within
from mainspring.model.placement.token_binding import define_binding
from mainspring.model.words.durations import seconds
from mainspring.model.words.globs import several
from mainspring.model.words.instants import check_instant
from mainspring.model.words.names import check_name, check_text
from mainspring.operations import pages
from mainspring.operations.pages import Page
from mainspring.operations.parts import by_name
from mainspring.store.access import audit, sessions, tokens
from mainspring.store.access.audit import Entry
from mainspring.store.access.sessions import NewSession, Session
from mainspring.store.access.tokens import Token
from mainspring.store.postgres import roles
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.roles import Kind
from mainspring.version import VERSION

MIN_RATE, MAX_RATE = 0.001, 1_000_000.0  # requests per second
NAMESPACES = ("*", "default")
FOR_PEOPLE = (Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.ADMIN)  # the others have no console

# ── tokens ──────────────────────────────────────────────────────────────────────────────────────


class NewToken(msgspec.Struct, frozen=True):
    id: int
    name: str
    role: Role
    token: str | None  # the secret, in this answer only; null if the answer is repeated


async def create_token(
    conn: Connection,
    actor: Actor,
    name: str,
    *,
    role: Role = Role.AGENT,
    jobs: Sequence[str] = (),
    namespaces: Sequence[str] = ("*",),
    expires: float | str | None = None,
    rate: float | None = None,
    once: bool = False,
    agents: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> NewToken:
    """Make a token. The answer has its secret, which is shown once.

    It ends after `expires`, seconds or text such as "30d"; without it, when it is revoked.

    `jobs` are patterns of names that narrow its role, `rate` is how many requests per second it may make.
    For agents: with `once`, the first agent exchanges it for a credential and no other agent can use it. `agents` are
    patterns of the names that its agents may have, `labels` of their labels; without any, all are allowed.
    """
    role = Role(role)
    narrowed = check_patterns(jobs, field="jobs")
    _check_token(role, narrowed, namespaces, rate, is_for_agents=bool(once or agents or labels))
    lifetime = None if expires is None else timedelta(seconds=seconds(expires, field="expires", at_least=1.0))
    _check_rights(actor, role, narrowed, "token")
    async with conn.transaction():
        id, secret = await tokens.create(
            conn,
            check_name(name, field="name"),
            role=role,
            jobs=narrowed,
            namespaces=namespaces,
            rate=rate,
            expires=lifetime,
            once=once,
            binding=define_binding(agents, labels),
            created_by=actor.name,
        )
        await audit.changed(conn, actor, "token.create", f"token:{id}", None, await tokens.get(conn, id))
    return NewToken(id, name, role, secret)


def _check_token(
    role: Role, jobs: Sequence[str], namespaces: Sequence[str], rate: float | None, *, is_for_agents: bool
) -> None:
    if is_for_agents and role is not Role.AGENT:
        raise ValidationError(f"role: once, agents and labels are for tokens of agents, not of a {role}", field="role")
    if jobs and role not in FOR_PEOPLE:
        raise ValidationError(f"jobs: a token with the role {role} is not narrowed by jobs", field="jobs")
    if isinstance(namespaces, str) or not namespaces or not set(namespaces) <= set(NAMESPACES):
        raise ValidationError(
            f"namespaces: {shown(namespaces)}; there are {' and '.join(NAMESPACES)}", field="namespaces"
        )
    if rate is not None and not MIN_RATE <= rate <= MAX_RATE:
        raise ValidationError(
            f"rate: {shown(rate)}; give requests per second, {MIN_RATE:g} to {MAX_RATE:,.0f}", field="rate"
        )


def _check_rights(actor: Actor, role: Role, jobs: Sequence[str], what: str) -> None:
    """Forbidden unless the actor is an admin whose rights contain those of the role."""
    _check_admin(actor, f"make a {what}")
    if not actor.jobs:
        return
    reached = ", ".join(actor.jobs[:3])
    if role not in FOR_PEOPLE:  # an agent runs the tasks of any job, and metrics are those of all jobs
        raise Forbidden(
            f"{actor.name} is an admin of {reached} only; a {what} with the role {role} needs an admin of all jobs",
            field="role",
        )
    if not is_within(jobs, actor.jobs):
        given = ", ".join(jobs[:3]) or "all jobs"
        raise Forbidden(
            f"{actor.name} is an admin of {reached} only and cannot make a {what} for {given}; narrow its jobs",
            field="jobs",
        )


def _check_admin(actor: Actor, what: str) -> None:
    if actor.role is not Role.ADMIN:
        raise Forbidden(f"{actor.name} is {actor.role}; to {what} takes the role admin")


async def list_tokens(
    conn: Connection, actor: Actor, *, cursor: str | None = None, limit: int = pages.LIMIT
) -> Page[Token]:
    """The tokens there are, ended ones too, without their secrets."""
    _check_admin(actor, "list tokens")
    return await by_name.page(
        lambda after, count: tokens.listing(conn, after=after, limit=count),
        lambda token: token.id,
        lambda token: _reaches(actor, token),
        filters={"list": "tokens"},
        cursor=cursor,
        limit=limit,
        kind=pages.Number,
    )


async def revoke_token(conn: Connection, actor: Actor, id: int) -> None:
    """Revoke a token, and the credentials and sessions that came from it."""
    _check_admin(actor, "revoke a token")
    async with conn.transaction():
        token = await tokens.get(conn, id)
        if not _reaches(actor, token):
            raise TokenNotFound(f"no token {id} within {', '.join(actor.jobs[:3])}", field="token")
        if await tokens.revoke(conn, id):
            await audit.record(conn, actor, "token.revoke", f"token:{id}", {"name": token.name, "role": token.role})


def _reaches(actor: Actor, other: Token | Session) -> bool:
    return not actor.jobs or (other.role in FOR_PEOPLE and is_within(other.jobs, actor.jobs))


# ── logins and sessions ─────────────────────────────────────────────────────────────────────────


class NewLogin(msgspec.Struct, frozen=True):
    """A one-time code, for a link such as http://127.0.0.1:7070/login#CODE."""

    code: str | None  # in this answer only; null if the answer is repeated
    role: Role
    jobs: tuple[str, ...]
    expires_at: datetime


async def create_login(
    conn: Connection, actor: Actor, *, role: Role | None = None, jobs: Sequence[str] | None = None
) -> NewLogin:
    """Make a one-time code for the console, in the caller's name: with its own role and jobs, or with less."""
    role = actor.role if role is None else Role(role)
    narrowed = actor.jobs if jobs is None else check_patterns(jobs, field="jobs")
    _check_rights(actor, role, narrowed, "login")
    if role not in FOR_PEOPLE:
        raise ValidationError(f"role: the console has nothing for the role {role}", field="role")
    async with conn.transaction():
        code, expires_at = await sessions.create_code(conn, actor.name, role=role, jobs=narrowed, token=actor.token)
        await audit.record(conn, actor, "login.create", f"role:{role}", {"jobs": narrowed} if narrowed else None)
    return NewLogin(code, role, narrowed, expires_at)


async def exchange_login(
    conn: Connection, actor: Actor, *, code: str | None = None, token: str | None = None
) -> NewSession:
    """Open a session of the console for a login code or a token. Unauthorized if it is not valid.

    Of `actor`, who is not known yet, only the address and the request id count.
    """
    if (code is None) == (token is None):
        raise ValidationError("code, token: give one of them", field="code")
    async with conn.transaction():
        if code is not None:
            made = await sessions.exchange(conn, code, address=actor.address)
        else:
            assert token is not None
            made = await sessions.from_token(conn, token, address=actor.address)
        if made is None:
            raise Unauthorized(
                "this link was used or has expired; `mainspring login` makes another"
                if code is not None
                else "no valid token for the console; `mainspring token create NAME --role viewer` makes one",
                field="token" if code is None else "code",
            )
        opened = made.session
        known = Actor(opened.actor, opened.role, tuple(opened.jobs), actor.address, actor.request_id, opened.token)
        await audit.record(conn, known, "session.create", f"session:{opened.id}")
    return made


async def list_sessions(
    conn: Connection, actor: Actor, *, cursor: str | None = None, limit: int = pages.LIMIT
) -> Page[Session]:
    """The sessions of the console that are valid now."""
    _check_admin(actor, "list sessions")
    return await by_name.page(
        lambda after, count: sessions.listing(conn, after=after, limit=count),
        lambda session: session.id,
        lambda session: _reaches(actor, session),
        filters={"list": "sessions"},
        cursor=cursor,
        limit=limit,
        kind=pages.Number,
    )


async def revoke_session(conn: Connection, actor: Actor, id: int) -> None:
    """End a session; its next request is refused."""
    _check_admin(actor, "revoke a session")
    async with conn.transaction():
        session = await sessions.revoke(conn, id)
        if not _reaches(actor, session):
            raise NotFound(f"no session {id} within {', '.join(actor.jobs[:3])}", field="session")
        await audit.record(conn, actor, "session.revoke", f"session:{id}", {"actor": session.actor})


async def logout(conn: Connection, actor: Actor) -> None:
    """End the session that the actor came with. An actor with a token has none."""
    if actor.session is None:
        return
    async with conn.transaction():
        await sessions.revoke(conn, actor.session)
        await audit.record(conn, actor, "session.end", f"session:{actor.session}")


class Who(msgspec.Struct, frozen=True):
    """Who asks, as the database knows it."""

    name: str
    role: Role
    jobs: tuple[str, ...]  # patterns; empty: all jobs
    namespace: str
    token: int | None
    session: int | None
    expires_at: datetime | None  # of the session, else of the token; None: never
    version: str
    now: datetime  # the database's time


async def who(conn: Connection, actor: Actor) -> Who:
    expires_at = None
    if actor.session is not None:
        session = await sessions.get(conn, actor.session)
        expires_at = None if session is None else session.expires_at
    elif actor.token is not None:
        expires_at = (await tokens.get(conn, actor.token)).expires_at
    now = await conn.fetchval("select mainspring.now()")
    held = (actor.token, actor.session)
    return Who(actor.name, actor.role, actor.jobs, "default", *held, expires_at, VERSION, now)


# ── the audit ───────────────────────────────────────────────────────────────────────────────────


async def list_audit(
    conn: Connection,
    asking: Actor,
    *,
    actor: Sequence[str] = (),
    action: Sequence[str] = (),
    subject: Sequence[str] = (),
    since: datetime | None = None,
    limit: int = pages.LIMIT,
    cursor: str | None = None,
) -> Page[Entry]:
    """Who did what, the newest first. `actor`, `action` and `subject` may have `*`: `task.*`, `token:ci`, `job:report`.
    Several values of one mean any of them.

    For admins of all jobs: an entry does not say which job it is about.
    """
    _check_admin(asking, "read the audit")
    if asking.jobs:
        raise Forbidden(f"{asking.name} is an admin of {', '.join(asking.jobs[:3])} only; the audit is of all jobs")
    if since is not None:
        check_instant(since, field="since")
    given = {"actor": several(actor), "action": several(action), "subject": several(subject)}
    for name, values in given.items():
        for value in values:
            check_text(value, field=name, limit=audit.MOST_TEXT)
    filters = {"list": "audit", **given, "since": since}
    before = pages.position(cursor, filters, pages.Number)
    found = await audit.search(conn, **given, since=since, before=before, limit=pages.check_limit(limit))
    following = None if found.before is None else pages.cursor(filters, found.before)
    return Page(found.entries, following, found.searched_to)


# ── roles of PostgreSQL ─────────────────────────────────────────────────────────────────────────


_RIGHTS = "change what roles of PostgreSQL may do"


class Change(msgspec.Struct, frozen=True):
    """What was run, or would be, for a role of PostgreSQL."""

    role: str
    kind: Kind
    statements: list[str]
    done: bool


async def grant_role(conn: Connection, actor: Actor, kind: Kind, role: str, *, dry_run: bool = False) -> Change:
    """Give a role of PostgreSQL the rights of a kind, and those alone. `dry_run`: only say how."""
    _check_admin(actor, _RIGHTS)
    statements = await roles.grant_statements(conn, kind, role)
    return await _change(conn, actor, "role.grant", Change(role, kind, statements, not dry_run))


async def revoke_role(conn: Connection, actor: Actor, kind: Kind, role: str, *, dry_run: bool = False) -> Change:
    """Take from a role of this kind all rights on the schema."""
    _check_admin(actor, _RIGHTS)
    statements = await roles.revoke_statements(conn, kind, role)
    return await _change(conn, actor, "role.revoke", Change(role, kind, statements, not dry_run))


async def _change(conn: Connection, actor: Actor, action: str, change: Change) -> Change:
    if change.done:
        async with conn.transaction():
            await roles.run(conn, change.statements)
            await audit.record(conn, actor, action, f"role:{change.role}", {"kind": change.kind})
    return change
