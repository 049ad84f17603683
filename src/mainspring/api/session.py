"""Sessions of the console: log in with a one-time code or a token, see who one is, log out.

The secret of a session is in a cookie that no script can read; what changes something needs the CSRF value besides.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from mainspring.api.answers import Answer, answer
from mainspring.api.bodies import as_json, check_json_type, read
from mainspring.api.call import Call
from mainspring.api.guard import COOKIE
from mainspring.api.parameters import from_body
from mainspring.errors import Unauthorized, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.store.access import sessions, tokens
from mainspring.store.access.sessions import MOST, NewSession
from mainspring.store.postgres.connection import Connection
from mainspring.version import VERSION


class SessionView(msgspec.Struct, frozen=True):
    """Who calls."""

    actor: str
    role: Role
    jobs: list[str]  # patterns of names that narrow the role; empty: all jobs
    namespaces: list[str]
    expires_at: datetime | None
    csrf: str | None  # for the header Mainspring-CSRF; null with a token, which needs none
    version: str  # of the server
    time: datetime  # by the database's clock


async def show(conn: Connection, actor: Actor) -> SessionView:
    """Who am I: name, role, the jobs that I reach, and until when."""
    return await _view(conn, actor, None)


async def login(conn: Connection, actor: Actor, *, code: str | None = None, token: str | None = None) -> SessionView:
    """Log in to the console with the code of a link, which works once, or with a token. The answer sets a cookie."""
    raise NotImplementedError  # its handler sets the cookie


async def logout(conn: Connection, actor: Actor) -> None:
    """Log out: the session ends on every server."""


async def _view(conn: Connection, actor: Actor, csrf: str | None) -> SessionView:
    expires_at = None
    if actor.session is not None:
        session = await sessions.get(conn, actor.session)
        expires_at = None if session is None else session.expires_at
    elif actor.token is not None:
        expires_at = await tokens.expiry(conn, actor.token)
    now: datetime = await conn.fetchval("select mainspring.now()")
    return SessionView(actor.name, actor.role, list(actor.jobs), ["default"], expires_at, csrf, VERSION, now)


async def handle_show(call: Call) -> Answer:
    assert call.caller is not None
    async with call.api.connections.acquire() as conn:
        return await answer(await _view(conn, call.actor, call.caller.csrf), 200)


async def handle_login(call: Call) -> Answer:
    data = await read(call.receive, call.headers)
    check_json_type(call.headers)
    call.api.origins.check_not_foreign(call.origin, call.headers)
    given: dict[str, Any] = from_body(call.row.shape, await as_json(data))
    if len(given) != 1 or not all(given.values()):
        raise ValidationError("code: give the code of a login link, or a token; one of them", field="code")
    call.api.guard.check_failures(call.origin)
    async with call.api.connections.acquire() as conn:
        if "code" in given:
            made = await sessions.exchange(conn, given["code"], address=call.origin.address)
        else:
            made = await sessions.from_token(conn, given["token"], address=call.origin.address)
        if made is None:
            call.api.guard.count_failure(call.origin)
            what = "code: used, expired or unknown" if "code" in given else "token: unknown, expired or revoked"
            raise Unauthorized(f"{what}; `mainspring login` makes another link", field=next(iter(given)))
        session = made.session
        actor = Actor(session.actor, session.role, tuple(session.jobs), token=session.token, session=session.id)
        view = await _view(conn, actor, made.csrf)
    return await answer(view, 200, headers=[("Set-Cookie", _cookie(call, made))])


async def handle_logout(call: Call) -> Answer:
    assert call.caller is not None
    if call.actor.session is not None:
        async with call.api.connections.acquire() as conn:
            await sessions.revoke(conn, call.actor.session)
        call.api.guard.forget(call.caller.identity)
    return await answer(None, 204, headers=[("Set-Cookie", _cookie(call, None))])


def _cookie(call: Call, made: NewSession | None) -> str:
    """Under TLS its name makes browsers insist on Secure, and without a path prefix on this very host."""
    prefix = "" if not call.origin.is_secure else ("__Secure-" if call.base else "__Host-")
    value, age = ("", 0) if made is None else (made.secret, int(MOST.total_seconds()))
    parts = [f"{prefix}{COOKIE}={value}", f"Path={call.base or '/'}", f"Max-Age={age}", "HttpOnly", "SameSite=Strict"]
    return "; ".join([*parts, "Secure"] if call.origin.is_secure else parts)
