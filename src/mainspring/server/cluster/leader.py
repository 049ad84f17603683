"""Leader: one of the servers does what one is enough for: it moves segments, rescues, tidies up.

The lock and the term are on a connection of its own, which only the leader keeps open. That connection is used every
second; when it fails, or the term is over, leadership ends at once and the election begins anew. Whatever a leader
does is harmless if another one does it too.
Reads   store.leaders        who leads
Writes  store.leaders        (a new term, its lease)
Next:   server/cluster/coordinator.py, server/recovery/rescuer.py, server/cluster/janitor.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from mainspring.errors import StoreUnavailable
from mainspring.loops import Step
from mainspring.server.cluster.lease import Standing
from mainspring.store.cluster import leaders
from mainspring.store.postgres.database import LEASE_TIMEOUT, Database
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

LOOK_EVERY = 1.0  # seconds between looks at the lead, and between renewals
LEASE = 3.0  # seconds; a third of a server's lease, where that is shorter
SOON = 0.1  # seconds until a lock that was taken from somebody is free


class Leader:
    def __init__(self, database: Database, standing: Standing, server_lease: float) -> None:
        self._line = database.lease_line()  # as a follower
        self._pinned = database.line(timeout=LEASE_TIMEOUT)  # as the leader
        self._standing = standing
        self._lease = min(LEASE, server_lease / 3)
        self._term: int | None = None
        self._trusted_until = 0.0
        self._elected_at = 0.0
        self.look_every = min(LOOK_EVERY, self._lease / 3)
        self.wake = asyncio.Event()
        self.on_elected: list[Callable[[], None]] = []

    @property
    def term(self) -> int | None:
        """The term in which this server leads; None: it does not."""
        return self._term if boottime() < self._trusted_until else None

    @property
    def led_for(self) -> float:
        """Seconds since the election."""
        return boottime() - self._elected_at

    def only(self, step: Step) -> Step:
        """The same step, which does nothing on servers that do not lead."""

        async def as_leader() -> int:
            return 0 if self.term is None else await step()

        as_leader.__qualname__ = getattr(step, "__qualname__", repr(step))
        return as_leader

    async def step(self) -> int:
        """See to the lead: renew it, or run for it if nobody has it."""
        if self._term is not None:
            await self._renew(self._term)
        elif self._standing.may_act and await self._is_vacant():
            await self._run()
        return 0

    async def _renew(self, term: int) -> None:
        asked_at = boottime()
        try:
            async with self._pinned as conn:
                if await leaders.renew(conn, self._standing.id, term, self._lease):
                    self._trusted_until = asked_at + self._lease
                    return
            log.warning("another server leads now, since a term after %d", term)
        except StoreUnavailable as error:
            log.warning("the lead is lost with its connection: %s", error)
        await self._step_down()

    async def _is_vacant(self) -> bool:
        async with self._line as conn:
            return await leaders.is_vacant(conn)

    async def _run(self) -> None:
        asked_at = boottime()
        try:
            async with self._pinned as conn:
                term = await leaders.elect(conn, self._standing.id, self._lease)
                is_unseated = term is None and await leaders.unseat(conn)
        except StoreUnavailable:
            await self._pinned.close()  # it may have the lock, and no term: nobody could take it from us
            raise
        if term is None:
            await self._pinned.close()
            if is_unseated:
                asyncio.get_running_loop().call_later(SOON, self.wake.set)
            return
        self._term, self._trusted_until, self._elected_at = term, asked_at + self._lease, asked_at
        log.info("this server leads, in term %d", term)
        for on_elected in self.on_elected:
            on_elected()

    async def _step_down(self) -> None:
        self._term, self._trusted_until = None, 0.0
        await self._pinned.close()
        self.wake.set()

    async def close(self) -> None:
        """Let another lead at once."""
        term, self._term = self._term, None
        if term is not None:
            with suppress(StoreUnavailable):
                async with self._pinned as conn:
                    await leaders.resign(conn, self._standing.id, term)
        await self._pinned.close()
        await self._line.close()
