"""Roster: the agents of the whole cluster, which of them take nothing new, and what nobody there can run.

Reads   store.roster        living sessions, drained names
Sends   Recall, for what a drained agent has not started
Next:   server/dispatch/placement.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mainspring.model.messages import Held, Recall
from mainspring.model.tasks.waits import Known, Wait, why
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.session import Seat
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.store.cluster import registry
from mainspring.store.daemons import replicas
from mainspring.store.limits.waits import COUNTED, WaitingPool, waiting_pools
from mainspring.store.postgres.database import Database
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

TELL_AFTER = 5.0  # seconds in which an agent may still come: at the start servers are there first
TELL_EVERY = 60.0


class Roster:
    def __init__(self, database: Database, catalogue: Catalogue, gateway: Gateway) -> None:
        self._database = database
        self._catalogue = catalogue
        self._gateway = gateway
        self._agents: list[Known] = []
        self._recalled: dict[int, set[int]] = {}  # by session, the tokens it was asked to give back
        self._tell_at: dict[int, float] = {}  # by pool that nobody can run
        self.wake = asyncio.Event()
        self.on_back: list[Callable[[], None]] = []  # somebody takes tasks again
        gateway.on_joined.append(self.wake.set)

    @property
    def elsewhere(self) -> list[Known]:
        """Agents of other servers that take tasks."""
        here = self._gateway.seats
        return [agent for agent in self._agents if agent.session not in here and not agent.draining]

    async def look(self) -> int:
        """See who is there, and let the agents here drain, or take tasks again."""
        async with self._database.acquire() as conn:
            self._agents = await registry.living(conn)
            drained = await registry.drained(conn)
        back = self._gateway.drained - drained
        self._gateway.drained = drained
        for on_back in self.on_back if back else ():
            on_back()
        seats = [seat for seat in self._gateway.seats.values() if seat.name in drained]
        for seat in seats:
            self._recall(seat)
        if seats:
            async with self._database.acquire() as conn:
                await replicas.leave(conn, [seat.session for seat in seats])
        here = {seat.session for seat in seats}
        self._recalled = {session: asked for session, asked in self._recalled.items() if session in here}
        return 0

    def _recall(self, seat: Seat) -> None:
        """Ask back all that it holds: what has started goes on. A claim under way may bring more at the next look."""
        asked = self._recalled.get(seat.session, set())
        held = dict(seat.held)
        self._recalled[seat.session] = set(held.values())
        attempts = [Held(task, token) for task, token in held.items() if token not in asked]
        if attempts:
            seat.link.post([Recall(attempts)])

    async def tell_unrunnable(self) -> int:
        """Warn of due tasks that nobody in the whole cluster can run, each pool once in a while."""
        waits = {
            pool: wait
            for pool, requirements in self._catalogue.pools.items()
            if (wait := why(requirements, self._agents)) is not None and wait.is_unrunnable
        }
        self._tell_at = {pool: self._tell_at.get(pool, boottime() + TELL_AFTER) for pool in waits}
        due = [pool for pool, at in self._tell_at.items() if at <= boottime()]
        if due:
            async with self._database.acquire() as conn:
                for waiting in await waiting_pools(conn, due):
                    self._tell_at[waiting.pool] = boottime() + TELL_EVERY
                    self._tell(waiting, waits[waiting.pool])
        return 0

    def _tell(self, waiting: WaitingPool, wait: Wait) -> None:
        more = " or more" if waiting.tasks == COUNTED else ""
        count = "1 task" if waiting.tasks == 1 else f"{waiting.tasks}{more} tasks"
        verb = "waits" if waiting.tasks == 1 else "wait"
        log.warning("%s of %s %s: %s", count, ", ".join(waiting.jobs), verb, wait.reason)
