"""Search: tasks that match filters, the newest first, in bounded time however much history there is.

Ids grow with time, so a search walks down from the newest id in windows: each is an index scan of bounded length,
longer while that is fast. It stops after a full page or `patience` seconds, and says how far it got. Two filters
narrow the walk itself: times of creation, because ids follow them, and times of ends, because a BRIN index on
`recorded_at` rules out most of the history. Decision 40 has the figures.
Reads   mainspring.task, mainspring.task_history
Next:   store/search/task_views.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from mainspring.model.tasks.states import TERMINAL, TaskState
from mainspring.store.postgres.connection import Connection, is_producer
from mainspring.store.postgres.rows import readable
from mainspring.store.search.task_views import (
    FINISHED,
    FINISHED_SUMMARY,
    LIVE,
    LIVE_SUMMARY,
    TaskView,
    named,
    task_views,
    waiting_for,
)

WINDOW = 2_000  # ids that are searched at first; more while that is fast
FAST, SLOW = 0.03, 0.08  # seconds for a window: the next one is longer, or shorter
PATIENCE = 0.3  # seconds that a search takes, and one window more
MOST_COUNTED = 10_000

# What is recorded was finished at most so long after that by the database's clock: it may have been set back.
_RECORDED_LATER = timedelta(hours=1)
# Ids follow times of creation within this: a transaction may draw an id and be slow.
_CREATED_WITHIN = timedelta(minutes=1)

_FAILED_STATES = {TaskState.FAILED, TaskState.TIMED_OUT, TaskState.LOST}  # have partitions of their own


class Filters(msgspec.Struct, frozen=True):
    """What a task must match. An empty sequence, as None, matches all; several values are alternatives.

    `jobs`, `schedules` and `sessions` are None where they were not asked for, and empty where nothing has the name.
    """

    jobs: Sequence[int] | None = None
    schedules: Sequence[int] | None = None
    sessions: Sequence[int] | None = None  # of an agent
    agents: Sequence[str] = ()  # patterns of their names, for LIKE: what waits for one agent has no session
    states: Sequence[TaskState] = ()
    parents: Sequence[int] = ()  # broadcasts, whose runs are left out without this and `sessions`
    priorities: Sequence[int] = ()
    keys: Sequence[str] = ()
    concurrency_keys: Sequence[str] = ()
    scopes: Sequence[str] = ()
    error_codes: Sequence[str] = ()
    late_over: timedelta | None = None  # of what has started
    created_after: datetime | None = None
    created_before: datetime | None = None
    run_after: datetime | None = None
    run_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    args: Mapping[str, str] = {}  # path with dots → value as text

    @property
    def is_finished(self) -> bool:
        """Whether only tasks that have ended can match."""
        return bool(self.error_codes) or self.finished_after is not None or self.finished_before is not None


class Found(NamedTuple):
    tasks: list[TaskView]
    next: int | None  # tasks before this id were not searched; None: there are none
    searched_to: datetime | None = None  # when the oldest that was searched was created, if the time ran out


class Count(msgspec.Struct, frozen=True):
    count: int
    is_exact: bool  # False: there are more, or the time ran out


class _Conditions:
    """SQL over a row `t`, and its parameters behind those of the window: from $1, to before $2, at most $3."""

    def __init__(self, filters: Filters) -> None:
        self.parameters: list[Any] = []
        self._common = ["t.id >= $1", "t.id < $2"]
        self._live: list[str] = []
        self._finished: list[str] = []
        self._add_names(filters)
        self._add_values(filters)
        self._add_times(filters)

    def _parameter(self, value: Any, kind: str) -> str:
        self.parameters.append(value)
        return f"${len(self.parameters) + 3}::{kind}"

    def _any(self, column: str, values: Sequence[Any] | None, kind: str) -> None:
        if values:
            self._common.append(f"{column} = any({self._parameter(list(values), f'{kind}[]')})")

    def _add_names(self, filters: Filters) -> None:
        for column, ids in (("t.job_id", filters.jobs), ("t.schedule_id", filters.schedules)):
            if ids is not None:
                self._common.append(f"{column} = any({self._parameter(list(ids), 'integer[]')})")
        if filters.sessions is not None:
            sessions = self._parameter(list(filters.sessions), "bigint[]")
            names = self._parameter(list(filters.agents), "text[]")
            self._common.append(f"(t.session = any({sessions}) or (t.session is null and t.target like any({names})))")
        if filters.parents:
            self._any("t.parent_id", filters.parents, "bigint")
        elif filters.sessions is None:
            self._common.append("t.parent_id is null")

    def _add_values(self, filters: Filters) -> None:
        self._any("t.state", [int(state) for state in filters.states], "smallint")
        self._any("t.priority", filters.priorities, "smallint")
        self._any("t.key", filters.keys, "text")
        self._any("t.concurrency_key", filters.concurrency_keys, "text")
        self._any("t.scope", filters.scopes, "text")
        if filters.error_codes:
            self._finished.append(f"t.error_code = any({self._parameter(list(filters.error_codes), 'text[]')})")
        if filters.late_over is not None:
            late = self._parameter(filters.late_over, "interval")
            self._common.append(f"t.started_at - t.run_at > {late}")
            self._live.append("t.session is not null")  # a broadcast itself starts nowhere
        for path, value in filters.args.items():
            steps, wanted = self._parameter(path.split("."), "text[]"), self._parameter(value, "text")
            self._common.append(f"t.args #>> {steps} = {wanted}")

    def _add_times(self, filters: Filters) -> None:
        for column, after, before in (
            ("t.created_at", filters.created_after, filters.created_before),
            ("t.run_at", filters.run_after, filters.run_before),
        ):
            if after is not None:
                self._common.append(f"{column} >= {self._parameter(after, 'timestamptz')}")
            if before is not None:
                self._common.append(f"{column} < {self._parameter(before, 'timestamptz')}")
        if filters.finished_after is not None:
            recorded = self._parameter(filters.finished_after - _RECORDED_LATER, "timestamptz")
            finished = self._parameter(filters.finished_after, "timestamptz")
            self._finished.append(f"t.recorded_at >= {recorded} and t.finished_at >= {finished}")
        if filters.finished_before is not None:
            self._finished.append(f"t.finished_at < {self._parameter(filters.finished_before, 'timestamptz')}")

    def select(self, conn: Connection, filters: Filters, live: str, finished: str) -> str:
        """The newest rows that match, with these columns."""
        parts = []
        states = set(filters.states)
        if not filters.is_finished and not (states and states <= TERMINAL):
            parts.append((live, "mainspring.task", [*self._common, *self._live]))
        if not states or states & TERMINAL:
            parts.append((finished, _history(conn, states & TERMINAL), [*self._common, *self._finished]))
        found = [
            f"(select {columns} from {table} t where {' and '.join(conditions)} order by t.id desc limit $3)"
            for columns, table, conditions in parts
        ]
        return " union all ".join(found) if found else f"select {live} from mainspring.task t where $1 > $2 limit $3"


def _history(conn: Connection, states: set[TaskState]) -> str:
    """The tables of these states; a producer reads the view of the whole."""
    if not states or is_producer(conn):
        return "mainspring.task_history"
    if states <= _FAILED_STATES:
        return "mainspring.task_history_failed"
    return "mainspring.task_history" if states & _FAILED_STATES else "mainspring.task_history_succeeded"


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
        self._stop_at = monotonic() + (PATIENCE if patience is None else patience)
        self._window = WINDOW
        self._asked_at = 0.0
        self._first: int | None = None  # asked for once it matters: most pages are full after one window
        self.end = 0

    async def begin(self, filters: Filters, before: int) -> None:
        self.end = before
        if filters.created_after is not None:
            self._first = await self._id_at(filters.created_after - _CREATED_WITHIN)
        # What ended before an instant was created before it.
        if (latest := min(filter(None, (filters.created_before, filters.finished_before)), default=None)) is not None:
            self.end = min(self.end, await self._id_at(latest + _CREATED_WITHIN))
        if filters.parents:
            self._window = max(WINDOW, self.end)  # runs of a broadcast have an index

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
        return max(WINDOW, min(wanted, in_time))

    async def searched_to(self) -> datetime | None:
        rows = await readable(self._conn, _FROM, self.end)
        return rows[0]["created_at"] if rows else None


async def search(
    conn: Connection,
    filters: Filters,
    *,
    before: int | None = None,
    limit: int,
    summary: bool = False,
    patience: float | None = None,
) -> Found:
    """The newest tasks that match, those before the id `before`. A `summary` has no args, result or error text."""
    conditions = _Conditions(filters)
    columns = (LIVE_SUMMARY, FINISHED_SUMMARY) if summary else (LIVE, FINISHED)
    newest = f"select * from ({conditions.select(conn, filters, *columns)}) found order by id desc limit $3"
    sql = f"{named(newest)} order by found.id desc"
    walk = _Walk(conn, patience)
    rows: list[Any] = []
    async with _planned_for(conn, filters) as behind_newest:
        await walk.begin(filters, behind_newest if before is None else before)
        while len(rows) <= limit and (window := await walk.next()) is not None:
            rows += await readable(conn, sql, *window, limit + 1 - len(rows), *conditions.parameters)
        is_over = len(rows) <= limit and await walk.is_over()
    shown = rows[:limit]
    blocked = [row["id"] for row in shown if row["state"] == TaskState.BLOCKED]
    views = task_views(shown, await waiting_for(conn, blocked) if blocked else {})
    if len(rows) > limit:
        return Found(views, int(shown[-1]["id"]))
    return Found(views, None) if is_over else Found(views, walk.end, await walk.searched_to())


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
    conditions = _Conditions(filters)
    sql = f"select count(*) from ({conditions.select(conn, filters, 't.id', 't.id')}) found"
    walk = _Walk(conn, patience)
    found = 0
    async with _planned_for(conn, filters) as behind_newest:
        await walk.begin(filters, behind_newest)
        while found <= most and (window := await walk.next()) is not None:
            found += await conn.fetchval(sql, *window, most + 1 - found, *conditions.parameters)
        return Count(min(found, most), found <= most and await walk.is_over())
