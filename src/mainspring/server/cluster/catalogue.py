"""Catalogue: the jobs, pools and settings in memory, refreshed by hints and by polling.

Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

import asyncio
import logging

from mainspring.model.placement.placement import DEFAULT_STRATEGY, Requirements
from mainspring.model.tasks.jobs import Definition, Job
from mainspring.store.cluster import settings
from mainspring.store.postgres.database import Database
from mainspring.store.tasks import jobs

log = logging.getLogger("mainspring")


class Catalogue:
    def __init__(self, database: Database, strategy: str = DEFAULT_STRATEGY) -> None:
        self._database = database
        self._default_strategy = strategy  # while the cluster has none
        self.jobs: dict[int, Job] = {}
        self._by_name: dict[str, Job] = {}
        self._unreadable: dict[str, str] = {}  # by name, why: logged once
        self.pools: dict[int, Requirements] = {}  # whose tasks are claimed
        self.broadcast_pools: dict[int, Requirements] = {}  # whose tasks are expanded instead
        self._gates: dict[int, int] = {}  # gated pool → the pool that its tasks move to
        self.behind_gates: dict[
            int, int
        ] = {}  # job whose tasks may hold slots of limits → the pool they are claimed from
        self.needs: dict[int, dict[str, float]] = {}  # by job, for the jobs that need any amounts
        self.strategy = strategy  # of placement, for jobs that name none
        self.wake = asyncio.Event()

    async def refresh(self) -> int:
        """Read all jobs, pools and settings."""
        async with self._database.acquire() as conn:
            readable, unreadable = await jobs.load(conn)
            pools = await jobs.pools(conn)
            gates = await jobs.gates(conn)
            self.strategy = await settings.strategy(conn, self._default_strategy)
        self._gates = {gate.id: gate.target for gate in gates}
        self.behind_gates = {gate.job: gate.target for gate in gates if gate.job is not None}
        self.jobs = {job.id: job for job in readable}
        for name in unreadable.keys() - self._unreadable.keys():
            log.error("job %r cannot be read, and its tasks do not run: %s", name, unreadable[name])
        self._unreadable = unreadable
        self.broadcast_pools = {id: its for id, its in pools.items() if its.placement.broadcast}
        self.pools = {id: requirements for id, requirements in pools.items() if id not in self.broadcast_pools}
        self.needs = {job.id: needs for job in self.jobs.values() if (needs := job.definition.placement.needs)}
        self._by_name = {job.name: job for job in self.jobs.values() if job.namespace == "default"}
        return 0

    def behind(self, gate: int) -> Requirements | None:
        """The requirements of the tasks that wait at a gate."""
        return self.pools.get(self._gates.get(gate, gate))

    def named(self, name: str) -> Job | None:
        return self._by_name.get(name)

    def definition(self, id: int) -> Definition | None:
        job = self.jobs.get(id)
        return None if job is None else job.definition
