"""APScheduler 3 on asyncio and uvloop, in memory or (with an address) with its job store in PostgreSQL.

One process submits and runs: a scheduler does not notice what another process adds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from benchmarks.peers.drivers.protocol import Driver, Producer, Starts, closed, serve, submit

IN_MEMORY = "memory"
_starts: list[Starts] = []  # its job store keeps the name of a function, so the function is one of this module


async def stamp(number: int) -> None:
    _starts[0].note(number)


def make_scheduler(address: str) -> Any:
    scheduler = AsyncIOScheduler(
        timezone=UTC,
        job_defaults={"misfire_grace_time": None},  # run however late; its default drops what is a second late
    )
    if address != IN_MEMORY:
        from sqlalchemy import create_engine

        url = address.replace("postgresql:", "postgresql+psycopg:", 1)
        scheduler.add_jobstore("sqlalchemy", engine=create_engine(url))
    return scheduler


class ApschedulerProducer(Producer):
    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    async def one(self, number: int, at: float | None = None) -> None:
        date = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
        self._scheduler.add_job("benchmarks.peers.drivers.apscheduler:stamp", "date", args=(number,), run_date=date)


class ApschedulerDriver(Driver):
    def prepare(self, address: str) -> None:
        self.run(_prepare(address))

    def work(self, address: str, part: str, starts: Starts) -> None:
        raise SystemExit("APScheduler runs what its own process adds")

    @asynccontextmanager
    async def producer(self, address: str) -> AsyncIterator[Producer]:
        scheduler = make_scheduler(address)
        scheduler.start(paused=True)
        yield ApschedulerProducer(scheduler)
        scheduler.shutdown(wait=False)

    def both(self, address: str, part: str, order: dict[str, Any], starts: Starts) -> None:
        self.run(_both(address, order, starts))


async def _prepare(address: str) -> None:
    scheduler = make_scheduler(address)
    scheduler.start(paused=True)  # creates its table
    scheduler.shutdown(wait=False)


async def _both(address: str, order: dict[str, Any], starts: Starts) -> None:
    from benchmarks.peers.drivers import apscheduler as itself  # the module that the job store names

    itself._starts.append(starts)
    scheduler = make_scheduler(address)
    scheduler.start()
    starts.ready()
    await submit(ApschedulerProducer(scheduler), order)
    await closed()
    scheduler.shutdown(wait=False)


if __name__ == "__main__":
    serve(ApschedulerDriver())
