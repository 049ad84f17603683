"""Measure: what time it is by the database, and since when its clock has gone on as it should.

Who acts on leases that seem to be over measures first: if the clock was set forward, they are not.
Reads   store.clock
Next:   wire/clock.py
"""

from __future__ import annotations

from mainspring.store import clock as store_clock
from mainspring.store.database import Connection
from mainspring.wire.clock import Clock, boottime


async def measure(conn: Connection, clock: Clock) -> None:
    """Measure the database's time by a round trip."""
    sent = boottime()
    theirs = await store_clock.now(conn)
    clock.measured(sent, boottime(), theirs)
