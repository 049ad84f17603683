"""Failures: logs each attempt that failed, and calls the application's hooks.

Neither touches the attempt or its report. The log of one job is bounded: a burst, then one line that counts the rest.
Next: agent/run/hooks.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextvars import copy_context
from types import TracebackType
from typing import Any

import msgspec

from mainspring.agent.attempt import Attempt, AttemptFailed
from mainspring.agent.run.hooks import Failure, FailureHook, HookQueue
from mainspring.model.messages import Ending
from mainspring.model.tasks.payload import UNREADABLE
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import after_attempt

log = logging.getLogger("mainspring.job")

BURST = 10  # records of one job within a window
WINDOW = 60.0  # seconds

_WITH_TRACEBACK = {"handler_error", "executor_error"}
_EXECUTOR = "mainspring.agent.executors.python"
_STOPPED = {"shutdown", "restarted", "lost", "lease_over"}  # by the agent: no failure if another attempt follows


class Failures:
    def __init__(self, window: float = WINDOW) -> None:
        self._length = window
        self._counts: dict[str, int] = {}  # failures of each job since its window began
        self._queues: dict[FailureHook, HookQueue] = {}
        self.hooks: Sequence[FailureHook] = ()  # of the application

    def report(self, attempt: Attempt, ending: Ending, error: BaseException) -> Ending:
        """Log the ending if it is a failure, and call the hooks; returns it. Never raises: the ending must be sent."""
        if ending.code == "exhausted" and self._may_log(attempt.job.name):
            log.warning("%s: task %d is given back, unstarted: %s", attempt.job.name, ending.task, ending.error)
        if ending.state not in (TaskState.FAILED, TaskState.TIMED_OUT, TaskState.LOST):
            return ending
        try:
            verdict = after_attempt(attempt.job.definition, ending, 0.5, _own_retries(attempt))
            final = isinstance(verdict, Ending) and not attempt.armed.daemon
            if ending.code in _STOPPED and not final:
                return ending
            raised = _raised(attempt, error)
            if self._may_log(attempt.job.name):
                _log(attempt, ending, raised, final)
            if self.hooks and not attempt.committed:
                self._call_hooks(_failure(attempt, ending, raised, final))
        except Exception:
            log.exception("task %d: its failure could not be logged", ending.task)
        return ending

    def _call_hooks(self, failure: Failure) -> None:
        context = copy_context()  # so that the records of hooks carry job and task
        for hook in self.hooks:
            if hook not in self._queues:
                self._queues[hook] = HookQueue(hook)
            self._queues[hook].put(failure, context)

    def _may_log(self, job: str) -> bool:
        count = self._counts[job] = self._counts.get(job, 0) + 1
        if count == 1:
            asyncio.get_running_loop().call_later(self._length, self._end_window, job)
        return count <= BURST

    def _end_window(self, job: str) -> None:
        left_out = self._counts.pop(job, 0) - BURST  # none if `close` has ended the window
        if left_out > 0:
            log.error(
                "%s: %d more failures in the last %g s were not logged",
                *(job, left_out, self._length),
                extra={"job": job, "task": None, "attempt": None},
            )

    async def close(self) -> None:
        """Log what was left out, and let the hooks end in bounded time."""
        for job in list(self._counts):
            self._end_window(job)
        await asyncio.gather(*(queue.close() for queue in self._queues.values()))


def _log(attempt: Attempt, ending: Ending, raised: BaseException | None, final: bool) -> None:
    headline = (ending.error or "no reason was given").partition("\n")[0]
    code = ending.code or "error"
    level = logging.ERROR if final and not attempt.committed else logging.WARNING
    follows = "that was the last" if final else "another one follows"
    of = "" if attempt.armed.daemon else f" of {_attempts(attempt)}"
    became = "succeeded by transaction() and failed after it" if attempt.committed else f"failed, {follows}"
    log.log(
        level,
        "%s: task %d, attempt %d%s %s (%s: %s)",
        *(attempt.job.name, ending.task, ending.attempt, of, became, code, headline),
        exc_info=_exc_info(raised) if code in _WITH_TRACEBACK else None,
        extra={"job": attempt.job.name, "task": ending.task, "attempt": ending.attempt, "error_code": code},
    )


def _own_retries(attempt: Attempt) -> int | None:
    """Those of the task itself, if its submission gave any."""
    return None if attempt.armed.options is None else attempt.options.retries


def _attempts(attempt: Attempt) -> int:
    definition, own = attempt.job.definition, _own_retries(attempt)
    return 1 if definition.delivery == "at_most_once" else 1 + (definition.retry.retries if own is None else own)


def _raised(attempt: Attempt, error: BaseException) -> BaseException | None:
    """What the handler or the executor raised; None for a command, an HTTP call, or an attempt that was stopped.

    None also for an attempt with secrets: the text of an exception may hold one.
    """
    if attempt.secrets:
        return None
    if isinstance(error, AttemptFailed):
        return error.__cause__
    return None if attempt.stopping is not None else error


def _exc_info(
    raised: BaseException | None,
) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    if raised is None:
        return None
    trace = above = raised.__traceback__
    while above is not None:  # the handler's frames are those below the last one of its executor
        if above.tb_frame.f_globals.get("__name__") == _EXECUTOR:
            trace = above.tb_next
        above = above.tb_next
    return type(raised), raised, trace


def _failure(attempt: Attempt, ending: Ending, raised: BaseException | None, final: bool) -> Failure:
    args = _args(attempt) if attempt.chunk else attempt.args or _args(attempt)
    return Failure(
        job=attempt.job.name,
        task_id=ending.task,
        attempt=ending.attempt,
        attempts=_attempts(attempt),
        error_code=ending.code or "error",
        message=ending.error or "no reason was given",
        exception=raised,
        args=args,
        final=final,
    )


def _args(attempt: Attempt) -> dict[str, Any]:
    """Arguments that were written with SQL may be unreadable; that is why the attempt failed."""
    try:
        return dict(msgspec.json.decode(attempt.armed.args, type=dict[str, Any]))
    except UNREADABLE:
        return {}
