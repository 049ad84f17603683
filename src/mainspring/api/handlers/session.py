"""Sessions of the console: log in with a one-time code or a token, see who one is, log out.

The secret of a session is in a cookie that no script can read; what changes something needs the CSRF value besides.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.api import idempotency
from mainspring.api.answers import Answer, answer
from mainspring.api.bodies import as_json, check_json_type, read
from mainspring.api.call import Call
from mainspring.api.parameters import from_body
from mainspring.errors import Unauthorized
from mainspring.model.access.actors import Actor, Role
from mainspring.operations import access
from mainspring.store.access.sessions import MOST, NewSession
from mainspring.store.postgres.connection import Connection


class SessionView(access.Who, frozen=True):
    """Who calls, and what requests that change something must carry."""

    server: str | None = None  # the name of the one that answers
    environment: str | None = None  # such as production, as its operator named it
    csrf: str | None = None  # for the header Mainspring-CSRF; null with a token, which needs none


async def show(conn: Connection, actor: Actor) -> SessionView:
    """Who am I: name, role, the jobs that I reach, and until when."""
    return _with_csrf(await access.who(conn, actor), None)


async def login(conn: Connection, actor: Actor, *, code: str | None = None, token: str | None = None) -> SessionView:
    """Log in to the console with the code of a link, which works once, or with a token. The answer sets a cookie."""
    raise NotImplementedError  # its handler sets the cookie


async def logout(conn: Connection, actor: Actor) -> None:
    """Log out: the session ends on every server."""
    await access.logout(conn, actor)


def _with_csrf(who: access.Who, csrf: str | None, call: Call | None = None) -> SessionView:
    server, environment = (None, None) if call is None else (call.api.server_name, call.api.environment)
    return SessionView(**msgspec.structs.asdict(who), server=server, environment=environment, csrf=csrf)


async def handle_show(call: Call) -> Answer:
    assert call.caller is not None
    call.check_query()
    async with call.api.connections.acquire() as conn:
        return await answer(_with_csrf(await access.who(conn, call.actor), call.caller.csrf, call), 200)


async def handle_login(call: Call) -> Answer:
    call.check_query()
    idempotency.key_of(call)  # one that is malformed is refused; a login is not replayed: decision 42
    data = await read(call.receive, call.headers)
    check_json_type(call.headers)
    call.api.origins.check_not_foreign(call.origin, call.headers)
    given: dict[str, Any] = from_body(call.row.shape, await as_json(data))
    call.api.guard.check_failures(call.origin)
    stranger = Actor("unknown", Role.VIEWER, address=call.origin.address, request_id=call.request_id)
    async with call.api.connections.acquire() as conn:
        try:
            made = await access.exchange_login(conn, stranger, **given)
        except Unauthorized:
            call.api.guard.count_failure(call.origin)
            raise
        view = _with_csrf(await access.who(conn, made.session.acting()), made.csrf, call)
    return await answer(view, 200, headers=[("Set-Cookie", _cookie(call, made))])


async def handle_logout(call: Call) -> Answer:
    assert call.caller is not None
    call.check_query()
    async with call.api.connections.acquire() as conn:
        await logout(conn, call.actor)
    call.api.guard.forget(call.caller.identity)
    return await answer(None, 204, headers=[("Set-Cookie", _cookie(call, None))])


def _cookie(call: Call, made: NewSession | None) -> str:
    """Under TLS its name makes browsers insist on Secure, and without a path prefix on this very host."""
    prefix = "" if not call.origin.is_secure else ("__Secure-" if call.base else "__Host-")
    value, age = ("", 0) if made is None else (made.secret, int(MOST.total_seconds()))
    name = f"{prefix}{call.origin.cookie}"
    parts = [f"{name}={value}", f"Path={call.base or '/'}", f"Max-Age={age}", "HttpOnly", "SameSite=Strict"]
    return "; ".join([*parts, "Secure"] if call.origin.is_secure else parts)
