"""Procrastinate on psycopg's pool and uvloop: one worker with many jobs at once, woken by NOTIFY."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.peers.drivers.protocol import Driver, Producer, Starts, closed, serve

CONCURRENCY = 20
POLLING_SECONDS = 0.1  # for jobs with an instant; its default is 5


def make_app(address: str, starts: Starts | None = None) -> Any:
    app = App(connector=PsycopgConnector(conninfo=address, min_size=2, max_size=CONCURRENCY + 2))

    async def stamp(number: int) -> None:
        assert starts is not None
        starts.note(number)

    app.task(name="stamp")(stamp)
    return app


class ProcrastinateProducer(Producer):
    def __init__(self, app: Any) -> None:
        self._app = app

    async def one(self, number: int, at: float | None = None) -> None:
        options = {} if at is None else {"schedule_at": datetime.fromtimestamp(at, UTC)}
        await self._app.configure_task("stamp", **options).defer_async(number=number)

    async def many(self, numbers: Sequence[int], instants: Sequence[float] | None = None) -> None:
        """One statement has one instant: tasks with different ones are submitted one by one."""
        if instants is not None and len(set(instants)) > 1:
            await super().many(numbers, instants)
            return
        options = {} if instants is None else {"schedule_at": datetime.fromtimestamp(instants[0], UTC)}
        await self._app.configure_task("stamp", **options).batch_defer_async(*({"number": n} for n in numbers))


class ProcrastinateDriver(Driver):
    def prepare(self, address: str) -> None:
        self.run(_prepare(address))

    def work(self, address: str, part: str, starts: Starts) -> None:
        self.run(_work(address, starts))

    @asynccontextmanager
    async def producer(self, address: str) -> AsyncIterator[Producer]:
        app = make_app(address)
        async with app.open_async():
            yield ProcrastinateProducer(app)


async def _prepare(address: str) -> None:
    async with make_app(address).open_async() as app:
        await app.schema_manager.apply_schema_async()


async def _work(address: str, starts: Starts) -> None:
    app = make_app(address, starts)
    async with app.open_async():
        running = asyncio.create_task(
            app.run_worker_async(
                concurrency=CONCURRENCY,
                fetch_job_polling_interval=POLLING_SECONDS,
                install_signal_handlers=False,
            )
        )
        starts.ready()
        await closed()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    serve(ProcrastinateDriver())
