"""Make the application: its table, its handlers and its guard around the connections that it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mainspring.api import public, session
from mainspring.api.app import Api, Handler
from mainspring.api.guard import Authorize, Guard
from mainspring.api.origins import Origins
from mainspring.api.rows import ROWS
from mainspring.operations import Connections

HANDLERS: Mapping[str, Handler] = {
    "session.show": session.handle_show,
    "session.login": session.handle_login,
    "session.logout": session.handle_logout,
    "public.health": public.handle_health,
    "public.openapi": public.handle_openapi,
}


def make_api(
    connections: Connections,
    *,
    origins: Origins | None = None,
    authorize: Authorize | None = None,
    why_not_ready: Callable[[], str | None] = lambda: None,
) -> Api:
    origins = origins or Origins()
    guard = Guard(connections, origins, authorize=authorize)
    return Api(connections, ROWS, guard=guard, origins=origins, handlers=HANDLERS, why_not_ready=why_not_ready)
