"""Verdict: what follows an attempt that has ended: a terminal state, or pending again after a delay.

Next: store/tasks/transitions.py
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition
from mainspring.model.tasks.states import TaskState

MAX_CRASHES = 3
QUARANTINED = "quarantined"  # the code of a task that failed because its agents died
LOST = "lost"  # the label, for retry_on and abort_on, of an attempt whose agent died or could not renew its lease


class Again(NamedTuple):
    """Another attempt follows after `delay` seconds."""

    ending: Ending
    delay: float
    costs: bool  # whether the attempt counts
    crash: bool = False  # whether its agent died


def after_attempt(
    definition: Definition | None, ending: Ending, random: float, retries: int | None = None
) -> Ending | Again:
    """The verdict on an attempt that its agent reported. Without a definition there is no retry.

    `retries` are those of the task itself, if its submission gave any.
    """
    if ending.snooze is not None:
        return Again(ending, ending.snooze, costs=False)
    if ending.code == "restarted":  # on request, whatever its delivery
        return Again(ending, 0.0, costs=False)
    if ending.code == "shutdown":  # its agent had to stop it
        if definition is not None and definition.delivery == "at_most_once":
            return replace(ending, state=TaskState.LOST)
        return Again(ending, 0.0, costs=False)
    if ending.code in ("lost", "lease_over"):  # it counts alike whether this report or the rescuer comes first
        return _after_loss(definition, ending, random, retries, crash=False)
    if ending.state not in (TaskState.FAILED, TaskState.TIMED_OUT) or ending.final or definition is None:
        return ending
    if definition.delivery == "at_most_once" or not definition.retry.allows(ending.attempt, ending.labels, retries):
        return ending
    delay = ending.retry_after
    return Again(ending, definition.retry.delay_after(ending.attempt, random) if delay is None else delay, costs=True)


def at_least_after(seconds: float, verdict: Ending | Again) -> Ending | Again:
    """The same verdict, with a delay of at least so many seconds."""
    return verdict._replace(delay=max(verdict.delay, seconds)) if isinstance(verdict, Again) else verdict


def starts_durably(definition: Definition) -> bool:
    """Whether a start must be durable before it begins: then it is known whether a crash has cost an attempt."""
    return LOST in definition.retry.abort_on


def after_crash(
    definition: Definition | None,
    ending: Ending,
    *,
    started: bool,
    crashes: int,
    cancelled: bool,
    random: float,
    retries: int | None = None,
    given_back: bool = False,
) -> Ending | Again:
    """The verdict on an attempt whose session is over, after `crashes` earlier ones.

    `started` is what the database knows. Starts are recorded with a small delay, so the first crash counts in any case;
    after it each start of the task is durable before it begins, and is known exactly.

    `given_back`: the agent lives, and a later hello of it lists all that it holds without this attempt. An agent that
    has said hello takes nothing more from earlier sessions, so an attempt that has not started never will. That is no
    crash. Nothing else proves it: whatever may have reached an agent may have started.
    """
    if cancelled:
        return replace(ending, state=TaskState.CANCELLED, code="cancelled")
    if definition is None:
        return _unreadable(ending)
    never_starts = given_back and not started
    if definition.delivery == "at_most_once" and not never_starts:
        return replace(ending, state=TaskState.LOST)
    if never_starts:
        return Again(ending, 0.0, costs=False)
    crash = started or (crashes == 0 and not starts_durably(definition))
    if crashes + crash >= MAX_CRASHES:
        return replace(
            ending,
            state=TaskState.FAILED,
            code=QUARANTINED,
            error=f"its agent died {MAX_CRASHES} times while it ran; retry it by hand once the cause is fixed. "
            f"The last time: {ending.error}",
        )
    if not started:
        return Again(ending, 0.0, costs=False, crash=crash)
    return _after_loss(definition, ending, random, retries, crash=True)


def _after_loss(
    definition: Definition | None, ending: Ending, random: float, retries: int | None, *, crash: bool
) -> Ending | Again:
    """An attempt that had started and was lost counts like a failed one, labelled `lost`."""
    if definition is None:
        return _unreadable(ending)
    if definition.delivery == "at_most_once":
        return replace(ending, state=TaskState.LOST)
    if not definition.retry.allows(ending.attempt, (LOST,), retries):
        return replace(ending, state=TaskState.FAILED)
    return Again(ending, definition.retry.delay_after(ending.attempt, random), costs=True, crash=crash)


def _unreadable(ending: Ending) -> Ending:
    error = f"{ending.error}; its job cannot be read, so whether it may be retried is unknown"
    return replace(ending, state=TaskState.FAILED, error=error)
