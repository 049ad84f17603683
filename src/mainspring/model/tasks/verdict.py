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


class Again(NamedTuple):
    """Another attempt follows after `delay` seconds."""

    ending: Ending
    delay: float
    costs: bool  # whether the attempt counts
    crash: bool = False  # whether its agent died


def after_attempt(definition: Definition | None, ending: Ending, random: float) -> Ending | Again:
    """The verdict on an attempt that its agent reported. Without a definition there is no retry."""
    if ending.snooze is not None:
        return Again(ending, ending.snooze, costs=False)
    if ending.code == "restarted":  # on request, whatever its delivery
        return Again(ending, 0.0, costs=False)
    if ending.code in ("shutdown", "lost", "lease_over"):  # its agent had to stop it
        if definition is not None and definition.delivery == "at_most_once":
            return replace(ending, state=TaskState.LOST)
        return Again(ending, 0.0, costs=False)
    if ending.state not in (TaskState.FAILED, TaskState.TIMED_OUT) or ending.final or definition is None:
        return ending
    if definition.delivery == "at_most_once" or not definition.retry.allows(ending.attempt, ending.labels):
        return ending
    delay = ending.retry_after
    return Again(ending, definition.retry.delay_after(ending.attempt, random) if delay is None else delay, costs=True)


def at_least_after(seconds: float, verdict: Ending | Again) -> Ending | Again:
    """The same verdict, with a delay of at least so many seconds."""
    return verdict._replace(delay=max(verdict.delay, seconds)) if isinstance(verdict, Again) else verdict


def after_crash(
    definition: Definition | None,
    ending: Ending,
    *,
    started: bool,
    crashes: int,
    cancelled: bool,
    random: float,
    scheduled: bool = False,
    handed_on: bool = False,
) -> Ending | Again:
    """The verdict on an attempt whose agent is gone, after `crashes` earlier ones.

    A `scheduled` task has a plan time and is requeued whatever attempts remain; any other retries while some remain. A
    task that was `handed_on` never reached its agent, which lives on: that is no crash.

    `started` is what the database knows. Starts are recorded with a small delay, so the first crash counts in any case;
    after it each start of the task is durable before it begins, and is known exactly.
    """
    if cancelled:
        return replace(ending, state=TaskState.CANCELLED, code="cancelled")
    if handed_on and not started:
        return Again(ending, 0.0, costs=False)
    if definition is None:
        error = f"{ending.error}; its job cannot be read, so whether it may be retried is unknown"
        return replace(ending, state=TaskState.FAILED, error=error)
    if definition.delivery == "at_most_once":
        return replace(ending, state=TaskState.LOST)
    crash = started or crashes == 0
    if crashes + crash >= MAX_CRASHES:
        return replace(
            ending,
            state=TaskState.FAILED,
            code="quarantined",
            error=f"its agent died {MAX_CRASHES} times while it ran; retry it by hand once the cause is fixed. "
            f"The last time: {ending.error}",
        )
    if not started:
        return Again(ending, 0.0, costs=False, crash=crash)
    if scheduled:
        return Again(ending, 0.0, costs=True, crash=True)
    if not definition.retry.allows(ending.attempt, ("lost",)):
        return replace(ending, state=TaskState.FAILED)
    return Again(ending, definition.retry.delay_after(ending.attempt, random), costs=True, crash=True)
