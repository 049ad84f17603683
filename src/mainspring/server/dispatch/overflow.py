"""OverflowLoop: pools that nobody here has room for are opened to other servers, and closed again when somebody has.

A server claims what lies in its own segments, for its own agents. Where it has none that can run a pool, or where they
have been full for a while, the tasks would wait beside idle agents of others.
Reads   server.dispatcher    the room that its last claims met
Writes  store.servers        (open pools)
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
FULL_FOR = 0.5  # seconds after which a pool is opened whose agents are all full
ROOM_FOR = 3.0  # seconds for which a pool stays open after they have room again
# Seconds after which it is told again though nothing changed: what was written may be gone, with a primary that failed,
# or is another server's, if this one had to take a new number.
TELL_EVERY = 5.0


class OverflowLoop:
    def __init__(self, database: Database, server_lease: ServerLease, dispatcher: Dispatcher) -> None:
        self._line = database.line("errands")
        self._server_lease = server_lease
        self._dispatcher = dispatcher
        self._full_since: dict[int, float] = {}
        self._room_since: dict[int, float] = {}
        self._open: list[int] = []  # what the others were told
        self._told_as: UUID | None = None  # under which id; None: nothing yet in this life
        self._told_at = 0.0

    async def step(self) -> int:
        """Open and close pools by what has become of their room."""
        now = boottime()
        wanted = sorted(
            pool for pool, (free, window) in self._dispatcher.rooms.items() if self._opens(pool, free, window, now)
        )
        id = self._server_lease.id
        is_stale = id != self._told_as or now - self._told_at > TELL_EVERY
        if (wanted != self._open or is_stale) and self._server_lease.may_act:
            async with self._line as conn:
                await servers.open_pools(conn, id, wanted)
            self._open, self._told_as, self._told_at = wanted, id, now
        return 0

    def _opens(self, pool: int, free: int, window: int, now: float) -> bool:
        is_open = pool in self._open
        if window == 0:
            return True
        if not free:
            self._room_since.pop(pool, None)
            return is_open or now - self._full_since.setdefault(pool, now) > FULL_FOR
        self._full_since.pop(pool, None)
        return is_open and now - self._room_since.setdefault(pool, now) < ROOM_FOR

    async def close(self) -> None:
        await self._line.close()
