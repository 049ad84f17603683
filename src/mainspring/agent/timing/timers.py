"""Timers: the timing wheel, turned by a wake timer, on the clock that follows the database's.

Next: agent/timing/wheel.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mainspring.agent.timing.timerfd import make_wake_timer
from mainspring.agent.timing.wheel import Timer, Wheel
from mainspring.wire.clock import Clock

LATEST = 7_258_118_400.0  # the year 2200: no task has a time beyond it
NEVER = 1e11  # in more than a thousand years


class Timers:
    """`at` and `disarm` are for the event loop's thread; calls come on the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel = Wheel(clock.now())
        self._wake_timer = make_wake_timer(asyncio.get_running_loop(), self._wake)
        self._set_for: float | None = None  # the instant of the wake timer
        self.on_fired: Callable[[], None] = lambda: None  # the calls of an instant were made

    def at(self, instant: float, call: Callable[[Any], None], argument: Any = None) -> Timer:
        """Call `call(argument)` at `instant`, seconds since 1970 on the database's clock; never if that is too far."""
        if not -NEVER < instant < NEVER:  # the wheel knows only numbers; NaN is as far as infinity
            instant = -NEVER if instant < 0.0 else NEVER
        timer = self._wheel.arm(instant, call, argument)
        if self._set_for is None or instant < self._set_for:
            self._set(instant)
        return timer

    def after(self, seconds: float, call: Callable[[Any], None], argument: Any = None) -> Timer:
        """Call `call(argument)` in `seconds`."""
        return self.at(self._clock.now() + seconds, call, argument)

    def left(self, timer: Timer) -> float:
        """Seconds until it is due."""
        return timer.at - self._clock.now()

    def next_fire(self) -> float | None:
        """Seconds until the wake timer rings, below zero if it is overdue; None if nothing is armed.

        That may be early, after a disarm; it is never late.
        """
        return None if self._set_for is None else self._set_for - self._clock.now()

    def disarm(self, timer: Timer) -> bool:
        return self._wheel.disarm(timer)

    def clock_changed(self) -> None:
        """The offset to the database's clock changed: set the wake timer again."""
        self._set(self._wheel.soonest())

    def _set(self, instant: float | None) -> None:
        self._set_for = instant
        self._wake_timer.set(None if instant is None else instant - self._clock.offset)

    def _wake(self) -> None:
        self._set_for = None
        for timer in self._wheel.expire(self._clock.now()):
            call, argument = timer.call, timer.argument
            timer.call = timer.argument = None
            if call is not None:
                call(argument)
        soonest = self._wheel.soonest()
        if soonest is not None and (self._set_for is None or soonest < self._set_for):
            self._set(soonest)
        self.on_fired()

    def __len__(self) -> int:
        return len(self._wheel)

    def close(self) -> None:
        self._wake_timer.close()
        self._set_for = None
        self._wheel.clear()
