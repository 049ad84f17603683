"""Punctuality: whether a plan time started in time, as far as the ledger and the history tell.

Pure. A plan time is judged once, soon after the latest instant at which it would have been in time. What an agent that
is cut off may have started, or what waits for its turn by policy, stays open for a while.
Next: store/watch/punctuality.py
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple

from mainspring.model.schedules.planning import Reason
from mainspring.model.tasks.states import TaskState

SETTLED_AFTER = timedelta(seconds=2)  # past its limit, within which a start that was in time has been reported
OPEN_FOR = timedelta(hours=1)  # at most
MISSED_REASONS: frozenset[Reason] = frozenset({"misfire", "coalesced"})  # it was decided too late to run


class Verdict(Enum):
    GOOD = "good"
    LATE = "late"  # it started, too late
    MISSED = "missed"  # it has not started
    SKIPPED = "skipped"  # by a policy or a person: it counts neither way
    OPEN = "open"  # not known yet


class Outcome(NamedTuple):
    """What is known of a plan time of one scope."""

    is_decided: bool  # it is in the ledger
    reason: Reason | None = None  # why it has no task
    started_at: datetime | None = None  # of its first attempt
    state: TaskState | None = None  # of its task; None: there is none, or it is no longer kept
    error_code: str | None = None


UNDECIDED = Outcome(False)


def judged_from(due: datetime, lateness: float) -> datetime:
    """When a plan time can be judged. `due` is its plan time with delay and jitter."""
    return due + timedelta(seconds=lateness) + SETTLED_AFTER


def judge(outcome: Outcome, due: datetime, lateness: float, now: datetime) -> Verdict:
    """What a plan time came to, that many seconds or more after it was due."""
    if not outcome.is_decided:
        return Verdict.MISSED
    if outcome.reason is not None:
        return Verdict.MISSED if outcome.reason in MISSED_REASONS else Verdict.SKIPPED
    if outcome.started_at is not None:
        return Verdict.GOOD if outcome.started_at - due <= timedelta(seconds=lateness) else Verdict.LATE
    match outcome.state:
        case None | TaskState.CANCELLED:  # taken back before it started, and by now perhaps forgotten
            return Verdict.SKIPPED
        case TaskState.SKIPPED:
            return Verdict.MISSED if outcome.error_code == "expired" else Verdict.SKIPPED
        case TaskState.ASSIGNED | TaskState.BLOCKED if now - due <= OPEN_FOR:
            return Verdict.OPEN  # its agent may have started it and be cut off; or its policy decides
        case _:
            return Verdict.MISSED
