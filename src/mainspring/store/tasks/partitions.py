"""Partitions: the tables of the history by day, made ahead and dropped by retention.

A table is created apart and then attached, which does not wait for readers. Where jobs keep their tasks longer than the
cluster, a day past its retention is condensed in place of dropped: a table with only their rows takes its place, and
the days of a month become one. The names of such tables end in k.
Next: store/maintenance/retention.py
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

import asyncpg

from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import affected

PARENTS = ("task_history_succeeded", "task_history_failed", "attempt", "output", "fire")
WITH_DEFAULT = ("fire",)  # rows without a partition for their day are in the default one
LOCK_TIMEOUT = "500ms"  # a statement that waits for a table lock blocks all statements behind it
T = TypeVar("T")

log = logging.getLogger("mainspring")

_LOCK = "select true from mainspring.work_lock where name = 'partitions' for update"

_EXISTING = """
    select parent.relname as parent, child.relname as child
      from pg_inherits
      join pg_class parent on parent.oid = inhparent
      join pg_class child on child.oid = inhrelid
      join pg_namespace space on space.oid = parent.relnamespace
     where space.nspname = 'mainspring' and parent.relname = any($1::text[]) and child.relname !~ '_default$'
"""


def _name(parent: str, day: date) -> str:
    return f"{parent}_{day:%Y%m%d}"


CONDENSED = "k"  # the end of a name


async def _existing(conn: Connection) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {parent: set() for parent in PARENTS}
    for row in await conn.fetch(_EXISTING, list(PARENTS)):
        found[row["parent"]].add(row["child"])
    return found


def _is_there(parent: str, day: date, existing: Mapping[str, set[str]]) -> bool:
    """The clock may have been set back to a day that is condensed."""
    names = (_name(parent, day), _name(parent, day) + CONDENSED, _month_name(parent, day))
    return not existing[parent].isdisjoint(names)


def _month_name(parent: str, day: date) -> str:
    return f"{parent}_{day:%Y%m}{CONDENSED}"


async def days(conn: Connection, parent: str) -> list[datetime]:
    """When the days begin that a table has, in order."""
    found: set[datetime] = set()
    for name in (await _existing(conn))[parent]:
        day = name.rpartition("_")[2].rstrip(CONDENSED)
        is_month = len(day) == 6
        first = datetime.strptime(day, "%Y%m" if is_month else "%Y%m%d").replace(tzinfo=UTC)
        all_days = (first + timedelta(days=number) for number in range(31 if is_month else 1))
        found.update(one for one in all_days if one.month == first.month)
    return sorted(found)


async def make_ahead(conn: Connection, days: int) -> int:
    """Make the partitions of today and the next `days` days; returns how many were missing."""
    now: datetime = await conn.fetchval("select mainspring.now()")
    today = now.astimezone(UTC).date()
    existing = await _existing(conn)
    missing = [
        (parent, day)
        for parent in PARENTS
        for day in (today + timedelta(days=ahead) for ahead in range(-1, days + 1))
        if not _is_there(parent, day, existing)
    ]
    if missing:
        async with conn.transaction():
            await conn.execute(_LOCK)
            existing = await _existing(conn)  # another process may have made them meanwhile
            for parent, day in missing:
                if not _is_there(parent, day, existing):
                    await (_make_beside_default if parent in WITH_DEFAULT else _make)(conn, parent, day)
    return len(missing)


async def _make(conn: Connection, parent: str, day: date) -> None:
    await conn.execute("select mainspring.make_partition($1, $2)", parent, day)


async def _make_beside_default(conn: Connection, parent: str, day: date) -> None:
    """Needs the default partition locked for a moment. While that is being read for long, it takes the day's rows."""
    try:
        async with conn.transaction():
            await conn.execute(f"set local lock_timeout = '{LOCK_TIMEOUT}'")
            await _make(conn, parent, day)
    except asyncpg.LockNotAvailableError:
        log.warning("the partition of %s for %s is made later: the default one is being read", parent, day)


async def go_through_all(conn: Connection) -> None:
    """Turn off partition pruning for the rest of the transaction.

    PostgreSQL 18 (18.4 and before) may crash where a statement prunes at run time and rechecks a row that it waited
    for: the recheck shares, and frees, the state of the pruning. The engine's own connections never prune.
    """
    await conn.execute("set local enable_partition_pruning = off")


