"""Filters: what a task must match, as a caller gives it and as SQL over the live and the finished tasks.

Next: store/search/search.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from mainspring.model.tasks.states import TERMINAL, TaskState
from mainspring.store.postgres.connection import Connection, is_producer

# What is recorded was finished at most so long after that by the database's clock: it may have been set back.
_RECORDED_LATER = timedelta(hours=1)

_FAILED_STATES = {TaskState.FAILED, TaskState.TIMED_OUT, TaskState.LOST}  # have partitions of their own


class Filters(msgspec.Struct, frozen=True):
    """What a task must match. An empty sequence, as None, matches all; several values are alternatives.

    `jobs`, `schedules` and `sessions` are None where they were not asked for, and empty where nothing has the name.
    """

    ids: Sequence[int] = ()
    jobs: Sequence[int] | None = None
    schedules: Sequence[int] | None = None
    sessions: Sequence[int] | None = None  # of an agent
    agents: Sequence[str] = ()  # patterns of their names, for LIKE: what waits for one agent has no session
    states: Sequence[TaskState] = ()
    parents: Sequence[int] = ()  # broadcasts, whose runs are left out without this, `ids` and `sessions`
    batches: Sequence[int] = ()
    priorities: Sequence[int] = ()
    keys: Sequence[str] = ()
    concurrency_keys: Sequence[str] = ()
    scopes: Sequence[str] = ()
    tags: Sequence[str] = ()
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

    @property
    def may_be_live(self) -> bool:
        return not self.is_finished and not (self.states and TERMINAL.issuperset(self.states))

    @property
    def may_be_finished(self) -> bool:
        return not self.states or not TERMINAL.isdisjoint(self.states)

    @property
    def bounds_ids(self) -> bool:
        """Whether it narrows the walk."""
        times = (self.created_after, self.created_before, self.finished_after, self.finished_before)
        return bool(self.ids or self.parents or self.batches) or any(time is not None for time in times)


class Conditions:
    """SQL over a row `t`, and its parameters behind those of the window: from $1, to before $2, at most $3.

    `window`: $1 may be null, and the window is so many ids up to the newest then. `since`: what was recorded before it
    is left out.
    """

    def __init__(self, filters: Filters, *, window: int | None = None, since: datetime | None = None) -> None:
        self.parameters: list[Any] = []
        first = "$1"
        if window is not None:
            first = f"coalesce($1, (select last_value - {window - 1:d} from mainspring.task_id))"
        self._filters = filters
        self._common = [f"t.id >= {first}", "t.id < $2"]
        self._live: list[str] = []
        self._finished: list[str] = []
        self._add_names(filters)
        self._add_values(filters)
        self._add_times(filters)
        if since is not None and filters.may_be_finished:
            self._finished.append(f"t.recorded_at >= {self._parameter(since, 'timestamptz')}")

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
        elif filters.sessions is None and not filters.ids:
            self._common.append("t.parent_id is null")

    def _add_values(self, filters: Filters) -> None:
        self._any("t.id", filters.ids, "bigint")
        if len(filters.batches) == 1:  # an equality, so that the index gives them in order
            self._common.append(f"t.batch_id = {self._parameter(filters.batches[0], 'bigint')}")
        elif filters.batches:
            self._any("t.batch_id", filters.batches, "bigint")
            self._common.append("t.batch_id is not null")
        self._any("t.state", [int(state) for state in filters.states], "smallint")
        self._any("t.priority", filters.priorities, "smallint")
        self._any("t.key", filters.keys, "text")
        self._any("t.concurrency_key", filters.concurrency_keys, "text")
        self._any("t.scope", filters.scopes, "text")
        if filters.tags:
            self._common.append(f"t.options->'tags' ?| {self._parameter(list(filters.tags), 'text[]')}")
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

    def select(self, conn: Connection, live: str, finished: str) -> str:
        """The newest rows that match, with these columns."""
        parts = []
        if self._filters.may_be_live:
            parts.append((live, "mainspring.task", [*self._common, *self._live]))
        if self._filters.may_be_finished:
            parts.append((finished, _history(conn, self._filters.states), [*self._common, *self._finished]))
        return " union all ".join(
            f"(select {columns} from {table} t where {' and '.join(conditions)} order by t.id desc limit $3)"
            for columns, table, conditions in parts
        )


def _history(conn: Connection, given: Sequence[TaskState]) -> str:
    """The tables of these states; a producer reads the view of the whole."""
    states = TERMINAL.intersection(given)
    if not states or is_producer(conn):
        return "mainspring.task_history"
    if states <= _FAILED_STATES:
        return "mainspring.task_history_failed"
    return "mainspring.task_history" if states & _FAILED_STATES else "mainspring.task_history_succeeded"
