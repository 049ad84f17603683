"""Janitor: the chores that keep the database small and fast, each bounded and measured.

A chore that fails does not stop the others. Two janitors at once share the work.
Writes  store.tasks.partitions, store.maintenance.retention, store.maintenance.vacuum, store.access.audit,
        store.batches.settling, store.figures.rollups, store.maintenance.job_retention
        store.maintenance.chore_log   (what each chore did)
Next:   store/maintenance/retention.py
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import asyncpg

from mainspring.errors import StoreUnavailable
from mainspring.model.metrics.tallies import ChoreTally
from mainspring.store.access import audit
from mainspring.store.batches import settling
from mainspring.store.figures import rollups
from mainspring.store.maintenance import chore_log, job_retention, retention, vacuum
from mainspring.store.maintenance.chore_log import Done
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import partitions
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

DAY = timedelta(days=1)
DAYS_AHEAD = 3
AT_ONCE = 10_000  # rows that one chore deletes in one round
DROPS = 50  # partitions dropped in one round
ANALYZES = 3  # tables analyzed in one round
LOG_EVERY = 60.0  # seconds between two entries of a chore that had nothing to do
LONG = 900.0  # seconds that a transaction may be open before it is reported
MANY_DEAD = 200_000  # rows: twice the count at which autovacuum cleans the task table

# A statement or a lock that takes too long fails its chore only; any other loss of the connection stops the round.
_TOO_LONG = (TimeoutError, asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError)


class Chore(NamedTuple):
    name: str
    run: Callable[[Connection], Awaitable[int]]  # returns how many rows it changed
    most: int = AT_ONCE  # in one round: if it changed as many, there is more to do


class Janitor:
    def __init__(self, database: Database, *, keep_succeeded: timedelta, keep_failed: timedelta) -> None:
        self._database = database
        self._dedicated = database.dedicated()  # not of the pool: a chore may wait long for a lock
        self._keep_succeeded = keep_succeeded
        self._keep_failed = keep_failed
        history = max(keep_succeeded, keep_failed, DAY)
        forget = partial(retention.delete, limit=AT_ONCE, history=history)
        self._chores = [
            Chore("make partitions", lambda conn: partitions.make_ahead(conn, DAYS_AHEAD)),
            Chore("drop partitions", self._drop, most=DROPS),
            Chore("forget tasks", self._forget_tasks),
            Chore("add up figures", rollups.roll, most=1),  # one hour; after a long pause there are more
            *(Chore(f"forget {name}", partial(forget, name=name)) for name in retention.RULES),
            Chore("forget batches", lambda conn: settling.forget(conn, keep_succeeded, keep_failed, AT_ONCE)),
            Chore("forget audit", lambda conn: audit.forget(conn, keep_failed, AT_ONCE)),
            Chore("analyze", lambda conn: vacuum.analyze(conn, ANALYZES), most=ANALYZES),
            Chore("watch vacuum", self._watch_vacuum),
        ]
        self.tallies = {chore.name: ChoreTally() for chore in self._chores}
        self._unlogged: dict[str, Done] = {}  # by name, not yet in the chore log
        self._logged_at: dict[str, float] = {}
        self._blocker: vacuum.Blocker | None = None  # as last reported

    async def prepare(self) -> None:
        """Make the partitions without which nothing can be written."""
        async with self._database.acquire() as conn:
            await partitions.make_ahead(conn, DAYS_AHEAD)

    async def step(self) -> int:
        """One round; returns how many chores have more to do."""
        unfinished = 0
        for chore in self._chores:
            done = await self._do(chore)
            self._add(done)
            unfinished += done.rows >= chore.most
        await self._log()
        return unfinished

    async def _do(self, chore: Chore) -> Done:
        began = boottime()
        try:
            async with self._dedicated as conn:
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
        is_locked = isinstance(error, asyncpg.LockNotAvailableError)  # expected while people read the tables
        level = logging.INFO if is_locked else logging.WARNING
        log.log(level, "maintenance, %s: %s; again at the next round", chore.name, reason)
        return Done(chore.name, 1, 0, 1, seconds, 0, reason)

    # ── the chore log ───────────────────────────────────────────────────────────────────────────

    def _add(self, done: Done) -> None:
        tally = self.tallies.setdefault(done.name, ChoreTally())
        tally.runs += done.runs
        tally.rows += done.rows
        tally.failures += done.failures
        tally.seconds += done.seconds
        before = self._unlogged.get(done.name)
        if before is not None:
            done = done._replace(
                runs=before.runs + done.runs, rows=before.rows + done.rows, failures=before.failures + done.failures
            )
        self._unlogged[done.name] = done

    async def _log(self) -> None:
        """Log, in one statement, the chores that did something and those not logged for a minute."""
        now = boottime()
        due = [
            done
            for done in self._unlogged.values()
            if done.rows or done.failures or now - self._logged_at.get(done.name, -LOG_EVERY) >= LOG_EVERY
        ]
        if not due:
            return
        async with self._dedicated as conn:
            await chore_log.record(conn, due)
        for done in due:
            del self._unlogged[done.name]
            self._logged_at[done.name] = now

    # ── chores that log ─────────────────────────────────────────────────────────────────────────

    async def _drop(self, conn: Connection) -> int:
        keep = {"keep_succeeded": self._keep_succeeded, "keep_failed": self._keep_failed}
        longer = job_retention.longer(await job_retention.of_jobs(conn), **keep)
        dropped = await partitions.drop_old(conn, **keep, longer=longer, limit=DROPS)
        if dropped:
            log.info("retention dropped %s", ", ".join(dropped))
        return len(dropped)

    async def _forget_tasks(self, conn: Connection) -> int:
        """Delete tasks of jobs that keep them for less than the cluster, or whose longer time is over."""
        return await job_retention.forget(
            conn, keep_succeeded=self._keep_succeeded, keep_failed=self._keep_failed, limit=AT_ONCE
        )

    async def _watch_vacuum(self, conn: Connection) -> int:
        """Warn of a transaction that keeps many dead rows from being vacuumed; once for each."""
        dead = sum(table.dead for table in await vacuum.tables(conn))
        blocker = await vacuum.blocker(conn, LONG) if dead > MANY_DEAD else None
        if blocker is not None and blocker != self._blocker:
            log.warning(
                "%d dead rows cannot be vacuumed: %s is open since %s; end it, or everything gets slower",
                dead, blocker.what, blocker.since.isoformat(sep=" ", timespec="seconds"),
            )  # fmt: skip
        self._blocker = blocker
        return 0
