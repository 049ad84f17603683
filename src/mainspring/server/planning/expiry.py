"""ExpiryLoop: the leader ends tasks that have not started by their deadline.

Writes  store.flows.expiry   (blocked, pending → skipped)
Next:   store/flows/expiry.py
"""

from __future__ import annotations

from mainspring.store.flows import expiry
from mainspring.store.postgres.database import Database

LOOK_EVERY = 1.0  # seconds
BATCH = 2000  # tasks in one statement: about 50 ms


class ExpiryLoop:
    def __init__(self, database: Database) -> None:
        self._dedicated = database.dedicated("planning")
        self.expired = 0  # tasks, since the start

    async def step(self) -> int:
        """Returns how many have ended: after a full batch the next one follows at once."""
        async with self._dedicated as conn:
            ended = await expiry.expire(conn, BATCH)
        self.expired += ended
        return ended if ended == BATCH else 0
