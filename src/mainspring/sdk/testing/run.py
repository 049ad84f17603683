"""Run: an application on a database of its own, run until idle, with a clock that tests move.

    async with mainspring.testing.running(app) as run:
        task = await report.using(delay="1h").enqueue("2026-11-15")
        await run.advance("1h")
        await run.until_idle()
        assert (await task.status()).state == "succeeded"

With pytest the fixture `mainspring_running` does the same. The database is a real one, dropped at the end.
Next: store/testing/databases.py
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from mainspring.compose import local, stores
from mainspring.errors import ValidationError, WaitTimeout, shown
from mainspring.model.words.durations import Duration, seconds
from mainspring.sdk.app import App
from mainspring.store.postgres.database import Database
from mainspring.store.testing import clock, databases

__all__ = ["Run", "database", "running"]


class Run:
    """An application that runs for a test."""

    def __init__(self, app: App, database: Database) -> None:
        self.app = app
        self._database = database
        self._shift = 0.0

    async def advance(self, duration: Duration) -> datetime:
        """Set the clock of the database forward, and with it every process on it; returns the new time."""
        step = seconds(duration, field="duration")
        self._shift += step
        async with self._database.acquire() as conn:
            await clock.set_forward(conn, self._shift, step)
        engine = self.app.engine
        if engine is not None:
            await engine.follow_clock()
        return await self.now()

    async def now(self) -> datetime:
        async with self._database.acquire() as conn:
            return await clock.now(conn)

    async def until_idle(self, timeout: float = 30.0) -> None:
        """Wait until nothing is due and nothing runs. Use `advance` to get to what is due later."""
        timeout = seconds(timeout, field="timeout")
        try:
            async with asyncio.timeout(timeout):
                while await self._busy():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise WaitTimeout(f"tasks are still due or running after {timeout:g} s") from None

    async def _busy(self) -> bool:
        async with self._database.acquire() as conn:
            return await clock.is_busy(conn)


@asynccontextmanager
async def database() -> AsyncIterator[str]:
    """A new database with an empty schema; yields its DSN, and drops it at the end.

    On the server that MAINSPRING_TEST_DSN names, else on an embedded one for tests alone.
    """
    server = os.environ.get("MAINSPRING_TEST_DSN")
    if not server:
        server = await databases.embedded_server(stores.data_directory(local.load()) / "tests")
    async with databases.new_database(server) as dsn:
        yield dsn


@asynccontextmanager
async def running(app: App, **settings: Any) -> AsyncIterator[Run]:
    """Run an application on a new database until the block ends."""
    if not isinstance(app, App):
        raise ValidationError(f"app: {shown(app)} is not a mainspring.App", field="app")
    if app.loop is not None:
        raise ValidationError("the application is open already, on a database of its own; close it first", field="app")
    async with database() as dsn, app.running(dsn=dsn, **settings):
        yield Run(app, app.database)
