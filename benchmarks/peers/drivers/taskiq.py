"""Taskiq on Redis streams and uvloop: acknowledged when they have run. Instants need its scheduler, which polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from taskiq import TaskiqScheduler
from taskiq.api import run_receiver_task, run_scheduler_task
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from benchmarks.peers.drivers.protocol import Driver, Producer, Starts, closed, serve

AT_ONCE = 100
PREFETCH = 1_000
POLLING = timedelta(seconds=0.1)  # of the scheduler; its defaults are a minute and a second


def make_broker(address: str, starts: Starts | None = None) -> tuple[Any, Any]:
    broker = RedisStreamBroker(address, consumer_id="0")

    async def stamp(number: int) -> None:
        assert starts is not None
        starts.note(number)

    return broker, broker.register_task(stamp, task_name="stamp")


class TaskiqProducer(Producer):
    """It has no bulk submission: many are sent side by side."""

    def __init__(self, task: Any, source: Any) -> None:
        self._task = task
        self._source = source

    async def one(self, number: int, at: float | None = None) -> None:
        if at is None:
            await self._task.kiq(number)
        else:
            await self._task.schedule_by_time(self._source, datetime.fromtimestamp(at, UTC), number)

    async def many(self, numbers: Sequence[int], instants: Sequence[float] | None = None) -> None:
        turns = iter(list(enumerate(numbers)))

        async def lane() -> None:
            for place, number in turns:
                await self.one(number, None if instants is None else instants[place])

        await asyncio.gather(*(lane() for _ in range(16)))


class TaskiqDriver(Driver):
    def work(self, address: str, part: str, starts: Starts) -> None:
        self.run(_work(address, part, starts))

    @asynccontextmanager
    async def producer(self, address: str) -> AsyncIterator[Producer]:
        broker, task = make_broker(address)
        source = ListRedisScheduleSource(address)
        await broker.startup()
        yield TaskiqProducer(task, source)
        await broker.shutdown()


async def _work(address: str, part: str, starts: Starts) -> None:
    broker, _ = make_broker(address, starts)
    broker.is_worker_process = True
    await broker.startup()
    running = [asyncio.create_task(run_receiver_task(broker, max_async_tasks=AT_ONCE, max_prefetch=PREFETCH))]
    if part in {"lateness", "herd"}:
        scheduler = TaskiqScheduler(broker, [ListRedisScheduleSource(address)])
        running.append(asyncio.create_task(run_scheduler_task(scheduler, interval=POLLING, loop_interval=POLLING)))
    starts.ready()
    await closed()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await broker.shutdown()


if __name__ == "__main__":
    serve(TaskiqDriver())
