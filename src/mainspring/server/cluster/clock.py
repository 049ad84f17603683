"""Timekeeper: the database's time on this server, measured by round trips; says so when the machine's clock is wrong.

Who acts on leases that seem to be over measures first: if the clock was set forward, they are not.
Reads   store.clock
Next:   wire/clock.py
"""

from __future__ import annotations

import logging

from mainspring.model.words.skew import skew_warning
from mainspring.store.cluster import clock as store_clock
from mainspring.store.postgres.database import Connection, Database
from mainspring.wire.clock import Clock, boottime

log = logging.getLogger("mainspring")


async def measure(conn: Connection, clock: Clock) -> None:
    """Measure the database's time by a round trip."""
    sent = boottime()
    theirs = await store_clock.now(conn)
    clock.measured(sent, boottime(), theirs)


class Timekeeper:
    def __init__(self, database: Database, clock: Clock, skew_limit: float) -> None:
        self._line = database.line("hints")
        self._clock = clock
        self._skew_limit = skew_limit
        self._is_skewed = False  # that was told

    async def step(self) -> int:
        """Follow the database's time."""
        async with self._line as conn:
            await measure(conn, self._clock)
        told = skew_warning("this server's machine", self._clock.skew, self._skew_limit)
        if told is not None and not self._is_skewed:
            log.warning("%s", told)
        self._is_skewed = told is not None
        return 0

    async def close(self) -> None:
        await self._line.close()
