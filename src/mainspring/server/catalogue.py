"""Catalogue: what the server knows of jobs and pools, kept fresh by hints and by looking.

Next: server/dispatcher.py
"""

from __future__ import annotations

import asyncio

from mainspring.model.jobs import Definition, Job
from mainspring.store import jobs
from mainspring.store.database import Database


class Catalogue:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._jobs: dict[int, Job] = {}
        self._by_name: dict[str, Job] = {}
        self.pools: dict[int, dict[str, str]] = {}  # that claims serve
        self.broadcast_pools: set[int] = set()
        self.wake = asyncio.Event()

    async def refresh(self) -> int:
        """Read all jobs and pools. Finds no work, ever: it only looks."""
        async with self._database.acquire() as conn:
            self._jobs = {job.id: job for job in await jobs.load(conn)}
            self.pools = await jobs.pools(conn)
            self.broadcast_pools = await jobs.broadcast_pools(conn)
        self._by_name = {job.name: job for job in self._jobs.values() if job.namespace == "default"}
        return 0

    def job(self, id: int) -> Job | None:
        return self._jobs.get(id)

    def named(self, name: str) -> Job | None:
        return self._by_name.get(name)

    def definition(self, id: int) -> Definition | None:
        job = self._jobs.get(id)
        return None if job is None else job.definition
