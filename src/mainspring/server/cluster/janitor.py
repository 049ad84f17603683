"""Janitor: the chores that keep the database small and quick, each bounded, each measured.

One that fails does not keep the others from being done. Two janitors at once share the work.
Writes  store.partitions, store.forgetting, store.upkeep; what each came to: store.chores
Next:   docs/maintenance.md
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import asyncpg

from mainspring.errors import StoreUnavailable
from mainspring.store.maintenance import chore_log, retention, vacuum
from mainspring.store.maintenance.chore_log import Done
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import partitions
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

DAYS_AHEAD = 3
AT_ONCE = 10_000  # rows that one chore deletes in one round
DROPS = 50  # partitions that are dropped in one round
ANALYZES = 3  # tables in one round
TELL_EVERY = 60.0  # seconds between two words of a chore that had nothing to do
LONG = 900.0  # seconds that a transaction may be open before it is told of
MANY_DEAD = 200_000  # rows: twice what autovacuum lets the table of tasks come to

# A statement that took too long is its chore's failure; with the connection gone for other reasons, all wait.
_TOO_LONG = (TimeoutError, asyncpg.QueryCanceledError)


class Chore(NamedTuple):
    name: str
    run: Callable[[Connection], Awaitable[int]]  # returns how many rows it was about
    most: int = AT_ONCE  # in one round: if it did as much, there is more


class Janitor:
    def __init__(self, database: Database, *, keep_succeeded: timedelta, keep_failed: timedelta) -> None:
        self._database = database
        self._line = database.line()  # of its own: what waits for a lock must not keep a place of the pool
        self._keep_succeeded = keep_succeeded
        self._keep_failed = keep_failed
        forget = partial(retention.delete, limit=AT_ONCE, history=max(keep_succeeded, keep_failed))
        self._chores = [
            Chore("make partitions", lambda conn: partitions.make_ahead(conn, DAYS_AHEAD)),
            Chore("drop partitions", self._drop, most=DROPS),
            *(Chore(f"forget {name}", partial(forget, name=name)) for name in retention.RULES),
            Chore("analyze", lambda conn: vacuum.analyze(conn, ANALYZES), most=ANALYZES),
            Chore("watch vacuum", self._watch_vacuum),
        ]
        self._untold: dict[str, Done] = {}  # by name, what has not been written yet
        self._told_at: dict[str, float] = {}
        self._brake: vacuum.Blocker | None = None  # that was told of

    async def prepare(self) -> None:
        """What must be there before anything is written."""
        async with self._database.acquire() as conn:
            await partitions.make_ahead(conn, DAYS_AHEAD)

    async def step(self) -> int:
        """One round; returns how many chores have more to do."""
        unfinished = 0
        for chore in self._chores:
            done = await self._do(chore)
            self._note(done)
            unfinished += done.rows >= chore.most
        await self._tell()
        return unfinished

    async def _do(self, chore: Chore) -> Done:
        began = boottime()
        try:
            async with self._line as conn:
                rows = await chore.run(conn)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, _TOO_LONG):
                raise
            return self._failed(chore, error.__cause__, boottime() - began)
        except asyncpg.PostgresError as error:
            return self._failed(chore, error, boottime() - began)
        return Done(chore.name, 1, rows, 0, boottime() - began, rows, None)

    def _failed(self, chore: Chore, error: BaseException, seconds: float) -> Done:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        level = (
            logging.INFO if isinstance(error, asyncpg.LockNotAvailableError) else logging.WARNING
        )  # a reader is no fault
        log.log(level, "maintenance, %s: %s; again at the next round", chore.name, reason)
        return Done(chore.name, 1, 0, 1, seconds, 0, reason)

    # ── what they came to ───────────────────────────────────────────────────────────────────────

    def _note(self, done: Done) -> None:
        before = self._untold.get(done.name)
        if before is not None:
            done = done._replace(
                runs=before.runs + done.runs, rows=before.rows + done.rows, failures=before.failures + done.failures
            )
        self._untold[done.name] = done

    async def _tell(self) -> None:
        """Write it down, in one statement: for those that did something, or have been silent for a minute."""
        now = boottime()
        due = [
            done
            for done in self._untold.values()
            if done.rows or done.failures or now - self._told_at.get(done.name, -TELL_EVERY) >= TELL_EVERY
        ]
        if not due:
            return
        async with self._line as conn:
            await chore_log.record(conn, due)
        for done in due:
            del self._untold[done.name]
            self._told_at[done.name] = now

    # ── chores with something to say ────────────────────────────────────────────────────────────

    async def _drop(self, conn: Connection) -> int:
        dropped = await partitions.drop_old(
            conn, keep_succeeded=self._keep_succeeded, keep_failed=self._keep_failed, limit=DROPS
        )
        if dropped:
            log.info("retention dropped %s", ", ".join(dropped))
        return len(dropped)

    async def _watch_vacuum(self, conn: Connection) -> int:
        """Say who keeps many dead rows from being vacuumed; once for each."""
        dead = sum(table.dead for table in await vacuum.tables(conn))
        brake = await vacuum.blocker(conn, LONG) if dead > MANY_DEAD else None
        if brake is not None and brake != self._brake:
            log.warning(
                "%d dead rows cannot be vacuumed: %s is open since %s; end it, or everything gets slower",
                dead, brake.what, brake.since.isoformat(sep=" ", timespec="seconds"),
            )  # fmt: skip
        self._brake = brake
        return 0

    async def close(self) -> None:
        await self._line.close()
