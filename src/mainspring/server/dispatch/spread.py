"""SpreadClaims: how many due tasks the dispatcher may claim now: none while everything is held, few after its release.

What waits when a hold of everything is released would start as a herd. For a minute each server claims so many a second
that its share of what waited is spread. A hold of one job needs nothing here: its gate does the same for all servers.
Reads   server.cluster.catalogue   the hold of everything
Next:   store/tasks/claims.py
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from mainspring.loops import Alarm
from mainspring.model.limits.holds import Spread
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.cluster.lease import ServerLease
from mainspring.store.cluster.segments import share
from mainspring.store.postgres.database import DedicatedConnection
from mainspring.wire.clock import boottime

AGAIN = 0.05  # seconds until the next claim


class SpreadClaims:
    def __init__(self, catalogue: Catalogue, server_lease: ServerLease, wake: asyncio.Event) -> None:
        self._catalogue = catalogue
        self._server_lease = server_lease
        self._alarm = Alarm(wake)
        self._released: tuple[datetime | None, datetime | None] | None = None  # the hold that is let go, until when
        self._spread: Spread | None = None

    async def most(self, dedicated: DedicatedConnection) -> int | None:
        """How many tasks; None: any number."""
        hold = self._catalogue.holds.everything
        if hold is None or hold.is_in_force:
            self._spread = self._released = None
            return None if hold is None else 0
        if self._released != (hold.released_at, hold.spread_until):  # or its release was hurried
            self._released = hold.released_at, hold.spread_until
            self._spread = None
            assert hold.released_at is not None
            seconds = 0.0 if hold.spread_until is None else (hold.spread_until - hold.released_at).total_seconds()
            if seconds > 0 and hold.waiting:
                async with dedicated as conn:
                    ours = await share(conn, self._server_lease.id)
                self._spread = Spread(round(hold.waiting * ours), boottime(), seconds)
        allowed = None if self._spread is None else self._spread.allows(boottime())
        if allowed is None:
            self._spread = None
        else:
            self._alarm.set(AGAIN)
        return allowed

    def claimed(self, tasks: int) -> None:
        if self._spread is not None:
            self._spread.claimed(tasks)
