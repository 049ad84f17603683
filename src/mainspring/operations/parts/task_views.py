"""What the operations of tasks answer: summaries, details with their phases, the step of an action.

Next: store/search/task_views.py
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.store.search.task_views import AttemptView, TaskView
from mainspring.store.tasks.broadcasts import ChildView


class WaitView(msgspec.Struct, frozen=True):
    """Why no agent takes a task that is due: model/tasks/waits.py has the codes."""

    code: str
    reason: str


class TaskSummary(msgspec.Struct, frozen=True):
    """A task in a list. The last members are there with `fields=all` only."""

    id: int
    namespace: str
    job: str
    state: str
    priority: int
    attempt: int
    run_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    lateness_ms: float | None
    error_code: str | None
    exit_code: int | None
    key: str | None
    concurrency_key: str | None
    schedule: str | None
    scope: str | None
    plan_time: datetime | None
    waiting_for: list[int]
    paused_at: datetime | None
    parent: int | None
    agent: str | None
    only_on: str | None
    result_due: bool
    recorded_at: datetime | None
    waits: WaitView | None
    unreadable: list[str]
    args: Any | UnsetType = UNSET
    progress: Any | UnsetType = UNSET
    checkpoint: Any | UnsetType = UNSET
    result: Any | UnsetType = UNSET
    error: str | UnsetType | None = UNSET


class Phase(msgspec.Struct, frozen=True):
    """A step in the life of a task: created, due, armed, started, finished, recorded, as far as it has come."""

    name: str
    at: datetime
    late: float | None = None  # seconds after it was due; negative: ahead of it


class TaskDetail(TaskView, frozen=True, kw_only=True):
    waits: WaitView | None
    attempts: list[AttemptView]
    children: list[ChildView]  # the runs of a broadcast
    phases: list[Phase]


class TaskStateView(msgspec.Struct, frozen=True):
    id: int
    state: str


class Skipped(msgspec.Struct, frozen=True):
    """A task that matches, and why nothing was done to it."""

    id: int
    code: str


class ActionStep(msgspec.Struct, frozen=True):
    done: int
    skipped: list[Skipped]
    next: str | None  # the cursor of the next step; None: this was the last


def phases(view: TaskView) -> list[Phase]:
    """Those that have not come yet are left out. A task is armed before it is due, or as soon as it can be."""
    steps = {
        "created": view.created_at,
        "due": view.run_at,
        "armed": None if view.armed_ahead is None else view.run_at - timedelta(seconds=view.armed_ahead),
        "started": view.started_at,
        "finished": view.finished_at,
        "recorded": view.recorded_at,
    }
    late = {
        "armed": None if view.armed_ahead is None else -view.armed_ahead,
        "started": None if view.lateness_ms is None else view.lateness_ms / 1000,
    }
    return [Phase(name, at, late.get(name)) for name, at in steps.items() if at is not None]
