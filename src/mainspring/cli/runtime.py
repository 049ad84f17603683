"""Runtime: how a process runs: on uvloop, with rare garbage collections, until a signal.

What a first SIGTERM does, after it has set StopSignals.asked:

    worker, up   App.running ends → Engine (compose/local.py): Server.stop drains the agent of this process
    server       serving ends (compose/network.py): Server.leave, Endpoint.close, Server.stop
    agent        RemoteAgent.__aexit__ (compose/network.py): Agent.drain, Agent.close
Next: cli/processes/run.py
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from mainspring.agent.context import LogContext
from mainspring.cli.render import note

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on uvloop, where there is one."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(main)
    result: T = uvloop.run(main)
    return result


def settle_memory() -> None:
    """Call once everything is loaded and started: a full garbage collection delays a fire by milliseconds.

    What is loaded now stays loaded and need not be scanned again. What comes later makes few cycles: young objects are
    looked at often and few at a time, 0.1 ms for a thousand, and old ones hardly ever.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 500, 100)


class _Format(logging.Formatter):
    """One line per record. Records of handlers name their job and task."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        job, task = getattr(record, "job", None), getattr(record, "task", None)
        # The messages of mainspring.job name them already.
        context = "" if task is None or record.name == "mainspring.job" else f"[{job} {task}] "
        return f"{record.asctime} {record.levelname} {context}{record.message}"


def log_to_stderr(level: int) -> None:
    """Call before the application is loaded: it may set up logging itself."""
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(_Format("%(asctime)s"))
    logging.basicConfig(level=level, handlers=[to_stderr])
    add_log_context()
    logging.getLogger("websockets").setLevel(logging.WARNING)  # our own lines name the agents that connect
    logging.raiseExceptions = False  # a closed stderr is no reason to stop


def add_log_context() -> None:
    """Add job and task to the records of every logging handler there is now."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if not any(isinstance(present, LogContext) for present in handler.filters):
                handler.addFilter(LogContext())


class StopSignals:
    """The first signal sets `asked`; each further one calls `hurry`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry: Callable[[], object] = stop_at_once  # until the process sets its own
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP for us
                loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        if self.asked.is_set():
            self.hurry()
        else:
            self.asked.set()


def leave_threads_behind(status: int, patience: float = 0.5) -> None:
    """End the process if a handler's thread does not end: Python would wait for it without limit."""
    deadline = time.monotonic() + patience
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _end(status)


def stop_at_once() -> None:
    """End the process without closing anything, because PostgreSQL may not answer.

    It loses no more than `kill -9` does: leases expire.
    """
    note("stopped at once")
    _end(0)


def _end(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
