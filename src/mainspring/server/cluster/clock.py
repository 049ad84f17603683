"""ClockLoop: measure the database's time by round trips; warn when this machine's clock is wrong.

A loop that acts on expired leases measures first: after a jump forward of the clock they may not have expired.
Reads   store.cluster.leases
Next:   wire/clock.py
"""

from __future__ import annotations

import logging

from mainspring.model.words.skew import skew_warning
from mainspring.store.cluster import leases
from mainspring.store.postgres.database import Connection, Database
from mainspring.wire.clock import Clock, boottime

log = logging.getLogger("mainspring")


async def measure(conn: Connection, clock: Clock) -> None:
    """Measure the database's time by a round trip."""
    sent = boottime()
    theirs = await leases.now(conn)
    clock.measured(sent, boottime(), theirs)


class ClockLoop:
    def __init__(self, database: Database, clock: Clock, skew_limit: float) -> None:
        self._dedicated = database.dedicated("hints")
        self._clock = clock
        self._skew_limit = skew_limit
        self._is_skewed = False  # as last logged

    async def step(self) -> int:
        """Measure once."""
        async with self._dedicated as conn:
            await measure(conn, self._clock)
        warning = skew_warning("this server's machine", self._clock.skew, self._skew_limit)
        if warning is not None and not self._is_skewed:
            log.warning("%s", warning)
        self._is_skewed = warning is not None
        return 0
