"""OverflowLoop: share pools that the agents of this server have no room for with other servers.

A server claims the tasks of its own segments for its own agents. Where none of these can run a pool, or all have been
full for a while, its tasks would wait while agents of other servers are idle: so other servers may claim them too.
Reads   server.dispatch.dispatcher   the room at its last claims
Writes  store.cluster.servers        (shared pools)
Next:   store/tasks/claims.py
"""

from __future__ import annotations

from uuid import UUID

from mainspring.server.cluster.lease import ServerLease
from mainspring.server.dispatch.dispatcher import Dispatcher
from mainspring.store.cluster import servers
from mainspring.store.postgres.database import Database
from mainspring.wire.clock import boottime

LOOK_EVERY = 0.25  # seconds
FULL_FOR = 0.5  # seconds for which all its agents are full before a pool is shared
ROOM_FOR = 3.0  # seconds for which a pool stays shared after they have room again
# Seconds after which the shared pools are written again unchanged: a failover may have lost them, and a server that had
# to take a new id has none.
WRITE_EVERY = 5.0


class OverflowLoop:
    def __init__(self, database: Database, server_lease: ServerLease, dispatcher: Dispatcher) -> None:
        self._dedicated = database.dedicated("background")
        self._server_lease = server_lease
        self._dispatcher = dispatcher
        self._full_since: dict[int, float] = {}
        self._room_since: dict[int, float] = {}
        self._shared: list[int] = []  # as last written
        self._written_as: UUID | None = None  # under which server id
        self._written_at = 0.0

    async def step(self) -> int:
        """Share pools without room, and stop sharing those that have it again."""
        now = boottime()
        wanted = sorted(
            pool for pool, (free, window) in self._dispatcher.rooms.items() if self._shares(pool, free, window, now)
        )
        id = self._server_lease.id
        is_stale = id != self._written_as or now - self._written_at > WRITE_EVERY
        if (wanted != self._shared or is_stale) and self._server_lease.may_act:
            async with self._dedicated as conn:
                await servers.shared_pools(conn, id, wanted)
            self._shared, self._written_as, self._written_at = wanted, id, now
        return 0

    def _shares(self, pool: int, free: int, window: int, now: float) -> bool:
        is_shared = pool in self._shared
        if window == 0:
            return True
        if not free:
            self._room_since.pop(pool, None)
            return is_shared or now - self._full_since.setdefault(pool, now) > FULL_FOR
        self._full_since.pop(pool, None)
        return is_shared and now - self._room_since.setdefault(pool, now) < ROOM_FOR
