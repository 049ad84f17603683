"""Testing: an application on a database of its own, run until idle, with a clock that tests move.

    async with mainspring.testing.running(app) as run:
        task = await report.using(delay="1h").enqueue("2026-11-15")
        await run.advance("1h")
        await run.until_idle()
        assert (await task.status()).state == "succeeded"

With pytest the fixture `mainspring_running` does the same. The database is a real one, dropped at the end.
Next: sdk/testing/databases.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from mainspring.errors import ValidationError, WaitTimeout
from mainspring.model.words.durations import Duration, seconds
from mainspring.sdk.app import App
from mainspring.sdk.testing.databases import database
from mainspring.store.postgres.database import Database
from mainspring.store.tasks import partitions

__all__ = ["Run", "database", "running"]


class Run:
    """An application that runs for a test."""

    def __init__(self, app: App, database: Database) -> None:
        self.app = app
        self._database = database
        self._shift = 0.0

    async def advance(self, duration: Duration) -> datetime:
        """Move the clock of the database, and with it all that runs on it; returns the new time."""
        step = seconds(duration, field="duration")
        self._shift += step
        async with self._database.acquire() as conn:
            await conn.execute(f"""
                create or replace function mainspring.now() returns timestamptz
                    language sql volatile parallel safe
                    as 'select clock_timestamp() + interval ''{self._shift:.6f} seconds''';
                -- nobody has been silent for so long
                update mainspring.agent set lease_until = lease_until + interval '{step:.6f} seconds'
                 where ended_at is null;
                update mainspring.server set lease_until = lease_until + interval '{step:.6f} seconds'
                 where ended_at is null;
                update mainspring.leader set lease_until = lease_until + interval '{step:.6f} seconds';
            """)
            await partitions.make_ahead(conn, days=3)
        engine = self.app.engine
        if engine is not None:
            await engine.follow_clock()
        return await self.now()

    async def now(self) -> datetime:
        async with self._database.acquire() as conn:
            now: datetime = await conn.fetchval("select mainspring.now()")
        return now

    async def until_idle(self, timeout: float = 30.0) -> None:
        """Wait until nothing is due and nothing runs. What lies in the future stays there: `advance` to it."""
        try:
            async with asyncio.timeout(timeout):
                while await self._busy():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise WaitTimeout(f"tasks are still due or running after {timeout:g} s") from None

    async def _busy(self) -> bool:
        async with self._database.acquire() as conn:
            busy: bool = await conn.fetchval("""
                select exists (select from mainspring.task
                                where state in (1, 2, 3) and run_at <= mainspring.now()
                                  and pool <> 0)                    -- a daemon is never done
                    or exists (select from mainspring.dependency d
                                where not exists (select from mainspring.task t where t.id = d.parent))
                    or exists (select from mainspring.schedule where look_at <= mainspring.now() and problem is null)
            """)
        return busy


@asynccontextmanager
async def running(app: App, **settings: Any) -> AsyncIterator[Run]:
    """Run an application on a new database."""
    if app.loop is not None:
        raise ValidationError("the application is open already, on a database of its own; close it first", field="app")
    async with database() as dsn, app.running(dsn=dsn, **settings):
        yield Run(app, app.database)
