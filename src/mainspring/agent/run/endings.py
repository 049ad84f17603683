"""Endings: how an attempt that is over is reported, by what it raised or why it was stopped.

Next: agent/connection/outbox.py
"""

from __future__ import annotations

from mainspring.agent.attempt import Attempt, AttemptFailed, StopReason
from mainspring.agent.context import CancelTask, Control, RetryAfter, Snooze
from mainspring.model.messages import Armed, Ending
from mainspring.model.tasks.payload import cut
from mainspring.model.tasks.states import TaskState

_STOPPED: dict[StopReason, tuple[TaskState, str, str]] = {
    "timeout": (TaskState.TIMED_OUT, "timeout", "did not end within its timeout of {timeout:g} s"),
    "cancelled": (TaskState.CANCELLED, "cancelled", "cancelled while it ran"),
    "shutdown": (TaskState.FAILED, "shutdown", "its agent was stopped"),
    "lost": (TaskState.LOST, "lost", "its agent could not renew its lease"),
    "restart": (TaskState.FAILED, "restarted", "stopped to run again"),
    "unhealthy": (TaskState.FAILED, "unhealthy", "its health check failed {failures} times in a row"),
}


def ending(
    attempt: Attempt, state: TaskState, now: float, result: str | None = None, failure: AttemptFailed | None = None
) -> Ending:
    armed = attempt.armed
    told = Ending(armed.task, armed.token, armed.job, armed.attempt, state, attempt.started_at, now, result)
    if failure is not None:
        told.code = failure.code
        told.error = cut(failure.message)
        told.labels = failure.labels
        told.retry_after = failure.retry_after
    return told


def controlled(attempt: Attempt, control: Control, now: float) -> Ending:
    """The handler said itself what is to become of its task."""
    message = str(control)
    match control:
        case RetryAfter(delay=delay):
            failure = AttemptFailed("retry_after", message, labels=("RetryAfter",))
            told = ending(attempt, TaskState.FAILED, now, failure=failure)
            told.retry_after = delay
        case Snooze(delay=delay):
            told = ending(attempt, TaskState.SKIPPED, now, failure=AttemptFailed("snoozed", message))
            told.snooze = delay
        case CancelTask():
            told = ending(attempt, TaskState.CANCELLED, now, failure=AttemptFailed("cancelled", message))
        case _:
            told = ending(attempt, TaskState.FAILED, now, failure=AttemptFailed("failed_for_good", message))
            told.final = True
    return told


def unsuccessful(attempt: Attempt, error: BaseException, now: float) -> Ending:
    """What an attempt came to that raised. One that was being stopped has been stopped, whatever it raised."""
    if isinstance(error, Control):
        try:
            return controlled(attempt, error, now)
        except Exception as unprintable:  # a subclass of theirs that cannot even be printed
            return broken(attempt, unprintable, now)
    if attempt.stopping is not None:
        return stopped(attempt, attempt.stopping, now)
    if not isinstance(error, AttemptFailed):
        raise error  # not the attempt is cancelled, but the agent
    told = ending(attempt, TaskState.FAILED, now, failure=error)
    told.final = error.final
    return told


def broken(attempt: Attempt, error: BaseException, now: float) -> Ending:
    """The executor itself failed: a bug, or no memory, no processes. The task must still end."""
    try:
        message = f"{type(error).__name__}: {error}"
    except Exception:
        message = f"{type(error).__name__}, which cannot be printed"
    return ending(attempt, TaskState.FAILED, now, failure=AttemptFailed("executor_error", message))


def before_start(attempt: Attempt, now: float) -> Ending:
    failure = AttemptFailed("cancelled", "cancelled before it started")
    return ending(attempt, TaskState.CANCELLED, now, failure=failure)


def stopped(attempt: Attempt, reason: StopReason, now: float) -> Ending:
    state, code, message = _STOPPED[reason]
    definition = attempt.job.definition
    failures = 0 if definition.health is None else definition.health.failures
    failure = AttemptFailed(code, message.format(timeout=definition.timeout, failures=failures))
    return ending(attempt, state, now, failure=failure)


def of_no_job(armed: Armed, now: float) -> Ending:
    told = Ending(armed.task, armed.token, armed.job, armed.attempt, TaskState.FAILED, 0.0, now)
    told.code = "unknown_job"
    told.error = "its job has been deleted"
    return told
