"""Janitor: partitions made ahead and dropped by retention, expired keys and old sessions forgotten.

Next: store/partitions.py
"""

from __future__ import annotations

import logging
from datetime import timedelta

import asyncpg

from mainspring.store import partitions
from mainspring.store.database import Database

log = logging.getLogger("mainspring")

DAYS_AHEAD = 3
AT_ONCE = 10_000


class Janitor:
    def __init__(self, database: Database, *, keep_succeeded: timedelta, keep_failed: timedelta) -> None:
        self._database = database
        self._keep_succeeded = keep_succeeded
        self._keep_failed = keep_failed

    async def prepare(self) -> None:
        """What must be there before anything is written."""
        async with self._database.acquire() as conn:
            await partitions.make_ahead(conn, DAYS_AHEAD)

    async def step(self) -> int:
        """One round; returns how many rows were forgotten, so that a backlog of them is worked off."""
        async with self._database.acquire() as conn:
            await partitions.make_ahead(conn, DAYS_AHEAD)
            try:
                dropped = await partitions.drop_old(
                    conn, keep_succeeded=self._keep_succeeded, keep_failed=self._keep_failed
                )
            except asyncpg.LockNotAvailableError:
                dropped = []  # somebody reads the old day right now: next time
            if dropped:
                log.info("retention dropped %s", ", ".join(dropped))
            longest = max(self._keep_succeeded, self._keep_failed)
            await partitions.forget_sessions(conn, longest)
            forgotten = await partitions.forget_fires(conn, longest, AT_ONCE)
            return forgotten + await partitions.forget_keys(conn, AT_ONCE)
