"""Parts: what is measured in a turn of one peer. Each function returns figures: `…_per_s` is a rate, `…_ms` a time.

    throughput   a full queue, then the workers are started: from the first start to the last recorded end
    submission   bulk in calls of 5,000, two at a time; single, one after another; no worker runs
    pickup       a worker idles; another process submits now and then: from its call to the handler's first line
    lateness     tasks at distinct instants: from the instant to the handler's first line
    herd         many tasks at one instant
Next: benchmarks/peers/rounds.py
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmarks.common import quantiles
from benchmarks.peers.catalogue import Peer
from benchmarks.peers.installation import environment
from benchmarks.peers.places import Places
from benchmarks.peers.process import DriverFailed, DriverProcess, Output, call, driver, order

PREPARE_SECONDS = 60.0
SUBMIT_SECONDS = 60.0
LEAD_SECONDS = 4.0  # from the start of a submission to the first instant, beside what the submission takes
RUN_SECONDS = 60.0  # for the tasks of a turn, once the last is due


@dataclass(frozen=True)
class Sizes:
    throughput: int = 100_000
    singles: int = 1_000
    idle: float = 1.0  # seconds before the first pick-up
    pickups: int = 150
    pickup_every: float = 0.05
    instants: int = 500
    span: float = 5.0  # seconds over which the instants are spread
    herd: int = 5_000


@dataclass(frozen=True)
class Entrant:
    """A peer that is installed, and where it works."""

    peer: Peer
    command: Sequence[str]
    places: Places

    async def prepare(self) -> None:
        await self.places.create_template(self.peer)
        await self._call(PREPARE_SECONDS, "prepare", self.places.template(self.peer))

    async def submit(self, how: str, tasks: int, **more: float) -> Output:
        found = await self._call(SUBMIT_SECONDS, "submit", self.address, order(how, tasks, **more))
        if not found.submitted:
            raise DriverFailed("it did not say how long the submission took")
        return found

    async def start(self, stack: AsyncExitStack, role: str, *arguments: str) -> DriverProcess:
        arguments = (role, self.address, *arguments)
        return await stack.enter_async_context(driver(self.command, arguments, environment(self.peer)))

    @property
    def address(self) -> str:
        return self.places.address(self.peer)

    async def _call(self, timeout: float, *arguments: str) -> Output:
        return await call(self.command, arguments, environment(self.peer), timeout)


Figures = dict[str, float]
Part = Callable[[Entrant, Sizes], Awaitable[Figures]]


async def throughput(entrant: Entrant, sizes: Sizes) -> Figures:
    tasks = max(int(sizes.throughput * entrant.peer.share), 1)
    one, two = [await _drain(entrant, tasks, processes) for processes in (1, 2)]
    return {"one_process_per_s": one, "two_processes_per_s": two}


async def _drain(entrant: Entrant, tasks: int, processes: int) -> float:
    places, peer = entrant.places, entrant.peer
    await places.clear(peer)
    await entrant.submit("bulk", tasks)
    await places.settle(peer)
    async with AsyncExitStack() as stack:
        workers = [await entrant.start(stack, "work", "throughput") for _ in range(processes)]
        await _started(workers, tasks, RUN_SECONDS)
        finished = await places.finished(peer, RUN_SECONDS)
        for worker in workers:
            await worker.stop()
        _check(_starts(workers), tasks)
        first = min(worker.output.first for worker in workers if worker.output.first is not None)
    return round(tasks / (finished - first))


async def submission(entrant: Entrant, sizes: Sizes) -> Figures:
    await entrant.places.clear(entrant.peer)
    figures = {}
    if entrant.peer.bulk:
        bulk = await entrant.submit("bulk", max(int(sizes.throughput * entrant.peer.share), 1))
        figures["bulk_per_s"] = _rate(bulk)
        await entrant.places.clear(entrant.peer)
    figures["single_per_s"] = _rate(await entrant.submit("single", sizes.singles))
    return figures


def _rate(output: Output) -> float:
    return round(output.submitted["tasks"] / output.submitted["seconds"])


async def pickup(entrant: Entrant, sizes: Sizes) -> Figures:
    await entrant.places.clear(entrant.peer)
    async with AsyncExitStack() as stack:
        worker = await entrant.start(stack, "work", "pickup")
        await worker.until_ready()
        await asyncio.sleep(sizes.idle)
        submitted = await entrant.submit("paced", sizes.pickups, every=sizes.pickup_every)
        starts = await _finish(worker, sizes.pickups)
    return _times([starts[number] - at for number, at in submitted.calls.items()])


async def lateness(entrant: Entrant, sizes: Sizes) -> Figures:
    return await _at(entrant, "lateness", sizes.instants, sizes.span)


async def herd(entrant: Entrant, sizes: Sizes) -> Figures:
    return await _at(entrant, "herd", sizes.herd, 0.0)


async def _at(entrant: Entrant, part: str, tasks: int, span: float) -> Figures:
    """Tasks whose instants begin some seconds from now, spread over the span."""
    await entrant.places.clear(entrant.peer)
    async with AsyncExitStack() as stack:
        if entrant.peer.alone:
            first = _soon(entrant.peer, tasks)
            worker = await entrant.start(stack, "both", part, order("at", tasks, first=first, span=span))
        else:
            worker = await entrant.start(stack, "work", part)
            await worker.until_ready()
            first = _soon(entrant.peer, tasks)
            worker.output.submitted = (await entrant.submit("at", tasks, first=first, span=span)).submitted
        starts = await _finish(worker, tasks, first + span - time.time())
        if worker.output.submitted["ended"] > first:
            raise DriverFailed(f"it submitted for {worker.output.submitted['seconds']:.1f} s, until after the instant")
    return _times([at - (first + span * number / tasks) for number, at in starts.items()])


def _soon(peer: Peer, tasks: int) -> float:
    """The first instant, after the last submission: whole milliseconds, which is all that some peers keep."""
    return math.ceil((time.time() + LEAD_SECONDS + tasks * peer.submit_seconds) * 1000) / 1000


async def _started(workers: Sequence[DriverProcess], tasks: int, timeout: float) -> None:
    """Until so many handlers have started."""
    try:
        async with asyncio.timeout(timeout):
            while sum(worker.output.started for worker in workers) < tasks:
                changes = [asyncio.ensure_future(worker.change()) for worker in workers]
                done, pending = await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
                for change in pending:
                    change.cancel()
                for change in done:
                    change.result()  # a worker that has ended
    except TimeoutError:
        started = sum(worker.output.started for worker in workers)
        raise DriverFailed(f"{started:,} of {tasks:,} tasks had started after {timeout:.0f} s") from None


async def _finish(worker: DriverProcess, tasks: int, ahead: float = 0.0) -> dict[int, float]:
    """Until every task has started; then end the worker. The start of each, by number."""
    await _started([worker], tasks, ahead + RUN_SECONDS)
    await worker.stop()
    starts = _starts([worker])
    _check(starts, tasks)
    return {number: min(times) for number, times in starts.items()}


def _starts(workers: Sequence[DriverProcess]) -> dict[int, list[float]]:
    starts: dict[int, list[float]] = {}
    for worker in workers:
        for number, times in worker.output.starts.items():
            starts.setdefault(number, []).extend(times)
    return starts


def _check(starts: dict[int, list[float]], tasks: int) -> None:
    """A figure of a peer that lost tasks, or ran some twice, is none."""
    missing = tasks - len(starts)
    twice = sum(len(times) > 1 for times in starts.values())
    if missing or twice:
        raise DriverFailed(f"of {tasks:,} tasks {missing:,} did not run and {twice:,} ran more than once")


def _times(seconds: Sequence[float]) -> Figures:
    return quantiles([value * 1000 for value in seconds])


MEASURES: dict[str, Part] = {
    "throughput": throughput,
    "submission": submission,
    "pickup": pickup,
    "lateness": lateness,
    "herd": herd,
}
