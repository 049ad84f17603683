"""PgQueuer on asyncpg and uvloop: jobs and their ends in batches, all tables logged (its default)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer, Queries

from benchmarks.peers.drivers.protocol import LANES, Driver, Producer, Starts, closed, serve

BATCH = 1_000  # more jobs in a statement, and more ends in one


class PgQueuerProducer(Producer):
    def __init__(self, queries: Any) -> None:
        self._queries = queries

    async def one(self, number: int, at: float | None = None) -> None:
        after = None if at is None else timedelta(seconds=at - time.time())
        await self._queries.enqueue("stamp", b"%d" % number, 0, after)

    async def many(self, numbers: Sequence[int], instants: Sequence[float] | None = None) -> None:
        """A job's instant is given as a delay, from the time of the statement."""
        now = time.time()
        delays = None if instants is None else [timedelta(seconds=at - now) for at in instants]
        names, payloads = ["stamp"] * len(numbers), [b"%d" % number for number in numbers]
        await self._queries.enqueue(names, payloads, [0] * len(numbers), delays)


class PgQueuerDriver(Driver):
    def prepare(self, address: str) -> None:
        self.run(_prepare(address))

    def work(self, address: str, part: str, starts: Starts) -> None:
        self.run(_work(address, starts))

    @asynccontextmanager
    async def producer(self, address: str) -> AsyncIterator[Producer]:
        async with asyncpg.create_pool(address, min_size=LANES, max_size=LANES) as pool:
            yield PgQueuerProducer(Queries.from_asyncpg_pool(pool))


async def _prepare(address: str) -> None:
    conn = await asyncpg.connect(address)
    await Queries.from_asyncpg_connection(conn).install()
    await conn.close()


async def _work(address: str, starts: Starts) -> None:
    async with asyncpg.create_pool(address, min_size=4, max_size=10) as pool:
        manager = PgQueuer.from_asyncpg_pool(pool)

        async def stamp(job: Any) -> None:
            starts.note(int(job.payload))

        manager.entrypoint("stamp")(stamp)
        running = asyncio.create_task(manager.run(batch_size=BATCH))
        starts.ready()
        await closed()
        manager.shutdown.set()
        await running


if __name__ == "__main__":
    serve(PgQueuerDriver())
