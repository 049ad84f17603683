"""How a process that we start ourselves runs: on uvloop, with rare garbage collections, until a signal.

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
    """Run `main` to its end, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.run(main)
    result: T = uvloop.run(main)
    return result


def settle_memory() -> None:
    """Call once all is loaded and started. A full collection takes milliseconds that a fire would wait for.

    What is there now stays, so it need not be looked at again; and work that makes few cycles needs few looks.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


class _Format(logging.Formatter):
    """One line per record; what a handler logs says for which job and task."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        job, task = getattr(record, "job", None), getattr(record, "task", None)
        told = "" if task is None or record.name == "mainspring.job" else f"[{job} {task}] "  # those say it themselves
        return f"{record.asctime} {record.levelname} {told}{record.message}"


def log_to_stderr(level: int) -> None:
    """Before the application is loaded, which may set up its own logging."""
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(_Format("%(asctime)s"))
    logging.basicConfig(level=level, handlers=[to_stderr])
    add_log_context()
    logging.getLogger("websockets").setLevel(logging.WARNING)  # we say who comes and goes, by name
    logging.raiseExceptions = False  # a closed stderr is no reason to stop


def add_log_context() -> None:
    """Put job and task on the records of every handler of the logging module that there is."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if not any(isinstance(there, LogContext) for there in handler.filters):
                handler.addFilter(LogContext())


class Signals:
    """The first signal asks to stop, which sets `asked`; each further one calls `hurry`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry: Callable[[], object] = stop_at_once  # until there is something better to do
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
    """End the process now if a handler's thread cannot be stopped: Python would wait for it for ever."""
    deadline = time.monotonic() + patience
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _end(status)


def stop_at_once() -> None:
    """End the process now. To put away what is open would mean to wait for it, maybe for a PostgreSQL that is gone.

    Nothing is lost that a kill -9 would not lose: leases end by themselves.
    """
    note("stopped at once")
    _end(0)


def _end(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