async def write(conn: Connection, statement: Callable[[], Awaitable[T]]) -> T:
    """Run a statement that writes to the history; if the partition of the day is missing, make it and repeat."""
    try:
        async with conn.transaction() if conn.is_in_transaction() else nullcontext():
            return await statement()
    except asyncpg.CheckViolationError:
        if not await make_ahead(conn, days=1):
            raise
        return await statement()


async def execute(conn: Connection, statement: str, *arguments: Any) -> int:
    """`write` for a statement that returns no rows; returns how many it affected."""
    return affected(await write(conn, lambda: conn.execute(statement, *arguments)))


CONDENSE_WITHIN = 600.0  # seconds: it reads a whole day


async def drop_old(
    conn: Connection,
    *,
    keep_succeeded: timedelta,
    keep_failed: timedelta,
    longer: Mapping[str, Mapping[int, timedelta]] | None = None,
    limit: int = 1000,
) -> list[str]:
    """Drop partitions whose day is past retention; attempts and output stay as long as the longer of the two.

    `longer` has, by table, jobs that keep their tasks longer than that, and how long: their rows stay.
    Each in its own transaction, at most `limit`. A table that is being read is left for the next call;
    LockNotAvailableError if that left nothing to drop.
    """
    now: datetime = await conn.fetchval("select mainspring.now()")
    longest = max(keep_succeeded, keep_failed)
    keep = dict.fromkeys(PARENTS, longest) | {
        "task_history_succeeded": keep_succeeded,
        "task_history_failed": keep_failed,
    }
    dropped: list[str] = []
    refused: asyncpg.LockNotAvailableError | None = None
    for parent, children in (await _existing(conn)).items():
        jobs = {} if longer is None else longer.get(parent, {})
        oldest = (now.astimezone(UTC) - keep[parent]).date()
        last = (now.astimezone(UTC) - max([keep[parent], *jobs.values()])).date()
        old = [name for name in sorted(children) if name < _name(parent, last if name.endswith(CONDENSED) else oldest)]
        for name in old[: limit - len(dropped)]:
            kept = [] if name.endswith(CONDENSED) or name < _name(parent, last) else list(jobs)
            try:
                if not await _drop(conn, name, kept):
                    return dropped  # another process makes or drops some: two at once block each other
                dropped.append(name)
                if not name.endswith(CONDENSED):
                    await _merge(conn, parent, oldest)
            except asyncpg.LockNotAvailableError as error:
                refused = error
                break  # it locks its parent too: the next one would wait as long
    if refused is not None and not dropped:
        raise refused
    return dropped


async def _drop(conn: Connection, name: str, kept: list[int]) -> bool:
    """Drop a partition, but for the rows of the jobs that are `kept`. False: another process makes or drops one."""
    async with conn.transaction():
        if not await conn.fetchval(f"{_LOCK} skip locked"):
            return False
        await conn.execute(f"set local lock_timeout = '{LOCK_TIMEOUT}'")
        if not kept:
            await conn.execute("select mainspring.drop_partition($1)", name)
            return True
        await conn.execute(f"set local statement_timeout = '{CONDENSE_WITHIN:.0f}s'")
        condense = "select mainspring.condense_partition($1, $2)"
        rows = await conn.fetchval(condense, name, kept, timeout=CONDENSE_WITHIN)
        log.info("retention: %s had %d rows of jobs that keep them longer", name, rows)
    return True


async def _merge(conn: Connection, parent: str, oldest: date) -> None:
    """Make one table of the condensed days of the first month that is over, before `oldest`, if there is one."""
    names = (await _existing(conn))[parent]
    condensed = sorted(name for name in names if re.fullmatch(rf"{parent}_\d{{8}}{CONDENSED}", name))
    if not condensed:
        return
    month = datetime.strptime(condensed[0][-9:-1], "%Y%m%d").date().replace(day=1)
    following = (month + timedelta(days=31)).replace(day=1)
    if following > oldest or not names.isdisjoint(_name(parent, month + timedelta(days=n)) for n in range(31)):
        return
    async with conn.transaction():
        if await conn.fetchval(f"{_LOCK} skip locked"):
            await conn.execute(f"set local lock_timeout = '{LOCK_TIMEOUT}'")
            await conn.execute(f"set local statement_timeout = '{CONDENSE_WITHIN:.0f}s'")
            merge = "select mainspring.merge_partitions($1, $2)"
            rows = await conn.fetchval(merge, parent, month, timeout=CONDENSE_WITHIN)
            log.info("retention: %d rows of %s that are kept longer are in one table", rows, _month_name(parent, month))
