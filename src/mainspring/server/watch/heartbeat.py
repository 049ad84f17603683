"""Heartbeat: the leader fetches `heartbeat_url` every minute, but only while all is well.

A service outside of the cluster notices that the calls have stopped: then the cluster is unhealthy, or the ledger has a
hole, or no leader is left to call. That is the one alert that the cluster cannot send itself.
Asks    operations.condition.health, store.watch.ledger
Next:   server/watch/fetcher.py
"""

from __future__ import annotations

import logging
from collections import Counter
from datetime import timedelta

from mainspring.model.access.actors import Actor
from mainspring.operations.condition.health import Status, health
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.watch.fetcher import Fetcher
from mainspring.store.postgres.database import Database
from mainspring.store.watch import ledger

log = logging.getLogger("mainspring")

EVERY = 60.0  # seconds
OVERDUE_BY = timedelta(seconds=60)  # that a plan time may be undecided
HOLE_WITHIN = timedelta(hours=1)  # that a plan time that was passed over keeps the heartbeat away
_ACTOR = Actor("server:heartbeat")


class Heartbeat:
    def __init__(self, database: Database, catalogue: Catalogue, fetcher: Fetcher) -> None:
        self._database = database
        self._catalogue = catalogue
        self._fetcher = fetcher
        self._problem: str | None = None  # as last logged
        self.tally: Counter[tuple[str, str]] = Counter()  # by event and result, as those of pings

    async def step(self) -> int:
        url = self._catalogue.settings.heartbeat_url
        if url is None:
            return 0
        problem = await self._unwell()
        if problem is None:
            error = await self._fetcher.fetch(url)
            self.tally["heartbeat", "ok" if error is None else "failed"] += 1
            problem = None if error is None else f"the address did not take it: {error}"
        if problem != self._problem:
            log.log(logging.WARNING if problem else logging.INFO, "heartbeat: %s", problem or "sent again")
            self._problem = problem
        return 0

    async def _unwell(self) -> str | None:
        """Why no heartbeat may be sent."""
        async with self._database.acquire() as conn:
            found = await health(conn, _ACTOR)
            bad = [check.message for check in found.checks if check.status is Status.UNHEALTHY]
            if bad:
                return f"not sent, the cluster is unhealthy: {bad[0]}"
            if await ledger.has_hole(conn, found_within=HOLE_WITHIN, overdue_by=OVERDUE_BY):
                return "not sent, plan times are overdue or were passed over; `mainspring schedule check` lists them"
        return None
