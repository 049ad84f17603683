"""Loops: the one shape of a background loop, and how one part wakes another.

A loop repeats a step that finds work; its wake-up is an `asyncio.Event`. A part that has news for others has a `Signal`
for each kind of news. A part that must look again at a known time has an `Alarm`. Functions of the user that may hang
are called `in_thread`.
Next: server/dispatch/dispatcher.py
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, ParamSpec, TypeVar

from mainspring.errors import StoreUnavailable

log = logging.getLogger("mainspring")

Step = Callable[[], Awaitable[int]]  # more than 0: it found work, repeat at once; 0: wait for `wake` or the interval
News = ParamSpec("News")
Result = TypeVar("Result")

JUST_AFTER = 0.002  # seconds after its time that an alarm rings: what is due at an instant is not due before it
# Seconds between the ticks on which the loops of an idle server look: one by one, they wake it twice as often.
TICK = 0.25
_PHASE = random.uniform(0.0, TICK)  # of this process: servers do not tick together


class Signal(Generic[News]):
    """Something has happened. `send` calls all that were connected, in that order, with the news."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[News, object]] = []

    def connect(self, *callbacks: Callable[News, object]) -> None:
        self._callbacks += callbacks

    def send(self, *args: News.args, **kwargs: News.kwargs) -> None:
        for callback in self._callbacks:
            callback(*args, **kwargs)


class Alarm:
    """Sets an event once, after a number of seconds."""

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float | None) -> None:
        """Ring after so many seconds, or not at all; replaces what was set before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, seconds) + JUST_AFTER, self._wake.set)


async def run_every(
    interval: float,
    step: Step,
    wake: asyncio.Event | None = None,
    *,
    adaptive: bool = False,
    first: float = 0.0,
    on_ticks: Callable[[], bool] = lambda: False,
) -> None:
    """Repeat `step`: at once while it finds work, else on `wake` or after `interval`, with jitter.

    The first time is after `first` seconds, unless it is woken. While `on_ticks()`, a wait ends on a tick that all
    loops of the process share, never later than without; the first such wait may be half as long, so that loops that
    start together spread over the ticks.

    With `adaptive` the interval shrinks while there is work and grows while there is none. Use it to look for work,
    never to renew a lease.

    On StoreUnavailable the loop retries until PostgreSQL is back. Any other error is a bug and ends the loop.
    """
    wake = wake or asyncio.Event()
    pace = Pace(interval)
    name = getattr(step, "__qualname__", repr(step))
    faults = 0
    shortest = 0.5  # of the interval
    await _woken(wake, first)
    while True:
        wake.clear()  # before the step: a wake-up during it must not be lost
        try:
            found = await step()
            faults = 0
        except StoreUnavailable as error:
            faults += 1
            if faults == 1:
                log.warning("%s: %s; trying again", name, error)
            # Short: store/postgres/connecting/reconnect.py decides how often PostgreSQL is probed.
            await asyncio.sleep(min(0.1 * faults, 0.3) * random.uniform(0.5, 1.5))
            continue
        wait = pace.after(found) if adaptive else interval
        if found:
            continue
        if on_ticks():
            now = asyncio.get_running_loop().time()
            await _woken(wake, until_tick(now, wait * random.uniform(shortest, 1.1), wait * 1.1))
            shortest = 0.9
        else:
            await _woken(wake, wait * random.uniform(0.9, 1.1))


async def let_fire() -> None:
    """Yield for three turns of the event loop, so that what fell due starts before the caller continues.

    In one turn the wake timer is read, in the next its handler starts; on asyncio's own loop the caller resumes before
    either.
    """
    for _ in range(3):
        await asyncio.sleep(0)


def until_tick(now: float, wait: float, longest: float) -> float:
    """Seconds until the tick nearest to `now + wait`; as given, if none lies between now and `longest`."""
    nearest = round((now + wait - _PHASE) / TICK) * TICK + _PHASE - now
    if nearest > longest:
        nearest -= TICK
    return nearest if nearest > 0.0 else wait


async def _woken(wake: asyncio.Event, within: float) -> None:
    """Wait for the event, which a timer sets after so many seconds.

    A timeout would end the wait by an exception: a third of the processor time of an idle server, which has 50 loops.
    """
    if within > 0.0 and not wake.is_set():
        timer = asyncio.get_running_loop().call_later(within, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()


async def retried(step: Callable[[], Awaitable[object]], within: float) -> None:
    """One step. StoreUnavailable is raised only if the step still fails after `within` seconds."""
    give_up_at = asyncio.get_running_loop().time() + within
    while True:
        try:
            await step()
            return
        except StoreUnavailable as error:
            if asyncio.get_running_loop().time() > give_up_at:
                raise
            log.warning("%s: %s; trying again", getattr(step, "__qualname__", repr(step)), error)
            await asyncio.sleep(random.uniform(0.1, 0.5))


async def run_all(loops: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run the loops until cancelled. A bug in one ends them all."""
    async with asyncio.TaskGroup() as group:
        for loop in loops:
            group.create_task(loop)


def in_thread(call: Callable[[], Result], name: str) -> asyncio.Future[Result]:
    """Call in a new daemon thread: one that hangs blocks no pool and does not keep the process from exiting."""
    result: concurrent.futures.Future[Result] = concurrent.futures.Future()
    result.set_running_or_notify_cancel()  # a caller that gives up does not cancel it

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            is_plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            result.set_exception(error if is_plain else RuntimeError(repr(error)))  # no future can hold the others

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(result)


class Pace:
    """An adaptive interval: × 0.8 after a find, × 1.2 after five empty polls; between half and four times the base."""

    def __init__(self, base: float) -> None:
        self.interval = self._base = base
        self._empty = 0

    def after(self, found: int) -> float:
        """The interval until the next poll, after one that found this much."""
        self._empty = 0 if found else self._empty + 1
        if found:
            self.interval = max(self.interval * 0.8, self._base / 2)
        elif self._empty == 5:
            self._empty = 0
            self.interval = min(self.interval * 1.2, self._base * 4)
        return self.interval
