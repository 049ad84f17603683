"""BoundsKeeper: the leader counts bounded queues, so that a submission seldom has to; and the load that rules ask for.

Writes  store.flows.bounds
Next:   store/flows/bounds.py
"""

from __future__ import annotations

from mainspring.model.placement.placement import fits
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.store.cluster import registry
from mainspring.store.flows import bounds
from mainspring.store.flows.bounds import Mark
from mainspring.store.postgres.database import Connection, Database
from mainspring.wire.clock import boottime

LOOK_EVERY = 1.0  # seconds
LOADS_EVERY = 5.0
REST = 20  # times as long as a count took, until the next
PART = 5000  # tasks of a walk in one statement


class BoundsKeeper:
    """After a change of the bounds it walks once over all live tasks, to mark those that count."""

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._dedicated = database.dedicated("slow")
        self._catalogue = catalogue
        self._mark: Mark | None = None
        # The last number of a task at the step before: what drew it has written by now, or ended.
        self._drawn: int | None = None
        self._count_after = 0.0  # boot time
        self._loads_after = 0.0
        self._walked: frozenset[int] | None = None  # the bounded jobs at the last whole walk
        self._walk_at = 0  # the number of a task: where the walk under way is

    async def step(self) -> int:
        async with self._dedicated as conn:
            jobs, all_together = await bounds.bounded(conn)
            if frozenset(jobs) != self._walked and await self._walk(conn, frozenset(jobs)):
                return 1
            if boottime() >= self._count_after:
                await self._count(conn, jobs, all_together=all_together)
            if boottime() >= self._loads_after:
                self._loads_after = boottime() + LOADS_EVERY
                if await bounds.any_looks_at_load(conn):
                    await self._loads(conn)
        return 0

    async def _walk(self, conn: Connection, jobs: frozenset[int]) -> bool:
        """One part; returns whether there are more. Tasks that others have locked are found by another walk."""
        if self._walked is None and not jobs:  # no job has had a bound since this server leads
            self._walked = jobs
            return False
        walked = await bounds.walk(conn, self._walk_at, PART)
        if walked.last is not None:
            self._walk_at = walked.last
            return True
        self._walk_at = 0
        if not walked.left:
            self._walked = jobs
        return False

    async def _count(self, conn: Connection, jobs: list[int], *, all_together: bool) -> None:
        if self._mark is not None and not await bounds.is_settled(conn, self._mark):
            return
        if self._mark is not None and frozenset(jobs) == self._walked:
            began = boottime()
            await bounds.count(conn, jobs, self._mark, all_together=all_together)
            self._count_after = boottime() + REST * (boottime() - began)
        self._mark = None
        if jobs or all_together:
            mark = await bounds.mark(conn)
            if self._drawn is not None:
                self._mark = mark._replace(created=self._drawn)
            self._drawn = mark.created

    async def _loads(self, conn: Connection) -> None:
        agents = await registry.heard(conn)
        loads = {}
        for pool, requirements in self._catalogue.pools.items():
            able = [a for a in agents if not a.draining and fits(requirements, a.labels, a.offers)]
            loads[pool] = (sum(min(a.due, a.slots) for a in able), sum(a.slots for a in able))
        await bounds.write_loads(conn, loads)
