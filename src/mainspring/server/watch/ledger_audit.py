"""LedgerAudit: the leader compares the ledger with the expressions of all schedules, a few at a time, again and again.

Alert rules of the kind `missed` report what it finds, and it stops the heartbeat. A step is short: a pass over a
hundred thousand schedules takes an hour and a half.
Reads   store.schedules.missed   expected plan times that are not in the ledger
Writes  store.watch.ledger       holes, and how far it has come
Next:   store/watch/ledger.py
"""

from __future__ import annotations

import logging
from contextlib import suppress

from mainspring.errors import ValidationError
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import missed, schedules
from mainspring.store.schedules.schedules import Stored
from mainspring.store.watch import ledger
from mainspring.store.watch.ledger import Hole, Position
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

LOOK_EVERY = 5.0  # seconds
SCHEDULES = 100  # of one step
WITHIN = 0.1  # seconds after which a step takes no other schedule
MOST_HOLES = 1000  # of one schedule


class LedgerAudit:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.found = 0  # holes

    async def step(self) -> int:
        """Compare some schedules; returns 0, as there is no hurry."""
        async with self._database.acquire() as conn:
            at = await ledger.position(conn)
            ids = await ledger.following(conn, at.last_id, SCHEDULES)
            stored = await schedules.by_id(conn, ids) if ids else {}
            holes: list[Hole] = []
            last: int | None = None
            until = boottime() + WITHIN
            for last in ids:
                if last in stored:
                    with suppress(ValidationError):  # a timezone that this host does not know
                        holes += await self._holes(conn, at, stored[last])
                if boottime() > until:
                    break
            new = await ledger.advance(conn, at, last, holes)
        if new:
            self.found += new
            log.error("%d plan times were passed over; `mainspring schedule check` lists them", new)
        return 0

    async def _holes(self, conn: Connection, at: Position, stored: Stored) -> list[Hole]:
        """Plan times before the cursor that are not in the ledger; those behind it are only undecided."""
        cursor = stored.next_plan_at
        if cursor is None:
            return []
        checked = await missed.missing(conn, stored, at.since, min(at.now, cursor), limit=MOST_HOLES)
        return [Hole(stored.id, one.plan_time, one.scope) for one in checked.missing if one.plan_time < cursor]
