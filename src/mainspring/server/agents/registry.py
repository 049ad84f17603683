"""Registry: the agents of the whole cluster, which of them are drained, and tasks that none of them can run.

Reads   store.cluster.registry   living sessions, drained names
Sends   Recall, for what a drained agent has not started
Next:   server/dispatch/placement.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from mainspring.loops import Signal
from mainspring.model.messages import AttemptId, Recall
from mainspring.model.placement.placement import Requirements, fits
from mainspring.model.tasks.waits import Known, Wait, why
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.session import AgentSession
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.store.cluster import registry
from mainspring.store.daemons import replicas
from mainspring.store.limits.waits import COUNTED, WaitingPool, waiting_pools
from mainspring.store.postgres.database import Database
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

WARN_AFTER = 5.0  # seconds for a matching agent to join: servers start before agents
WARN_EVERY = 60.0


class Registry:
    def __init__(self, database: Database, catalogue: Catalogue, gateway: Gateway) -> None:
        self._database = database
        self._catalogue = catalogue
        self._gateway = gateway
        self._agents: list[Known] = []
        self._leads: dict[int, float] = {}  # by gate, since the last refresh
        self._recalled: dict[int, set[int]] = {}  # by session, the tokens that were recalled
        self._warn_at: dict[int, float] = {}  # by pool that no agent can run
        self.wake = asyncio.Event()
        self.on_back: Signal[[]] = Signal()  # an agent's drain has ended
        gateway.on_joined.connect(self.wake.set)

    def elsewhere(self, requirements: Requirements) -> list[Known]:
        """Agents of other servers that take tasks with these requirements."""
        here = self._gateway.sessions
        takers = (agent for agent in self._agents if agent.session not in here and not agent.draining)
        return [agent for agent in takers if fits(requirements, agent.labels, agent.offers)]

    def longest_lead(self, of: Iterable[Requirements] | None = None) -> float:
        """The lead of the slowest agent in the cluster, or of those that fit one of these requirements, in seconds."""
        wanted = None if of is None else list(of)
        default = self._gateway.lead.of(0.0, 0.0)
        leads = (
            agent.lead
            for agent in self._agents
            if agent.lead is not None
            and (wanted is None or any(fits(its, agent.labels, agent.offers) for its in wanted))
        )
        return max((*leads, default))

    def lead_behind(self, gate: int) -> float:
        """The longest lead of agents that fit the tasks of a gate."""
        if gate not in self._leads:
            requirements = self._catalogue.behind(gate)
            self._leads[gate] = self.longest_lead(() if requirements is None else (requirements,))
        return self._leads[gate]

    async def refresh(self) -> int:
        """Read the living agents; start or end the drain of those connected here."""
        async with self._database.acquire() as conn:
            self._agents = await registry.living(conn)
            self._leads.clear()
            drained = await registry.drained(conn)
        back = self._gateway.drained - drained
        self._gateway.drained = drained
        if back:
            self.on_back.send()
        sessions = [session for session in self._gateway.sessions.values() if session.name in drained]
        self._recalled = {session.id: self._recall(session) for session in sessions}
        if sessions:
            async with self._database.acquire() as conn:
                await replicas.leave(conn, [session.id for session in sessions])
        return 0

    def _recall(self, session: AgentSession) -> set[int]:
        """Recall all that it holds; what has started keeps running. A claim in flight may add more: see next time."""
        asked = self._recalled.get(session.id, set())
        attempts = [AttemptId(task, token) for task, token in session.held.items() if token not in asked]
        if attempts:
            session.link.post([Recall(attempts)])
        return set(session.held.values())

    async def warn_unrunnable(self) -> int:
        """Warn of due tasks that no agent of the cluster can run, for each pool once a minute."""
        waits = {
            pool: wait
            for pool, requirements in self._catalogue.pools.items()
            if (wait := why(requirements, self._agents)) is not None and wait.is_unrunnable
        }
        self._warn_at = {pool: self._warn_at.get(pool, boottime() + WARN_AFTER) for pool in waits}
        due = [pool for pool, at in self._warn_at.items() if at <= boottime()]
        if due:
            async with self._database.acquire() as conn:
                for waiting in await waiting_pools(conn, due):
                    self._warn_at[waiting.pool] = boottime() + WARN_EVERY
                    _warn(waiting, waits[waiting.pool])
        return 0


def _warn(waiting: WaitingPool, wait: Wait) -> None:
    more = " or more" if waiting.tasks == COUNTED else ""
    count = "1 task" if waiting.tasks == 1 else f"{waiting.tasks}{more} tasks"
    verb = "waits" if waiting.tasks == 1 else "wait"
    log.warning("%s of %s %s: %s", count, ", ".join(waiting.jobs), verb, wait.reason)
