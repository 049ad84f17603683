"""Scrape: /metrics and /health, with what they need of the process that serves them.

Next: api/metering/text.py, operations/condition/health.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

from mainspring.api.answers import Answer, answer
from mainspring.api.call import Call
from mainspring.api.metering import tallies
from mainspring.api.metering.cluster_metrics import ClusterMetrics
from mainspring.api.metering.tallies import HttpTally, LoopLag
from mainspring.api.metering.text import Source, render_in_parts
from mainspring.errors import Busy, MainspringError
from mainspring.model.access.actors import Actor
from mainspring.operations import Connections
from mainspring.operations.condition import health
from mainspring.operations.condition.health import Status
from mainspring.operations.parts import reach
from mainspring.store.postgres.connection import Connection


class Scrape:
    """`sources` are those of the process; `server_id` returns the id of its server, if it is one."""

    def __init__(
        self,
        connections: Connections,
        sources: Sequence[Source] = (),
        *,
        server_id: Callable[[], UUID | None] = lambda: None,
    ) -> None:
        self.http = HttpTally()
        self._lag = LoopLag()
        self._sampling: asyncio.Task[None] | None = None
        self._cluster = ClusterMetrics(connections, server_id)
        self._sources = [
            *sources,
            self._cluster.families,
            self.http.families,
            self._lag.families,
            tallies.build,
        ]

    def start(self) -> None:
        """Sample the event loop from now on. Called with the first request."""
        if self._sampling is None:
            self._sampling = asyncio.create_task(self._lag.run(), name="mainspring loop lag")

    async def render(self, accept: str) -> tuple[str, bytes]:
        await self._cluster.refresh()
        return await render_in_parts(self._sources, accept)

    async def close(self) -> None:
        await self._cluster.close()
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])


async def metrics(conn: Connection, actor: Actor) -> str:
    """What this process has counted, for Prometheus: text 0.0.4, or OpenMetrics by Accept."""
    raise NotImplementedError  # its handler asks the database only now and then


async def handle_metrics(call: Call) -> Answer:
    reach.check_all(call.actor, "metrics are those")
    content_type, body = await call.api.scrape.render(call.headers.get("accept", ""))
    return Answer(200, body, [("Content-Type", content_type)])


async def handle_health(call: Call) -> Answer:
    try:
        async with call.api.connections.acquire() as conn:
            found = await health.health(conn, call.actor, **call.api.bound(call.row))
    except Busy:
        raise  # of the API, not of the cluster
    except MainspringError as error:
        found = health.unavailable(error)
    return await answer(found, 503 if found.status is Status.UNHEALTHY else 200)
