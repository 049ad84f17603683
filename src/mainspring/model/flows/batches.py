"""Batches: tasks that are counted together, and the callbacks that come when they end.

    open → closed → ended, and by the retry of a task back to closed

The states and the names of the events are part of the schema (0001_schema.sql, Batches).
Next: store/batches/batches.py
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Literal

from msgspec import Struct

from mainspring.model.tasks.states import TaskState

FAILURES = frozenset({TaskState.FAILED, TaskState.TIMED_OUT, TaskState.LOST})  # what calls on_failure

Event = Literal["success", "complete", "failure"]


class BatchState(IntEnum):
    """Stored as smallint; the numbers never change."""

    OPEN = 0
    CLOSED = 1  # it ends with its last task
    ENDED = 2

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def from_label(cls, label: str) -> BatchState:
        return cls[label.upper()]


class ByClient(IntEnum):
    """What the close() of a client did itself, in place of an outcome in a change: for a server to count."""

    ENDED = 101
    CALLED = 102


class Counts(Struct, frozen=True):
    """The members of a batch: its tasks, and the batches in it. `live` are those that have not ended."""

    total: int = 0
    succeeded: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    skipped: int = 0
    lost: int = 0

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.timed_out + self.cancelled + self.skipped + self.lost

    @property
    def live(self) -> int:
        return max(0, self.total - self.ended)


class Callback(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is enqueued at an event: a job with arguments."""

    job: str
    args: Mapping[str, Any] = {}
    priority: str | int | None = None  # None: that of the job


class CallbackOf(Counts, frozen=True, kw_only=True):
    """What the task of a callback knows about its batch, as it was when the callback was enqueued."""

    batch: int
    name: str = ""
    event: Event = "complete"
    failed_ids: tuple[int, ...] = ()  # up to 100


class TaskBatch(Struct, frozen=True):
    """The batch of a running task: that it is a member of, or whose callback it is. `using(batch=…)` takes it."""

    id: int
    event: Event | None = None  # None: a member
    name: str | None = None  # of a callback, as what follows
    counts: Counts | None = None
    failed_ids: tuple[int, ...] = ()
