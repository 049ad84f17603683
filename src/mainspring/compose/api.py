"""API: the ASGI application of a process, from its settings, its database and its server, if it is one.

Next: front/http_server.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from mainspring.config import Settings
from mainspring.errors import MainspringError
from mainspring.front.asgi import App, health_only
from mainspring.server.server import Server
from mainspring.store.postgres.database import Database

LOOK_EVERY = 2.0  # seconds between two looks at PostgreSQL, where no server of ours does it


class Api(NamedTuple):
    """`end_streams` is called when the process begins to stop; `close` when no request is under way any more."""

    app: App
    end_streams: Callable[[], object]
    close: Callable[[], Awaitable[None]]


def make_api(settings: Settings, database: Database, server: Server | None = None) -> Api:
    """Without a `server` it needs only PostgreSQL. It has a pool of its own."""
    pool = database.for_api()
    if server is not None:
        return Api(health_only(lambda: server.server_lease.why_not), lambda: None, pool.close)
    reachability = Reachability(pool)

    async def close() -> None:
        await reachability.close()
        await pool.close()

    return Api(health_only(lambda: reachability.why_not), lambda: None, close)


class Reachability:
    """Whether PostgreSQL answers, known ahead: who asks whether the process is ready must not wait for it."""

    def __init__(self, database: Database) -> None:
        self.why_not: str | None = None
        self._database = database
        self._looking = asyncio.create_task(self._look(), name="mainspring api reachability")

    async def _look(self) -> None:
        while True:
            try:
                async with self._database.acquire() as conn:
                    await conn.fetchval("select 1")
                self.why_not = None
            except MainspringError as error:
                self.why_not = error.message
            await asyncio.sleep(LOOK_EVERY)

    async def close(self) -> None:
        self._looking.cancel()
        await asyncio.wait([self._looking])
