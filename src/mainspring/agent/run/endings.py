"""Endings: the report of an attempt that has ended, by what it raised or why it was stopped.

Next: agent/connection/outbox.py
"""

from __future__ import annotations

from mainspring.agent.attempt import Attempt, AttemptFailed, Exhausted, Expired, StopReason
from mainspring.agent.context import CancelTask, Control, RetryAfter, Snooze
from mainspring.model.messages import MAX_LABELS, Armed, Ending
from mainspring.model.tasks.payload import cut
from mainspring.model.tasks.states import TaskState

GIVEN_BACK_FOR = 2.0  # seconds until an attempt that could not be started is dispatched again

_STOPPED: dict[StopReason, tuple[TaskState, str, str]] = {
    "timeout": (TaskState.TIMED_OUT, "timeout", "did not end within its timeout of {timeout:g} s"),
    "stalled": (TaskState.TIMED_OUT, "stalled", "no output, progress or heartbeat for {stalls_after:g} s"),
    "cancelled": (TaskState.CANCELLED, "cancelled", "cancelled while it ran"),
    "shutdown": (TaskState.FAILED, "shutdown", "its agent was stopped"),
    "lost": (TaskState.LOST, "lost", "its agent could not renew its lease"),
    "restart": (TaskState.FAILED, "restarted", "stopped to run again"),
    "neighbour": (TaskState.FAILED, "restarted", "stopped to run again: another task of its chunk was lost"),
    "unhealthy": (TaskState.FAILED, "unhealthy", "its health check failed {failures} times in a row"),
}


def ended(
    attempt: Attempt, state: TaskState, now: float, result: str | None = None, failure: AttemptFailed | None = None
) -> Ending:
    armed = attempt.armed
    ending = Ending(
        armed.task, armed.token, armed.job, armed.attempt, state, attempt.started_at, now, result,
        armed_ahead=attempt.lead, fire_at=armed.fire_at, planned=armed.plan_time is not None,
    )  # fmt: skip
    if armed.daemon:  # it starts when it can
        ending.armed_ahead, ending.fire_at, ending.planned = None, 0.0, False
    if failure is not None:
        ending.code = failure.code
        ending.error = cut(attempt.secrets.masked(failure.message) if attempt.secrets else failure.message)
        ending.labels = failure.labels[:MAX_LABELS]
        ending.retry_after = failure.retry_after
        ending.final = failure.final
        ending.exit_code = failure.exit_code
    return ending


def controlled(attempt: Attempt, control: Control, now: float) -> Ending:
    """The handler decided about its task by a control exception."""
    message = str(control)
    match control:
        case RetryAfter(delay=delay):
            failure = AttemptFailed("retry_after", message, labels=("RetryAfter",), retry_after=delay)
            return ended(attempt, TaskState.FAILED, now, failure=failure)
        case Snooze(delay=delay):
            ending = ended(attempt, TaskState.SKIPPED, now, failure=AttemptFailed("snoozed", message))
            ending.snooze = delay
            return ending
        case CancelTask():
            return ended(attempt, TaskState.CANCELLED, now, failure=AttemptFailed("cancelled", message))
    return ended(attempt, TaskState.FAILED, now, failure=AttemptFailed("failed_for_good", message, final=True))


def raised(attempt: Attempt, error: BaseException, now: float) -> Ending:
    """The ending of an attempt that raised. If it was being stopped, it ends as stopped, whatever it raised,
    unless it has decided itself, by a Control."""
    if isinstance(error, Control):
        try:
            return controlled(attempt, error, now)
        except Exception as unprintable:  # the str() of a user's subclass
            return executor_error(attempt, unprintable, now)
    if attempt.stopping is not None:
        return stopped(attempt, attempt.stopping, now)
    if isinstance(error, Expired):
        return expired(attempt, now)
    if isinstance(error, Exhausted):
        return given_back(attempt, error, now)
    if not isinstance(error, AttemptFailed):
        raise error  # the agent is cancelled, not the attempt
    return ended(attempt, TaskState.FAILED, now, failure=error)


def expired(attempt: Attempt, now: float) -> Ending:
    """It was too late for it: it ends as one that the server finds too late."""
    ending = ended(
        attempt, TaskState.SKIPPED, now, failure=AttemptFailed("expired", "it had not started by its deadline")
    )
    ending.started_at = 0.0
    return ending


def given_back(attempt: Attempt, error: Exhausted, now: float) -> Ending:
    """It has not run: another agent, or this one a little later, may have what it needs."""
    ending = ended(attempt, TaskState.SKIPPED, now, failure=AttemptFailed("exhausted", str(error)))
    ending.snooze = GIVEN_BACK_FOR
    ending.started_at = 0.0  # so that its start deadline holds
    return ending


def executor_error(attempt: Attempt, error: BaseException, now: float) -> Ending:
    """The executor itself failed. The task must still end."""
    return ended(attempt, TaskState.FAILED, now, failure=executor_failure(error))


def executor_failure(error: BaseException) -> AttemptFailed:
    """A bug, or out of memory or processes."""
    try:
        message = f"{type(error).__name__}: {error}"
    except Exception:
        message = f"{type(error).__name__}, which cannot be printed"
    failure = AttemptFailed("executor_error", message)
    failure.__cause__ = error
    return failure


def cancelled_before_start(attempt: Attempt, now: float) -> Ending:
    failure = AttemptFailed("cancelled", "cancelled before it started")
    return ended(attempt, TaskState.CANCELLED, now, failure=failure)


def stopped(attempt: Attempt, reason: StopReason, now: float) -> Ending:
    state, code, message = _STOPPED[reason]
    definition = attempt.job.definition
    failures = 0 if definition.health is None else definition.health.failures
    stalls_after = attempt.stalls_after or 0.0
    words = message.format(timeout=attempt.timeout or 0.0, failures=failures, stalls_after=stalls_after)
    failure = AttemptFailed(code, words)
    return ended(attempt, state, now, failure=failure)


def give_back(ending: Ending) -> None:
    """The attempt did not begin: if its agent had to stop it, it runs again at no cost, whatever its delivery."""
    if ending.code in ("lost", "shutdown"):
        ending.snooze = 0.0
    if ending.code in ("lost", "shutdown", "restarted"):
        ending.started_at = 0.0  # so that its start deadline holds


def unknown_job(armed: Armed, now: float) -> Ending:
    return _unstarted(armed, now, "unknown_job", "its job has been deleted")


def impossible_time(armed: Armed, now: float) -> Ending:
    return _unstarted(armed, now, "impossible_time", f"its time is not between 1970 and 2200: {armed.fire_at}")


def _unstarted(armed: Armed, now: float, code: str, error: str) -> Ending:
    ending = Ending(armed.task, armed.token, armed.job, armed.attempt, TaskState.FAILED, 0.0, now)
    ending.code, ending.error, ending.final = code, error, True
    return ending
