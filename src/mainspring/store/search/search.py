"""Search: tasks that match filters, the newest first, in bounded time however much history there is.

Most pages are full after one statement, which looks at what is recent (store/views/recent.py). Else, because ids grow
with time, a search walks down from the newest id in windows: each is an index scan of bounded length, longer while that
is fast. It stops after a full page or `patience` seconds, and says how far it got. Two filters narrow the walk itself:
times of creation, because ids follow them, and times of ends, because a BRIN index on `recorded_at` rules out most of
the history. Decision 40 has the figures.
Reads   mainspring.task, mainspring.task_history
Next:   store/views/task_views.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.connection import Connection, is_producer
from mainspring.store.postgres.rows import clamped, fetched, readable
from mainspring.store.search.filters import Conditions, Filters
from mainspring.store.views import recent
from mainspring.store.views.recent import CREATED_WITHIN
from mainspring.store.views.task_views import (
    FINISHED,
    FINISHED_SUMMARY,
    LIVE,
    LIVE_SUMMARY,
    TaskSummary,
    summarised,
    summary,
    waiting_for,
)

WINDOW = 2_000  # ids that are searched at first; more while that is fast
LONGEST = 250_000  # ids: behind a stretch without tasks, which is fast, the next window may be full of them
FAST, SLOW = 0.03, 0.08  # seconds for a window: the next one is longer, or shorter
PATIENCE = 0.3  # seconds that a search takes, and one window more
MOST_COUNTED = 10_000
ROWS_AT_ONCE = 100  # that become views within half a millisecond

_LAST_ID = 2**63 - 1


class Found(NamedTuple):
    tasks: list[TaskSummary]
    next: int | None  # tasks before this id were not searched; None: there are none
    searched_to: datetime | None = None  # when the oldest that was searched was created, if the time ran out
    size: int = 0  # characters of JSON and errors in them, if they are whole


class FoundIds(NamedTuple):
    ids: list[int]
    next: int | None


class Count(msgspec.Struct, frozen=True):
    count: int
    is_exact: bool  # False: there are more, or the time ran out


_NEWEST = """
    select coalesce(greatest((select max(id) from mainspring.task), (select max(id) from mainspring.task_history)), 0)
"""
_OLDEST = """
    select coalesce(least((select min(id) from mainspring.task), (select min(id) from mainspring.task_history)), 0)
"""
# The first task from an id on, which need not exist.
_FROM = """
    select id, created_at from (
        (select t.id, t.created_at from mainspring.task t where t.id >= $1 order by t.id limit 1)
        union all
        (select t.id, t.created_at from mainspring.task_history t where t.id >= $1 order by t.id limit 1)
    ) found order by id limit 1
