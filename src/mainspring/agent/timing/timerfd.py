"""WakeTimer: calls back on the event loop at an instant of the boot-time clock, to a fraction of a millisecond.

Event loops round their timers to a millisecond. A Linux timerfd does not; other systems use a sleeping thread.
Next: agent/run/workers.py
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from mainspring.wire.clock import boottime

_CLOCK_BOOTTIME = 7
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class TimerfdTimer:
    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_BOOTTIME, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        loop.add_reader(self._fd, self._ready)

    def set(self, at: float | None) -> None:
        """Call back at `at` (boot time), or never; replaces the previous instant."""
        if self._fd < 0:
            return  # closed; the descriptor may belong to another file by now
        seconds, nanoseconds = 0, 0  # disarms
        if at is not None:
            total = max(int(at * 1e9), 1)  # zero would disarm
            seconds, nanoseconds = divmod(total, 1_000_000_000)
        spec = struct.pack("qqqq", 0, 0, seconds, nanoseconds)
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, spec, None)

    def _ready(self) -> None:
        with suppress(BlockingIOError):  # set again in the meantime
            os.read(self._fd, 8)
        self._call()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


class ThreadTimer:
    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._at: float | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="mainspring wake timer", daemon=True)
        self._thread.start()

    def set(self, at: float | None) -> None:
        with self._changed:
            self._at = at
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                wait = None if self._at is None else self._at - boottime()
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                self._at = None
                with suppress(RuntimeError):  # the loop has closed
                    self._loop.call_soon_threadsafe(self._call)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()


WakeTimer = TimerfdTimer | ThreadTimer


def make_wake_timer(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> WakeTimer:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError, NotImplementedError):
            return TimerfdTimer(loop, call)
    return ThreadTimer(loop, call)
