"""Overlap: what happens to a task of a schedule while the one before it is live.

Decided at the last moment: while another task of its schedule and scope is live, a task waits, unarmed, until its
instant; then the policy of the schedule decides. Without another live task it is released ahead of its time.
Next: server/planning/overlap.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mainspring.model.schedules.schedules import Overlap


class LiveTask(NamedTuple):
    """A live task of a schedule and scope."""

    task: int
    waits: bool  # has not been released
    is_due: bool
    is_stopping: bool = False  # its cancellation was requested


class Decisions(NamedTuple):
    release: list[int]
    skip: list[int]
    cancel: list[int]
    kill: list[int]


def decide(live: Sequence[LiveTask], overlap: Overlap) -> Decisions:
    """What to do with the live tasks of a schedule and scope, given in the order of their plan times."""
    verdicts = Decisions([], [], [], [])
    running = [turn for turn in live if not turn.waits]
    waiting = [turn for turn in live if turn.waits]
    if overlap == "allow":  # the policy was another one when they were planned
        verdicts.release.extend(turn.task for turn in waiting)
        return verdicts
    due = [turn for turn in waiting if turn.is_due]
    if overlap in ("cancel_running", "terminate_running") and due:
        *replaced, last = due  # the newest replaces all before it
        verdicts.skip.extend(turn.task for turn in replaced)
        stop = verdicts.cancel if overlap == "cancel_running" else verdicts.kill
        stop.extend(turn.task for turn in running if not turn.is_stopping)
        if not running:
            verdicts.release.append(last.task)
        return verdicts
    if not running:
        verdicts.release.append(waiting[0].task)
        due = [turn for turn in due if turn is not waiting[0]]  # the policy applies to those behind it
    if overlap == "skip":
        verdicts.skip.extend(turn.task for turn in due)
    elif overlap == "queue":
        verdicts.skip.extend(turn.task for turn in due[1:])
    return verdicts
