"""ClusterMetrics: what every server tells of the whole cluster, read at most every few seconds, then from memory.

Reads store.figures.cluster_metrics, store.alerts.alerts, operations.autoscale
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import UUID

from mainspring.errors import StoreUnavailable
from mainspring.model.metrics import metrics
from mainspring.model.metrics.metrics import Family, family, single
from mainspring.operations import Connections
from mainspring.operations.actors import this_user
from mainspring.operations.condition import autoscale
from mainspring.store.alerts import alerts
from mainspring.store.figures import cluster_metrics
from mainspring.store.figures.cluster_metrics import ClusterFigures

log = logging.getLogger("mainspring")

FRESH = 5.0  # seconds for which they are served without another query
STALE = 60.0  # seconds after which they are left out: PostgreSQL does not answer
WITHIN = 2.0  # seconds that a scrape waits for them


class ClusterMetrics:
    """`server` returns the id of the server that tells them, if it is one."""

    def __init__(self, connections: Connections, server: Callable[[], UUID | None] = lambda: None) -> None:
        self._connections = connections
        self._server = server
        self._figures: ClusterFigures | None = None
        self._wanted = 0  # slots
        self._alerts: dict[tuple[str, str], int] = {}  # by rule and state
        self._read_at = -STALE
        self._reading: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Before a scrape. Scrapes at once share a query; one that takes long goes on, and the next scrape has it."""
        if self._age < FRESH:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHIN):
                await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            async with self._connections.acquire() as conn:
                found = await cluster_metrics.read(conn)
                self._alerts = await alerts.counts(conn)
                self._wanted = (await autoscale.autoscale(conn, this_user())).wanted_slots
            self._figures = found
            self._read_at = asyncio.get_running_loop().time()
        except StoreUnavailable as error:
            log.info("metrics of the cluster are left out: %s", error)

    @property
    def _age(self) -> float:
        return asyncio.get_running_loop().time() - self._read_at

    def families(self) -> Iterator[Family]:
        found = self._figures
        if found is None or self._age > STALE:
            return
        if found.created is not None:
            yield single(metrics.CLUSTER_CREATED, found.created)
        if found.refused is not None:
            yield single(metrics.CLUSTER_QUEUE_FULL, found.refused)
        if (server := self._server()) is not None:
            yield single(metrics.SEGMENTS_OWNED, found.segments.get(server, 0))
        yield single(metrics.CLUSTER_UNOWNED, found.unowned)
        yield family(metrics.CLUSTER_HELD, found.held)
        yield family(metrics.CLUSTER_SLOTS, {"busy": found.busy, "free": found.slots - found.busy})
        yield single(metrics.CLUSTER_WANTED, self._wanted)
        yield family(metrics.CLUSTER_WAITING, found.waiting)
        yield family(metrics.DEAD_ROWS, found.dead_rows)
        if found.tasks is not None:
            yield family(metrics.CLUSTER_TASKS, found.tasks)
        yield family(metrics.CLUSTER_QUEUE_TASKS, {queue.job: queue.due for queue in found.queues})
        yield family(metrics.CLUSTER_QUEUE_OLDEST, {queue.job: queue.age for queue in found.queues})

        named = metrics.capped((rule for rule, _ in self._alerts), metrics.RULES)
        counts: dict[tuple[str, ...], float] = {}
        for (rule, state), count in self._alerts.items():
            labels = (rule if rule in named else metrics.OTHER, state)
            counts[labels] = counts.get(labels, 0) + count
        yield Family(metrics.ALERTS, list(counts.items()))

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
