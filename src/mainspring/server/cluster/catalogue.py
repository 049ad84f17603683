"""Catalogue: the jobs, pools, settings and holds in memory, refreshed by hints and by polling.

Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from mainspring.loops import Signal
from mainspring.model.limits.holds import NO_HOLDS
from mainspring.model.placement.placement import DEFAULT_STRATEGY, Requirements, requirements_of
from mainspring.model.settings import DEFAULTS, RunTimeSettings, unless_off
from mainspring.model.tasks.jobs import Definition, Job, secrets_of, uses_default_retries
from mainspring.server.secrets.opened import ReadKeys, no_keys
from mainspring.store.cluster import holds, settings
from mainspring.store.postgres.database import Database
from mainspring.store.tasks import jobs

log = logging.getLogger("mainspring")


def with_defaults(job: Job, settings: RunTimeSettings) -> Job:
    """The job with what its definition leaves to the settings."""
    definition, retries = job.definition, settings.default_retries
    if retries is not None and uses_default_retries(definition):
        definition = replace(definition, retry=replace(definition.retry, retries=retries))
    return replace(job, definition=definition, default_timeout=unless_off(settings.default_timeout))


class Catalogue:
    def __init__(self, database: Database, strategy: str = DEFAULT_STRATEGY, read_keys: ReadKeys = no_keys) -> None:
        self._database = database
        self.read_keys = read_keys  # that decrypt secrets
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
        self.chunks: dict[int, int] = {}  # by job, how many tasks share a slot, for the jobs of which several do
        self.secrets: dict[int, frozenset[str]] = {}  # by job, for the jobs that refer to any
        self.strategy = strategy  # of placement, for jobs that name none
        self.settings = DEFAULTS  # that operators change at run time
        self.holds = NO_HOLDS
        self._mark: str | None = None  # of what was read
        self.wake = asyncio.Event()
        self.on_holds: Signal[[]] = Signal()  # they have changed

    async def refresh(self) -> int:
        """Read all jobs, pools, settings and holds, if any of them has changed."""
        async with self._database.acquire() as conn:
            mark = await jobs.mark(conn)  # before the rest: what changes meanwhile is read again
            if mark == self._mark:
                return 0
            readable, unreadable = await jobs.load(conn)
            pools = await jobs.pools(conn)
            gates = await jobs.gates(conn)
            self.settings = await settings.load(conn)
            held = await holds.load(conn)
        self.strategy = self.settings.placement or self._default_strategy
        self._gates = {gate.id: gate.target for gate in gates}
        self.behind_gates = {gate.job: gate.target for gate in gates if gate.job is not None and not gate.is_of_hold}
        readable = [with_defaults(job, self.settings) for job in readable]
        self.jobs = {job.id: job for job in readable}
        for name in unreadable.keys() - self._unreadable.keys():
            log.error("job %r cannot be read, and its tasks do not run: %s", name, unreadable[name])
        self._unreadable = unreadable
        self.broadcast_pools = {id: its for id, its in pools.items() if its.placement.broadcast}
        self.pools = {id: requirements for id, requirements in pools.items() if id not in self.broadcast_pools}
        self.needs = {job.id: needs for job in self.jobs.values() if (needs := job.definition.placement.needs)}
        self.chunks = {job.id: size for job in readable if (size := requirements_of(job.definition).chunk) > 1}
        self.secrets = {job.id: names for job in readable if (names := secrets_of(job.definition.run))}
        if held != self.holds:
            self.holds = held
            self.on_holds.send()
        self._by_name = {job.name: job for job in self.jobs.values() if job.namespace == "default"}
        self._mark = mark
        return 0

    def behind(self, gate: int) -> Requirements | None:
        """The requirements of the tasks that wait at a gate."""
        return self.pools.get(self._gates.get(gate, gate))

    def named(self, name: str) -> Job | None:
        return self._by_name.get(name)

    def definition(self, id: int) -> Definition | None:
        job = self.jobs.get(id)
        return None if job is None else job.definition
