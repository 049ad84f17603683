"""Submissions: a task, many of them, a batch, a flow. Their fields have the names of the SQL functions' own.

Next: store/submission/drivers.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from mainspring.model.flows.options import TaskOptions

KEY_TTL = timedelta(days=1)
INTERVALS = ("delay", "key_ttl", "expires", "timeout", "stalls_after")  # fields that are durations


class Submission(NamedTuple):
    """One task of `job`; `args` is JSON text."""

    job: str
    args: str
    priority: str | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    key: str | None = None
    key_ttl: timedelta = KEY_TTL
    after: list[int] | None = None
    concurrency_key: str | None = None
    on_parent_failure: str | None = None
    if_exists: str | None = None
    batch: int | None = None
    expires: timedelta | None = None
    tags: Sequence[str] | None = None
    timeout: timedelta | None = None
    retries: int | None = None
    stalls_after: timedelta | None = None
    submitter: str | None = None

    @property
    def is_plain(self) -> bool:
        """It has a job, arguments, perhaps a priority, and nothing else."""
        return self[_WHEN] == _NOT_GIVEN and self[AFTER:] == _NO_MORE

    @property
    def can_share(self) -> bool:
        """Whether it may go into one statement with others. The rest may wait for locks, or make a gate."""
        return self[AFTER:_BATCH] == _ALONE

    @property
    def options(self) -> str | None:
        """The JSON of its TaskOptions; None: it has none."""
        if self[EXPIRES + 1 :] == _NO_OPTIONS:
            return None
        found = TaskOptions(
            tuple(self.tags or ()),
            None if self.timeout is None else self.timeout.total_seconds(),
            self.retries,
            None if self.stalls_after is None else self.stalls_after.total_seconds(),
            submitter=self.submitter,
        )
        return msgspec.json.encode(found).decode()


class BulkSubmission(NamedTuple):
    """Many tasks of `job` that differ only in their arguments."""

    job: str
    args: list[str]
    priority: str | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    concurrency_key: str | None = None
    batch: int | None = None
    expires: timedelta | None = None
    tags: Sequence[str] | None = None
    timeout: timedelta | None = None
    retries: int | None = None
    stalls_after: timedelta | None = None
    submitter: str | None = None


class OpenBatch(NamedTuple):
    """A new batch. A callback is JSON: job, args, priority."""

    name: str
    on_success: str | None = None
    on_complete: str | None = None
    on_failure: str | None = None
    parent: int | None = None
    created_by: str | None = None


class CloseBatch(NamedTuple):
    batch: int


class FlowSubmission(NamedTuple):
    """Tasks that run after each other. `steps` is JSON: see `flow`."""

    steps: str


Request = Submission | BulkSubmission | OpenBatch | CloseBatch | FlowSubmission


def flow(steps: Iterable[tuple[Submission, Sequence[int]]]) -> FlowSubmission:
    """Each task with the places, from 0, of those before it that it runs after."""
    return FlowSubmission(msgspec.json.encode([_step(task, places) for task, places in steps]).decode())


def _step(task: Submission, places: Sequence[int]) -> dict[str, Any]:
    given = {name: value for name, value in task._asdict().items() if value is not None}
    for name in given.keys() & set(INTERVALS):
        given[name] = given[name].total_seconds()
    return {**given, "args": msgspec.Raw(task.args.encode()), "steps": places}


# Places in a submission, which is looked at for each task that is submitted.
_WHEN = slice(Submission._fields.index("run_at"), Submission._fields.index("key_ttl"))
AFTER, _BATCH, EXPIRES = (Submission._fields.index(name) for name in ("after", "batch", "expires"))
_NOT_GIVEN, _ALONE = (None,) * 3, (None,) * (_BATCH - AFTER)
_NO_MORE = (None,) * (len(Submission._fields) - AFTER)
_NO_OPTIONS = (None,) * (len(Submission._fields) - EXPIRES - 1)
