"""Coordinator: the leader assigns every segment to a living server, by the slots of its agents, with few moves.

Reads   store.cluster.segments      owners, living servers and the slots of their agents
Asks    model.placement.segments    which segments move
Writes  store.cluster.segments      (dead servers, new owners), under the leader's term
        store.cluster.leases        (leases that a clock set back has made too long)
Next:   store/cluster/segments.py
"""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from mainspring.model.placement.segments import Capacity, assign
from mainspring.server.cluster.clock import measure
from mainspring.server.cluster.leader import Leader
from mainspring.server.cluster.lease import ServerLease
from mainspring.store.cluster import leases, segments
from mainspring.store.cluster.segments import Transfer
from mainspring.store.postgres.database import Database
from mainspring.wire.clock import Clock, boottime

log = logging.getLogger("mainspring")

LOOK_EVERY = 1.0  # seconds, where leases are short
LOOK_SELDOM = 2.0  # of longer ones: a server that stops or starts, or whose process is seen to die, wakes it by a hint
# Of a lease: how long a new leader, or any leader after the clock was set forward, waits before it marks servers dead.
# After an outage of the database all leases may have expired: living servers renew theirs within this time.
PATIENCE = 1 / 3
REASONS = {None: "free", "active": "balance", "dead": "dead"}  # of a move, by the status of the last owner


class Coordinator:
    def __init__(self, database: Database, server_lease: ServerLease, leader: Leader, lease: float) -> None:
        self._dedicated = database.dedicated("leader")
        self._server_lease = server_lease
        self._leader = leader
        self._lease = lease
        self.look_every = min(LOOK_SELDOM, max(LOOK_EVERY, lease / 6))
        self._clock = Clock()
        self._capacity: Capacity[UUID] = Capacity()
        self.wake = asyncio.Event()  # a server joined or left

    async def step(self) -> int:
        """Mark servers with expired leases dead, then assign orphaned segments and balance the shares."""
        term = self._leader.term
        if term is None:
            return 0
        async with self._dedicated as conn:
            await leases.restart_future_leases(conn)
            await measure(conn, self._clock)
            if min(self._leader.led_for, self._clock.steady_for) > self._lease * PATIENCE:
                for id, name in (await segments.declare_dead(conn, self._server_lease.id, term)).items():
                    log.warning("server %s (%s) is dead: its lease has expired", name, id)
            found, slots = await segments.look(conn)
            owners = {segment.id: segment.owner for segment in found}
            capacity = self._capacity.observe(slots, boottime())
            new = assign(owners, capacity, exact=self._capacity.is_steady)
            moves = [
                Transfer(
                    segment.id, segment.epoch, segment.owner, new[segment.id], REASONS.get(segment.status, "stopped")
                )
                for segment in found
                if segment.id in new
            ]
            moved = await segments.move(conn, self._server_lease.id, term, moves) if moves else None
        if moved:
            self._server_lease.cluster_tally.moves.update(moved)
            log.info("%d segments moved; servers that share all of them: %d", moved.total(), len(slots))
        return 0