"""


class _Walk:
    """The ids that remain to be searched: from `first` to before `end`, downwards."""

    def __init__(self, conn: Connection, patience: float | None) -> None:
        self._conn = conn
        self._began_at = monotonic()
        self._stop_at = self._began_at + (PATIENCE if patience is None else patience)
        self._window = WINDOW
        self._asked_at = 0.0
        self._first: int | None = None  # asked for once it matters: most pages are full after one window
        self.end = 0

    def has_begun(self) -> None:
        """The first window was searched; there are more only if there is time."""
        self._asked_at = self._began_at

    async def begin(self, filters: Filters, before: int) -> None:
        self.end = before
        if filters.created_after is not None:
            self._first = await self._id_at(filters.created_after - CREATED_WITHIN)
        # What ended before an instant was created before it.
        if (latest := min(filter(None, (filters.created_before, filters.finished_before)), default=None)) is not None:
            self.end = min(self.end, await self._id_at(latest + CREATED_WITHIN))
        if filters.ids:
            self.end = min(self.end, max(filters.ids) + 1)
        if filters.ids or filters.parents or filters.batches:
            self._window = max(WINDOW, self.end)  # these, runs of a broadcast, and tasks of a batch, have an index

    async def _id_at(self, instant: datetime) -> int:
        """The first id that was created at `instant` or later, by bisection."""
        low, high = await self._oldest(), self.end
        while low < high:
            middle = (low + high) // 2
            rows = await readable(self._conn, _FROM, middle)
            if not rows or rows[0]["created_at"] >= instant:
                high = middle
            else:
                low = rows[0]["id"] + 1
        return low

    async def _oldest(self) -> int:
        if self._first is None:
            self._first = await self._conn.fetchval(_OLDEST)
        return self._first

    async def is_over(self) -> bool:
        """Whether nothing remains to be searched."""
        return self.end <= await self._oldest()

    async def next(self) -> tuple[int, int] | None:
        """The next window, from and before; None if there is none, or no time."""
        if self._asked_at and (monotonic() >= self._stop_at or await self.is_over()):
            return None
        if self._asked_at:
            self._window = self._next_window(monotonic())
        start = self.end - self._window if self._first is None else max(self._first, self.end - self._window)
        self._asked_at = monotonic()
        window = start, self.end
        self.end = min(window)
        return window

    def _next_window(self, now: float) -> int:
        """As many ids as the last window suggests: it should end about when the time does."""
        took = max(now - self._asked_at, 0.001)
        wanted = self._window * 4 if took < FAST else self._window if took < SLOW else self._window // 2
        in_time = int(self._window * (self._stop_at - now + SLOW) / took)
        return max(WINDOW, min(wanted, in_time, LONGEST))

    async def searched_to(self) -> datetime | None:
        rows = await readable(self._conn, _FROM, self.end)
        return rows[0]["created_at"] if rows else None


class _Columns(NamedTuple):
    """What a search selects: first the id, at the place `created_at` that time, from `heavy` on what takes room."""

    live: str
    finished: str
    joined: Callable[[str], str]  # the statement, from one that finds these columns
    created_at: int = 7
    heavy: int = 24


_IDS = _Columns("t.id, t.created_at", "t.id, t.created_at", "select found.* from ({}) found".format, created_at=1)
_SUMMARIES = _Columns(LIVE_SUMMARY, FINISHED_SUMMARY, partial(summarised, whole=False))
_WHOLE = _Columns(LIVE, FINISHED, partial(summarised, whole=True))


async def search(
    conn: Connection,
    filters: Filters,
    *,
    before: int | None = None,
    limit: int,
    whole: bool = False,
    patience: float | None = None,
) -> Found:
    """The newest tasks that match, those before the id `before`; those that are `whole` have args, result and error."""
    columns = _WHOLE if whole else _SUMMARIES
    rows, following, searched_to = await _search(conn, filters, before, limit, columns, patience)
    blocked = [row[0] for row in rows if row["state"] == TaskState.BLOCKED]
    waits = await waiting_for(conn, blocked) if blocked else {}
    found, size = [], 0
    for number, row in enumerate(rows, 1):
        found.append(await summary(row, waits.get(row[0], [])))
        size += sum(len(text) for text in row[columns.heavy :] if text)
        if number % ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)  # others on this event loop have their turn
    return Found(found, following, searched_to, size)


async def ids(conn: Connection, filters: Filters, *, before: int | None = None, limit: int) -> FoundIds:
    """The ids alone of the tasks that `search` finds."""
    rows, following, _ = await _search(conn, filters, before, limit, _IDS, None)
    return FoundIds([row[0] for row in rows], following)


async def _search(
    conn: Connection, filters: Filters, before: int | None, limit: int, columns: _Columns, patience: float | None
) -> tuple[list[Any], int | None, datetime | None]:
    """Rows, the id before which was not searched, and when the oldest that was searched was created."""
    if not filters.may_be_live and not filters.may_be_finished:
        return [], None, None
    walk = _Walk(conn, patience)
    rows = await _recent(conn, filters, before, limit + 1, columns)
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1][0], None
    if rows:
        walk.has_begun()
    conditions = Conditions(filters)
    sql = _newest(conn, conditions, columns)
    async with _planned_for(conn, filters) as behind_newest:
        await walk.begin(filters, rows[-1][0] if rows else behind_newest if before is None else before)
        while len(rows) <= limit and (window := await walk.next()) is not None:
            rows += await fetched(conn, sql, *window, limit + 1 - len(rows), *conditions.parameters)
        is_over = len(rows) <= limit and await walk.is_over()
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1][0], None
    return (rows, None, None) if is_over else (rows, walk.end, await walk.searched_to())


async def _recent(conn: Connection, filters: Filters, before: int | None, most: int, columns: _Columns) -> list[Any]:
    """The newest that match, as far as it is certain that none is missing between them."""
    if filters.bounds_ids or is_producer(conn):
        return []
    since = recent.since()
    conditions = Conditions(filters, window=WINDOW, since=since)
    window = (None, _LAST_ID) if before is None else (before - WINDOW, before)
    rows = await fetched(conn, _newest(conn, conditions, columns), *window, most, *conditions.parameters)
    for place, row in enumerate(rows):
        if not recent.is_next(clamped(row[columns.created_at]), since):
            return rows[:place]
    return rows


def _newest(conn: Connection, conditions: Conditions, columns: _Columns) -> str:
    found = conditions.select(conn, columns.live, columns.finished)
    return columns.joined(f"select * from ({found}) found order by id desc limit $3") + " order by found.id desc"


@asynccontextmanager
async def _planned_for(conn: Connection, filters: Filters) -> AsyncIterator[int]:
    """How PostgreSQL plans the windows. In general once for all: a scan of ids; with many partitions a plan costs more
    than the scan. Searches by the time of their end are planned by their values, to use the BRIN index and leave out
    whole days. They prune, which the engine's connections do not (partitions.go_through_all); a search locks no row.
    Yields the id behind the newest.
    """
    by_end = filters.finished_after is not None
    is_within = conn.is_in_transaction()
    async with conn.transaction():
        pruning, mode, newest, *_ = await conn.fetchrow(
            _PLANNING, "on" if by_end else "off", "force_custom_plan" if by_end else "force_generic_plan"
        )
        yield newest + 1
        if is_within:  # else they end with the transaction
            await conn.fetchrow(_PLANNING, pruning, mode)


# Sets both, and returns what they were before.
_PLANNING = f"""
    select was.pruning, was.mode, ({_NEWEST}) as newest,
           set_config('enable_partition_pruning', $1, true), set_config('plan_cache_mode', $2, true)
      from (select current_setting('enable_partition_pruning') as pruning, current_setting('plan_cache_mode') as mode
            offset 0) was
"""


async def count(
    conn: Connection, filters: Filters, *, most: int = MOST_COUNTED, patience: float | None = None
) -> Count:
    """How many match, up to `most`."""
    if not filters.may_be_live and not filters.may_be_finished:
        return Count(0, True)
    conditions = Conditions(filters)
    sql = f"select count(*) from ({conditions.select(conn, 't.id', 't.id')}) found"
    walk = _Walk(conn, patience)
    found = 0
    async with _planned_for(conn, filters) as behind_newest:
        await walk.begin(filters, behind_newest)
        while found <= most and (window := await walk.next()) is not None:
            found += await conn.fetchval(sql, *window, most + 1 - found, *conditions.parameters)
        return Count(min(found, most), found <= most and await walk.is_over())
