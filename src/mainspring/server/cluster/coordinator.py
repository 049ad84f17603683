"""Coordinator: the leader gives each segment to a server that is there, in even shares, moving as few as can be.

Reads   store.segments       who owns what, who is there
Asks    model.segments       what moves
Writes  store.segments       (servers that are dead, new owners), under the leader's term
        store.leases         (what a clock that was set back has made too long)
Next:   store/cluster/segments.py, model/placement/segments.py
"""

from __future__ import annotations

import asyncio
import logging

from mainspring.model.placement.segments import assign
from mainspring.server.cluster.clock import measure
from mainspring.server.cluster.leader import Leader
from mainspring.server.cluster.lease import Standing
from mainspring.store.cluster import clock_jumps, segments
from mainspring.store.cluster.segments import Segment, Transfer
from mainspring.store.postgres.database import Database
from mainspring.wire.clock import Clock

log = logging.getLogger("mainspring")

LOOK_EVERY = 1.0  # seconds
# Of a lease: until a new leader declares anybody dead, or any leader after the clock was set forward. The database may
# have been away, and all leases be over: whoever lives renews its own in this time.
PATIENCE = 1 / 3


class Coordinator:
    def __init__(self, database: Database, standing: Standing, leader: Leader, lease: float) -> None:
        self._line = database.line("lead")
        self._standing = standing
        self._leader = leader
        self._lease = lease
        self._clock = Clock()
        self.wake = asyncio.Event()  # somebody came or went

    async def step(self) -> int:
        """Bury the dead, and share out what has no owner, or is too much for one. Who has it now was told."""
        term = self._leader.term
        if term is None:
            return 0
        async with self._line as conn:
            await clock_jumps.count_anew(conn)
            await measure(conn, self._clock)
            if min(self._leader.led_for, self._clock.steady_for) > self._lease * PATIENCE:
                for id, name in (await segments.bury(conn, self._standing.id, term)).items():
                    log.warning("server %s (%s) is dead: its lease is over", name, id)
            found, servers = await segments.look(conn)
            owners = {segment.id: segment.owner for segment in found}
            new = assign(owners, servers)
            moves = [
                Transfer(segment.id, segment.epoch, segment.owner, new[segment.id], _reason(segment))
                for segment in found
                if segment.id in new
            ]
            moved = await segments.move(conn, self._standing.id, term, moves) if moves else 0
        if moved:
            log.info("segments that moved: %d; servers that share all of them: %d", moved, len(servers))
        return 0

    async def close(self) -> None:
        await self._line.close()


def _reason(segment: Segment) -> str:
    match segment.status:
        case None:
            return "free"
        case "active":
            return "balance"
        case "dead":
            return "dead"
        case _:
            return "stopped"
