"""Mainspring: a worker process with server and agent, as `mainspring worker` runs it; producers without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import mainspring
from benchmarks.peers.drivers.protocol import Driver, Producer, Starts, closed, serve
from mainspring.cli.runtime import settle_memory
from mainspring.store.postgres.database import Database
from mainspring.store.postgres.migrate import migrate


def make_app(address: str, starts: Starts | None = None) -> mainspring.App:
    app = mainspring.App("peers", dsn=address)

    @app.job(retries=0)
    async def stamp(number: int) -> None:
        assert starts is not None
        starts.note(number)

    return app


class MainspringProducer(Producer):
    def __init__(self, app: mainspring.App) -> None:
        self._job: Any = app["stamp"]

    async def one(self, number: int, at: float | None = None) -> None:
        job = self._job if at is None else self._job.using(run_at=datetime.fromtimestamp(at, UTC))
        await job.enqueue(number)

    async def many(self, numbers: Sequence[int], instants: Sequence[float] | None = None) -> None:
        """One statement has one instant: tasks with different ones are submitted one by one."""
        if instants is None:
            await self._job.enqueue_many([(number,) for number in numbers])
        elif len(set(instants)) == 1:
            job = self._job.using(run_at=datetime.fromtimestamp(instants[0], UTC))
            await job.enqueue_many([(number,) for number in numbers])
        else:
            await super().many(numbers, instants)


class MainspringDriver(Driver):
    def prepare(self, address: str) -> None:
        self.run(_prepare(address))

    def work(self, address: str, part: str, starts: Starts) -> None:
        self.run(_work(make_app(address, starts), starts))

    @asynccontextmanager
    async def producer(self, address: str) -> AsyncIterator[Producer]:
        async with make_app(address) as app:
            yield MainspringProducer(app)


async def _prepare(address: str) -> None:
    await migrate(Database(address))
    async with make_app(address):
        pass


async def _work(app: mainspring.App, starts: Starts) -> None:
    async with app.running():
        settle_memory()
        await asyncio.sleep(0)
        starts.ready()
        await closed()


if __name__ == "__main__":
    serve(MainspringDriver())
