"""API: the ASGI application of a process, from its settings, its database and its server, if it is one.

Next: api/app.py
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from mainspring.api.access.bounds import Bounds
from mainspring.api.access.origins import Origins
from mainspring.api.handlers.scrape import Scrape
from mainspring.api.make import make_api as make_application
from mainspring.api.metering import tallies
from mainspring.api.metering.text import Source
from mainspring.compose.secret_keys import SecretKeys
from mainspring.config import Settings
from mainspring.errors import Busy, MainspringError
from mainspring.front.asgi import App
from mainspring.operations.parts.giving_way import Fires, GivingWay
from mainspring.server.metrics import ServerMetrics
from mainspring.server.server import Server
from mainspring.store.postgres import migrate
from mainspring.store.postgres.database import Connection, Database

LOOK_EVERY = 2.0  # seconds between two looks at PostgreSQL, where no server of ours does it


class Api(NamedTuple):
    """`end_streams` is called when the process begins to stop; `close` when no request is under way any more."""

    app: App
    end_streams: Callable[[], object]
    close: Callable[[], Awaitable[None]]


def make_api(settings: Settings, database: Database, server: Server | None = None, fires: Fires | None = None) -> Api:
    """Without a `server` it needs only PostgreSQL. It has a pool of its own. `fires`: of the agent on this loop."""
    pool = database.for_api()
    giving_way = None if fires is None else GivingWay(fires)
    pool.give_way = None if giving_way is None else giving_way.wait
    reachability = Reachability(pool) if server is None else None
    scrape = Scrape(pool, _sources(pool, server), server_id=lambda: None if server is None else server.server_lease.id)
    made = make_application(
        pool,
        origins=Origins(
            public_url=settings.public_url,
            hosts=settings.allowed_hosts,
            trusted=settings.trusted_proxies,
            cors=settings.cors_origins,
        ),
        why_not_ready=_why_not(server) if reachability is None else lambda: reachability.why_not,
        scrape=scrape,
        degraded_after=settings.degraded_after,
        skew_limit=settings.skew_limit,
        server_name=settings.server_name or socket.gethostname(),
        environment=settings.environment,
        keep=timedelta(seconds=max(settings.keep_succeeded, settings.keep_failed)),
        bounds=Bounds(
            rate=settings.api_rate,
            failures=settings.api_failures,
            streams=settings.api_streams,
            streams_per_caller=settings.api_streams_per_token,
        ),
        giving_way=giving_way,
        keys=SecretKeys(settings),
    )
    if server is not None:
        server.recorder.on_ended.connect(lambda endings: made.hint([ending.task for ending in endings]))

    async def close() -> None:
        if reachability is not None:
            await reachability.close()
        await made.close()
        await pool.close()

    return Api(made, made.stopping.set, close)


def _why_not(server: Server | None) -> Callable[[], str | None]:
    assert server is not None
    return lambda: server.server_lease.why_not


def _sources(pool: Database, server: Server | None) -> list[Source]:
    """What a scrape of this process tells, beside what the API itself counts."""
    if server is None:
        return [partial(tallies.store, pool.tally)]
    return [ServerMetrics(server).families]


class Reachability:
    """Whether PostgreSQL answers and has our schema, known ahead: a request for readiness must not wait for it.

    A schema that was once found right is not read again: what changes it later is a migration, which keeps what
    running programs use.
    """

    def __init__(self, database: Database) -> None:
        self.why_not: str | None = "PostgreSQL has not answered yet"
        self._database = database
        self._schema_fits = False
        self._looking = asyncio.create_task(self._look(), name="mainspring api reachability")

    async def _look(self) -> None:
        while True:
            try:
                async with self._database.acquire() as conn:
                    self.why_not = await self._found(conn)
            except Busy:
                pass  # it answers others
            except MainspringError as error:
                self.why_not = error.message
            await asyncio.sleep(LOOK_EVERY)

    async def _found(self, conn: Connection) -> str | None:
        if self._schema_fits:
            await conn.fetchval("select 1")
            return None
        missing = await migrate.missing(conn)
        self._schema_fits = not missing
        return migrate.lacks(missing) if missing else None

    async def close(self) -> None:
        self._looking.cancel()
        await asyncio.wait([self._looking])
