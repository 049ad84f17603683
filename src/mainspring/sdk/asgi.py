"""The HTTP API as a part of the user's own web application, behind its login.

    web = FastAPI(lifespan=app.lifespan)
    web.mount("/mainspring", mainspring.asgi(app, authorize=who))

Next: api/app.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mainspring.model.words.durations import seconds
from mainspring.sdk.app import App

if TYPE_CHECKING:
    from mainspring.api.access.guard import Authorize
    from mainspring.api.app import Api


class Mounted:
    """An ASGI application over the database of `app`, which it opens at the first request if it is not open."""

    def __init__(self, app: App, authorize: Authorize, options: _Options) -> None:
        self._app = app
        self._authorize = authorize
        self._options = options
        self._api: Api | None = None
        self._opening = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        api = self._api if self._api is not None else await self._open()
        await api(scope, receive, send)

    async def _open(self) -> Api:
        """Until the application closes its database; a later request opens both again."""
        from mainspring.api.make import make_api
        from mainspring.compose.secret_keys import SecretKeys

        async with self._opening:
            if self._api is not None:
                return self._api
            pool = (await self._app.opened_database()).for_api()
            keys = SecretKeys(self._app.settings())
            api = self._api = make_api(pool, authorize=self._authorize, keys=keys, **self._options.as_arguments())

            async def close() -> None:
                self._api = None
                await api.close()
                await pool.close()

            self._app.at_close(close)
            return api


@dataclass(frozen=True)
class _Options:
    """What the settings of the same names are for a server of ours."""

    public_url: str | None
    allowed_hosts: Sequence[str]
    trusted_proxies: Sequence[str]
    cors_origins: Sequence[str]
    keep: float | None
    degraded_after: float
    rate: float
    streams: int
    streams_per_caller: int

    def as_arguments(self) -> dict[str, Any]:
        from mainspring.api.access.bounds import Bounds
        from mainspring.api.access.origins import Origins

        origins = Origins(
            public_url=self.public_url,
            hosts=self.allowed_hosts,
            trusted=self.trusted_proxies,
            cors=self.cors_origins,
            any_host=not self.allowed_hosts,
        )
        bounds = Bounds(rate=self.rate, streams=self.streams, streams_per_caller=self.streams_per_caller)
        keep = None if self.keep is None else timedelta(seconds=self.keep)
        return {"origins": origins, "bounds": bounds, "keep": keep, "degraded_after": self.degraded_after}


def asgi(
    app: App,
    *,
    authorize: Authorize,
    public_url: str | None = None,
    allowed_hosts: Sequence[str] = (),
    trusted_proxies: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    keep: float | str | None = None,
    degraded_after: float | str = 60.0,
    rate: float = 200.0,
    streams: int = 500,
    streams_per_caller: int = 20,
) -> Mounted:
    """The HTTP API, to be mounted in FastAPI, Starlette or Django.

    `authorize(scope)` says who calls: `Access(actor, role, jobs)`, or None for an unknown caller. It may be async. The
    login page is left out then. A browser's requests that change something need the header `Mainspring-CSRF`, with the
    value that `GET /session` returns.

    Any name in the Host header is taken, unless `allowed_hosts` names those that are. `keep` is how long the servers
    keep what has ended, for `GET /check`. `rate` is in requests a second of one actor. The other options are settings
    of the same names.
    """
    if not app.has_database:
        from mainspring.sdk.backends.over_http import needs_database

        raise needs_database("mainspring.asgi()")
    options = _Options(
        public_url,
        tuple(allowed_hosts),
        tuple(trusted_proxies),
        tuple(cors_origins),
        None if keep is None else seconds(keep, field="keep"),
        seconds(degraded_after, field="degraded_after"),
        rate,
        streams,
        streams_per_caller,
    )
    return Mounted(app, authorize, options)
