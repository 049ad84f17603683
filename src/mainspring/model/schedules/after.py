"""After: a plan time that waits for that of another schedule, `after="OTHER"`.

It waits for the same plan time of the other schedule, or for the latest earlier one: that must have ended successfully,
in the same scope, or in all if the other has not that scope. Which one that is comes from the ledger, so clock changes
and different cadences need no rule of their own. If it has failed, or has not run, the waiting plan time is skipped, as
a task whose parent did not succeed.
Next: store/followed/after.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from mainspring.model.tasks.states import LIVE, TaskState

_NOTHING_TO_DO = "no_scopes"  # the reason of a plan time without any task, which counts as done


class Earlier(NamedTuple):
    """A task of the other schedule, or a scope without one."""

    scope: str
    task: int | None
    reason: str | None  # why there is none
    state: TaskState | None  # None: retention dropped it, or it was taken back


class Other(NamedTuple):
    """The other schedule, and its latest plan time up to the one that waits."""

    name: str | None  # None: the schedule has been changed, and waits for none
    exists: bool
    enabled: bool = False
    decided_before: datetime | None = None  # its cursor: all plan times before are decided; None: it has none to come
    plan_time: datetime | None = None
    runs: Sequence[Earlier] = ()  # its scopes


class Waiting(NamedTuple):
    """A task that waits for another schedule."""

    task: int
    plan_time: datetime
    scope: str
    run_at: datetime
    now: datetime
    other: Other

    @property
    def is_due(self) -> bool:
        return self.run_at <= self.now

    @property
    def is_undecided(self) -> bool:
        """Whether the other schedule has not decided all its plan times up to this one, or may take the last one back.

        A change of a schedule takes back what lies ahead.
        """
        cursor, at = self.other.decided_before, self.other.plan_time
        return (cursor is not None and cursor <= self.plan_time) or (at is not None and at > self.now)

    @property
    def words(self) -> str:
        """What it waits for."""
        at = "its next plan time" if self.is_undecided or self.other.plan_time is None else _at(self.other.plan_time)
        return f"schedule {self.other.name}: {at} must succeed first"


class Verdict(NamedTuple):
    """Neither: it waits. `parents` are the tasks that it waits for from now on; without any it is released."""

    parents: list[int] | None = None
    skip: str | None = None  # why


def decide(waiting: Waiting) -> Verdict:
    """What becomes of a task that waits for another schedule."""
    other = waiting.other
    if other.name is None:
        return Verdict(parents=[])
    if not other.exists:
        return Verdict(skip=f"schedule {other.name}, which it waits for, does not exist")
    if waiting.is_undecided:
        if other.enabled or not waiting.is_due:
            return Verdict()
        return Verdict(skip=f"schedule {other.name}, which it waits for, is disabled")
    if other.plan_time is None:
        return Verdict(skip=f"schedule {other.name} had no plan time before it") if waiting.is_due else Verdict()
    # The same scope, where the other schedule has it.
    runs = [run for run in other.runs if run.scope == waiting.scope] or other.runs
    at = f"{_at(other.plan_time)} of schedule {other.name}, which it waits for,"
    for run in runs:
        if run.task is None and run.reason != _NOTHING_TO_DO:
            return Verdict(skip=f"{at} was skipped ({run.reason})")
        if run.task is not None and run.state not in LIVE and run.state is not TaskState.SUCCEEDED:
            ended = "is not known any longer" if run.state is None else "did not succeed"
            return Verdict(skip=f"task {run.task} for {at} {ended}")
    return Verdict(parents=[run.task for run in runs if run.task is not None and run.state in LIVE])


def _at(plan_time: datetime) -> str:
    return f"{plan_time:%Y-%m-%d %H:%M:%S} UTC"
