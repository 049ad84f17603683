"""The HTTP API as a part of the user's own web application, behind its login.

    web = FastAPI(lifespan=app.lifespan)
    web.mount("/mainspring", mainspring.asgi(app, authorize=who))

Next: api/app.py
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mainspring.sdk.app import App

if TYPE_CHECKING:
    from mainspring.api.access.guard import Authorize
    from mainspring.api.app import Api


class Mounted:
    """An ASGI application over the database of `app`, which it opens at the first request if nobody has."""

    def __init__(self, app: App, authorize: Authorize) -> None:
        self._app = app
        self._authorize = authorize
        self._api: Api | None = None
        self._opening = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        api = self._api if self._api is not None else await self._open()
        await api(scope, receive, send)

    async def _open(self) -> Api:
        """Until the application closes its database; a later request opens both again."""
        from mainspring.api.make import make_api

        async with self._opening:
            if self._api is not None:
                return self._api
            pool = (await self._app.opened_database()).for_api()
            api = self._api = make_api(pool, authorize=self._authorize)

            async def close() -> None:
                self._api = None
                await api.close()
                await pool.close()

            self._app.at_close(close)
            return api


def asgi(app: App, *, authorize: Authorize) -> Mounted:
    """The HTTP API, to be mounted in FastAPI, Starlette or Django.

    `authorize(scope)` says who calls: `Access(actor, role, jobs)`, or None for nobody. It may be async. There is no
    login page of ours then. A browser's requests that change something need the header `Mainspring-CSRF`, whose value
    `GET /session` tells.
    """
    return Mounted(app, authorize)
