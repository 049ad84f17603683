"""Scrape: /metrics and /health, with what they need of the process that serves them.

Next: api/metering/text.py, operations/condition/health.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec

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
from mainspring.operations.condition.health import Check, Health, Status
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
        self.noticed = Noticed()
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
    call.check_query()
    reach.check_all(call.actor, "metrics are those")
    content_type, body = await call.api.scrape.render(call.headers.get("accept", ""))
    return Answer(200, body, [("Content-Type", content_type)])


class Noticed:
    """Since when checks fail of which nothing durable tells: the first answer of this process that said so."""

    def __init__(self) -> None:
        self._since: dict[str, datetime] = {}

    def complete(self, found: Health, now: datetime) -> Health:
        return msgspec.structs.replace(found, checks=[self._completed(check, now) for check in found.checks])

    def _completed(self, check: Check, now: datetime) -> Check:
        if check.status is Status.HEALTHY or check.since is not None:
            self._since.pop(check.code, None)
            return check
        return msgspec.structs.replace(check, since=self._since.setdefault(check.code, now))


async def handle_health(call: Call) -> Answer:
    call.check_query()
    try:
        async with call.api.connections.acquire() as conn:
            found = await health.health(conn, call.actor, **call.api.bound(call.row))
    except Busy:
        raise  # of the API, not of the cluster
    except MainspringError as error:
        found = health.unavailable(error)
    found = call.api.scrape.noticed.complete(found, datetime.now(UTC))
    return await answer(found, 503 if found.status is Status.UNHEALTHY else 200)
