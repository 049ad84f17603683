"""Stragglers: pending tasks below the floors of earlier claims that no hint announced.

Reads   store.tasks.claim_order
Next:   model/tasks/claim_floors.py
"""

from __future__ import annotations

from collections import deque

from mainspring.model.tasks.claim_floors import Released
from mainspring.server.cluster.lease import ServerLease
from mainspring.store.postgres.database import Database
from mainspring.store.tasks import claim_order
from mainspring.wire.clock import boottime

LONGEST_REST = 1.0  # seconds between searches


class Stragglers:
    """Rests twenty times as long as a search takes, and a second at most. The shortest of the last searches counts: one
    that had to wait, for a frozen database, says nothing about the work."""

    def __init__(self, database: Database, server_lease: ServerLease) -> None:
        self._dedicated = database.dedicated("slow")
        self._server_lease = server_lease
        self._rests_until = 0.0  # boot time
        self._searches: deque[float] = deque(maxlen=3)  # seconds that the last ones took

    async def search(self, floors: claim_order.PoolFloors) -> list[Released]:
        """The first of each pool and level, if any; nothing while it rests."""
        began = boottime()
        if began < self._rests_until or not floors:
            return []
        async with self._dedicated as conn:
            found = await claim_order.stragglers(conn, self._server_lease.id, floors)
        self._searches.append(boottime() - began)
        self._rests_until = boottime() + min(LONGEST_REST, 20 * min(self._searches))
        return found
