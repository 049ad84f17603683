"""What the operations of tasks answer: details with their phases, the step of an action.

Next: store/views/task_views.py
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from mainspring.store.search.search import Count
from mainspring.store.tasks.broadcasts import ChildView
from mainspring.store.views.parents import Graph
from mainspring.store.views.task_views import AttemptView, TaskView, WaitView


class Phase(msgspec.Struct, frozen=True):
    """A step in the life of a task: created, due, armed, started, finished, recorded, as far as it has come."""

    name: str
    at: datetime
    late: float | None = None  # seconds after it was due; negative: ahead of it


class TaskDetail(TaskView, frozen=True, kw_only=True):
    """One task. Of many attempts and runs the answer has some; pages of their own have all."""

    waits: WaitView | None
    attempts: list[AttemptView]  # the last 100, in order
    attempt_count: Count
    children: list[ChildView]  # the runs of a broadcast: the first 100, by agent
    child_count: Count
    phases: list[Phase]
    counts_as: int | None  # the priority of one that waits, by now: see the setting `aging`
    graph: Graph | None = None  # the tasks that it runs after, and those that run after it; None: there are none


class TaskStateView(msgspec.Struct, frozen=True):
    id: int
    state: str


class TaskRetried(TaskStateView, frozen=True):
    children: int = 0  # tasks that had ended because of it, and wait for it again


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
