"""Leader: elect one server for the duties that one is enough for: assign segments, rescue, clean up.

The leader holds an advisory lock on a pinned connection and renews its term there every second. When that connection
fails or the term expires, leadership ends at once and a new election begins. Two leaders at once do no harm.
Writes  store.cluster.leaders   (a new term, its lease)
Next:   server/cluster/coordinator.py
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from mainspring.errors import StoreUnavailable
from mainspring.loops import Alarm, Signal, Step
from mainspring.server.cluster.lease import ServerLease
from mainspring.store.cluster import leaders
from mainspring.store.postgres.database import LEASE_TIMEOUT, Database
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

LOOK_EVERY = 1.0  # seconds between renewals, and between looks for a vacancy
LEASE = 3.0  # seconds; a third of a server's lease, where that is shorter
UNLOCKED_AFTER = 0.1  # seconds after the backend that holds the lock was terminated


class Leader:
    def __init__(self, database: Database, server_lease: ServerLease, lease: float) -> None:
        self._dedicated = database.for_leases()  # used as a follower
        self._pinned = database.dedicated(timeout=LEASE_TIMEOUT)  # used as the leader, closed otherwise
        self._server_lease = server_lease
        self._lease = min(LEASE, lease / 3)
        self._term: int | None = None
        self._trusted_until = 0.0
        self._elected_at = 0.0
        self.look_every = min(LOOK_EVERY, self._lease / 3)
        self.wake = asyncio.Event()
        self._alarm = Alarm(self.wake)
        self.on_elected: Signal[[]] = Signal()

    @property
    def term(self) -> int | None:
        """The term in which this server leads; None if it does not."""
        return self._term if boottime() < self._trusted_until else None

    @property
    def led_for(self) -> float:
        """Seconds since the election."""
        return boottime() - self._elected_at

    def only(self, step: Step) -> Step:
        """The same step; it does nothing while this server does not lead."""

        async def as_leader() -> int:
            return 0 if self.term is None else await step()

        as_leader.__qualname__ = getattr(step, "__qualname__", repr(step))
        return as_leader

    async def step(self) -> int:
        """Renew the term, or run for election if there is no leader."""
        if self._term is not None:
            await self._renew(self._term)
        elif self._server_lease.may_act and await self._is_vacant():
            await self._run()
        return 0

    async def _renew(self, term: int) -> None:
        asked_at = boottime()
        try:
            async with self._pinned as conn:
                if await leaders.renew(conn, self._server_lease.id, term, self._lease):
                    self._trusted_until = asked_at + self._lease
                    return
            log.warning("another server has been elected since term %d", term)
        except StoreUnavailable as error:
            log.warning("this server no longer leads: its connection was lost (%s)", error)
        await self._step_down()

    async def _is_vacant(self) -> bool:
        async with self._dedicated as conn:
            return await leaders.is_vacant(conn)

    async def _run(self) -> None:
        asked_at = boottime()
        try:
            async with self._pinned as conn:
                term = await leaders.elect(conn, self._server_lease.id, self._lease)
                is_unseated = term is None and await leaders.unseat(conn)
                if term is None and not is_unseated:
                    term = await leaders.elect_without_lock(conn, self._server_lease.id, self._lease)
                    if term is not None:
                        log.warning("a connection that is no server's holds the leader's lock; leading without it")
        except StoreUnavailable:
            await self._pinned.close()  # it may hold the lock without a term, which would block every election
            raise
        if term is None:
            await self._pinned.close()
            if is_unseated:
                self._alarm.set(UNLOCKED_AFTER)
            return
        self._term, self._trusted_until, self._elected_at = term, asked_at + self._lease, asked_at
        self._server_lease.cluster_tally.elections += 1
        log.info("this server leads, in term %d", term)
        self.on_elected.send()

    async def _step_down(self) -> None:
        self._term, self._trusted_until = None, 0.0
        await self._pinned.close()
        self.wake.set()

    async def close(self) -> None:
        """Resign, so that another server is elected at once."""
        term, self._term = self._term, None
        if term is not None:
            with suppress(StoreUnavailable):
                async with self._pinned as conn:
                    await leaders.resign(conn, self._server_lease.id, term)
        await self._pinned.close()  # releases the lock
