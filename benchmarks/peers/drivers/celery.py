"""Celery on Redis: a pool of threads, no results, acknowledged before they run (its default).

The pool `solo` is as fast, but when many ETAs are due at once it starts only some ten tasks a second: its event loop
runs ten timers, then waits. The pool of threads has a timer of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from benchmarks.peers.drivers.protocol import Driver, Producer, Starts, serve, when_closed


def make_app(address: str, starts: Starts | None = None) -> Any:
    app = Celery("peers", broker=address)
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=256,
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )

    def stamp(number: int) -> None:
        assert starts is not None
        starts.note(number)

    app.task(name="stamp")(stamp)
    return app


class CeleryProducer(Producer):
    """It has no bulk submission: a group sends its tasks one by one."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def one(self, number: int, at: float | None = None) -> None:
        eta = None if at is None else datetime.fromtimestamp(at, UTC)
        self._app.send_task("stamp", (number,), eta=eta)


class CeleryDriver(Driver):
    def work(self, address: str, part: str, starts: Starts) -> None:
        """A warm shutdown on SIGTERM, sent by this process to itself."""
        app = make_app(address, starts)
        worker_ready.connect(lambda **_: starts.ready(), weak=False)
        when_closed(lambda: os.kill(os.getpid(), signal.SIGTERM))
        quiet = ["--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        with suppress(SystemExit):
            app.worker_main(["worker", "--pool", "threads", "--concurrency", "1", *quiet])

    @asynccontextmanager
    async def producer(self, address: str) -> AsyncIterator[Producer]:
        app = make_app(address)
        yield CeleryProducer(app)
        app.close()


if __name__ == "__main__":
    serve(CeleryDriver())
