"""Overlap: what a task of a schedule does when the one before it is still there.

Decided at the last moment: while another task of its schedule and scope lives, a task waits, unarmed, until its
instant; what happens then its schedule's policy says. With the lane free it is released ahead of its time.
Next: server/planning/overlap.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mainspring.model.schedules.schedules import Overlap


class Turn(NamedTuple):
    """A live task of a lane, which is a schedule and scope."""

    task: int
    waits: bool  # has not been released
    is_due: bool
    is_stopping: bool = False  # somebody has asked to cancel it


class Verdicts(NamedTuple):
    release: list[int]
    skip: list[int]
    cancel: list[int]
    kill: list[int]


def decide(lane: Sequence[Turn], overlap: Overlap) -> Verdicts:
    """What to do with the tasks of a lane, which come in the order of their plan times."""
    verdicts = Verdicts([], [], [], [])
    running = [turn for turn in lane if not turn.waits]
    waiting = [turn for turn in lane if turn.waits]
    if overlap == "allow":  # it was another policy when they were planned
        verdicts.release.extend(turn.task for turn in waiting)
        return verdicts
    due = [turn for turn in waiting if turn.is_due]
    if overlap in ("cancel_running", "terminate_running") and due:
        *replaced, last = due  # the newest takes the place of all before it
        verdicts.skip.extend(turn.task for turn in replaced)
        stop = verdicts.cancel if overlap == "cancel_running" else verdicts.kill
        stop.extend(turn.task for turn in running if not turn.is_stopping)
        if not running:
            verdicts.release.append(last.task)
        return verdicts
    if not running:
        verdicts.release.append(waiting[0].task)
        due = [turn for turn in due if turn is not waiting[0]]  # behind it, the policy is for them
    if overlap == "skip":
        verdicts.skip.extend(turn.task for turn in due)
    elif overlap == "queue":
        verdicts.skip.extend(turn.task for turn in due[1:])
    return verdicts
