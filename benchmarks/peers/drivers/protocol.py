"""Protocol: what every driver program answers, as JSON objects, one in a line of its standard output.

    prepare ADDRESS          create what the peer needs in its database; no output
    submit ADDRESS ORDER     {"tasks": 200, "seconds": 0.5, "ended": …}; if paced also {"calls": [[number, at], …]}
    work ADDRESS PART        {"ready": true}, then {"started": 17, "at": …} now and then: so many handlers have started
                             since the last time, the first of them at that time; until the standard input is closed,
                             then {"starts": [[number, at], …]}
    both ADDRESS PART ORDER  work, and submit in the same process: for a peer that cannot do it from another

Times are seconds of CLOCK_REALTIME. A task carries its number. An order is an object:
{"how": "bulk" | "single" | "paced" | "at", "tasks": N, "every": seconds, "first": time, "span": seconds}.
This file is imported in the environment of the peer: only the standard library.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

CHUNK = 5_000  # tasks in a bulk submission
LANES = 2  # bulk submissions under way at once
FLUSH_SECONDS = {"throughput": 0.01}  # how often starts are reported; elsewhere seldom, not to disturb what is timed
FLUSH_SELDOM = 0.25


def say(message: dict[str, Any]) -> None:
    """One line at once: os.write of one string is not torn by another thread or child process."""
    data = (json.dumps(message) + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


class Starts:
    """When handlers started; a thread reports how many there are."""

    def __init__(self, part: str) -> None:
        self._found: list[tuple[int, float]] = []
        self._reported = 0
        self._seconds = FLUSH_SECONDS.get(part, FLUSH_SELDOM)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report_until_ended, daemon=True)

    def note(self, number: int) -> None:
        """The first line of every handler."""
        self._found.append((number, time.time()))

    def ready(self) -> None:
        say({"ready": True})
        self._thread.start()

    def _report_until_ended(self) -> None:
        while not self._ended.wait(self._seconds):
            self._report()

    def _report(self) -> None:
        known = len(self._found)
        if known > self._reported:
            say({"started": known - self._reported, "at": self._found[self._reported][1]})
            self._reported = known

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._report()
        say({"starts": self._found})


class Producer(ABC):
    """Submits tasks. A peer that cannot submit many at once leaves `many` as it is."""

    @abstractmethod
    async def one(self, number: int, at: float | None = None) -> None:
        """Returns once the peer promises to run it."""

    async def many(self, numbers: Sequence[int], instants: Sequence[float] | None = None) -> None:
        for place, number in enumerate(numbers):
            await self.one(number, None if instants is None else instants[place])


class Driver(ABC):
    """A peer."""

    def prepare(self, address: str) -> None:  # noqa: B027 - many need nothing
        """Create what it needs in its database."""

    @abstractmethod
    def work(self, address: str, part: str, starts: Starts) -> None:
        """Run tasks until the standard input is closed; call `starts.ready` once it listens."""

    @abstractmethod
    def producer(self, address: str) -> AbstractAsyncContextManager[Producer]: ...

    def both(self, address: str, part: str, order: dict[str, Any], starts: Starts) -> None:
        raise SystemExit("this peer submits from another process")

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """On uvloop, where it is installed."""
        try:
            import uvloop
        except ImportError:
            asyncio.run(main)
        else:
            uvloop.run(main)


async def closed() -> None:
    """Until the standard input is closed."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(0, event.set)
    await event.wait()
    loop.remove_reader(0)


def when_closed(act: Callable[[], None]) -> None:
    """The same for drivers without an event loop: call `act` in a thread."""

    def wait() -> None:
        sys.stdin.read()
        act()

    threading.Thread(target=wait, daemon=True).start()


def instants(order: dict[str, Any]) -> list[float]:
    """The instant of each task: distinct, evenly spread over the span."""
    tasks = order["tasks"]
    return [order["first"] + order["span"] * number / tasks for number in range(tasks)]


def chunks(numbers: Sequence[int], size: int = CHUNK) -> Iterable[Sequence[int]]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


async def bulk(producer: Producer, order: dict[str, Any]) -> None:
    """Every task in as few calls as the peer allows; with an order of instants, each at its own."""
    turns = iter(list(chunks(range(order["tasks"]))))
    times = instants(order) if order["how"] == "at" else None

    async def lane() -> None:
        for numbers in turns:
            await producer.many(numbers, None if times is None else [times[number] for number in numbers])

    await asyncio.gather(*(lane() for _ in range(LANES)))


async def single(producer: Producer, order: dict[str, Any]) -> None:
    for number in range(order["tasks"]):
        await producer.one(number)


async def paced(producer: Producer, order: dict[str, Any]) -> None:
    """One now and then; not quite regularly, so that it falls into step with no poller."""
    calls = []
    chance = random.Random(order["tasks"])
    for number in range(order["tasks"]):
        calls.append((number, time.time()))
        await producer.one(number)
        await asyncio.sleep(order["every"] * chance.uniform(0.7, 1.3))
    say({"calls": calls})


async def submit(producer: Producer, order: dict[str, Any]) -> None:
    how = {"bulk": bulk, "at": bulk, "single": single, "paced": paced}[order["how"]]
    began = time.perf_counter()
    await how(producer, order)
    say({"tasks": order["tasks"], "seconds": time.perf_counter() - began, "ended": time.time()})


async def _submit(driver: Driver, address: str, order: dict[str, Any]) -> None:
    async with driver.producer(address) as producer:
        await submit(producer, order)


def serve(driver: Driver) -> None:
    """The command line of a driver."""
    role, address, *rest = sys.argv[1:]
    if role == "prepare":
        driver.prepare(address)
    elif role == "submit":
        driver.run(_submit(driver, address, json.loads(rest[0])))
    else:
        starts = Starts(rest[0])
        if role == "work":
            driver.work(address, rest[0], starts)
        else:
            driver.both(address, rest[0], json.loads(rest[1]), starts)
        starts.close()
