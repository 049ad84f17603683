"""GivingWay: requests wait with their next step while a fire of the same process is imminent.

In `mainspring up` an agent fires tasks on the loop that serves the HTTP API, and one step of a request takes a fraction
of a millisecond to some milliseconds in one go. A fire that falls due meanwhile would be late by the rest of it.
Next: operations/parts/slices.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic
from typing import Protocol

SOON = 0.001  # seconds before a fire in which no step begins; most steps are shorter
LONGEST = 0.005  # seconds that a step waits, however many fires follow each other
OPEN = 0.005  # seconds without waiting after that, so that a flood of fires leaves half of the time to requests


class Fires(Protocol):
    """The instants of the agent on this event loop."""

    on_fired: Callable[[], None]  # called when the calls of an instant were made

    def next_fire(self) -> float | None:
        """Seconds until the next armed instant, below zero if it is overdue; None if nothing is armed."""


Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


def _later(seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, call)


class GivingWay:
    """One for all requests and streams of an API. They hold on together, and each looks again before its step."""

    def __init__(self, fires: Fires, now: Callable[[], float] = monotonic, later: Later = _later) -> None:
        self._fires = fires
        self._now = now
        self._later = later
        self._released = asyncio.Event()
        self._is_holding = False
        self._deadline = 0.0  # of the one that waits longest
        self._timer: asyncio.TimerHandle | None = None
        self._open_until = 0.0
        fires.on_fired = self._fired

    def is_due(self) -> bool:
        """Whether a fire is imminent and a step should wait for it."""
        left = self._fires.next_fire()
        return left is not None and left <= SOON and self._now() >= self._open_until

    async def wait(self) -> None:
        """Before a step that takes time of the event loop: return behind an imminent fire, after LONGEST at most."""
        if not self.is_due():
            return
        deadline = self._now() + LONGEST
        while self.is_due() and self._now() < deadline:
            self._hold(deadline)
            await self._released.wait()

    async def begin(self) -> None:
        """The same for the first step of a request; what it computes later finds this one by `current`."""
        current.set(self)
        await self.wait()

    def _hold(self, deadline: float) -> None:
        """Until a fire that is followed by a gap, or the deadline, if no other has an earlier one."""
        if self._is_holding and deadline >= self._deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._is_holding, self._deadline = True, deadline
        self._released.clear()
        self._timer = self._later(max(0.0, deadline - self._now()), self._expire)

    def _fired(self) -> None:
        """The handlers of this instant are scheduled: whatever is released now runs behind them."""
        if self._is_holding and not self.is_due():
            self._release()

    def _expire(self) -> None:
        self._open_until = self._now() + OPEN
        self._release()

    def _release(self) -> None:
        self._is_holding = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._released.set()


# Of the request that is answered: what computes for long looks at it between its steps.
current: ContextVar[GivingWay | None] = ContextVar("mainspring_giving_way", default=None)
