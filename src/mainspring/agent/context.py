"""What a handler sees of its task or tasks: current_task(), current_tasks(), the exceptions that control the attempt,
the log filter.

    raise mainspring.RetryAfter("30s")     this attempt failed; retry after the delay
    raise mainspring.Snooze("5m")          not now: run again after the delay, this attempt does not count
    raise mainspring.CancelTask("gone")    end the task as cancelled
    raise mainspring.Fail("bad input")     end the task as failed, whatever attempts remain

Next: agent/executors/python.py
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import msgspec

from mainspring.agent.attempt import Attempt
from mainspring.errors import ValidationError
from mainspring.model.flows.batches import Counts, TaskBatch
from mainspring.model.flows.options import read_options
from mainspring.model.flows.parents import Parent, read
from mainspring.model.tasks.payload import encode
from mainspring.model.words.durations import Duration, seconds

running: ContextVar[Attempt] = ContextVar("mainspring.running")
running_chunk: ContextVar[tuple[Attempt, ...]] = ContextVar("mainspring.running_chunk")


class TaskCancelled(BaseException):
    """Raised by `raise_if_cancelled()`, and inside a sync handler that the agent stops.

    Like asyncio's CancelledError it is no Exception, so that `except Exception` does not swallow it.
    """


class Control(Exception):
    """Base of the four that a handler may raise or return; not an error of the handler."""


class RetryAfter(Control):
    def __init__(self, delay: Duration, message: str = "the handler asked to be tried again") -> None:
        super().__init__(message)
        self.delay = seconds(delay, field="delay")


class Snooze(Control):
    def __init__(self, delay: Duration) -> None:
        super().__init__("snoozed")
        self.delay = seconds(delay, field="delay")


class CancelTask(Control):
    def __init__(self, message: str = "the handler cancelled its task") -> None:
        super().__init__(message)


class Fail(Control):
    def __init__(self, message: str = "the handler failed for good") -> None:
        super().__init__(message)


class CurrentTask:
    """The running task. `id`, `job`, `attempt` (from 1), `args`, `idempotency_key` say which; `agent` says where."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    @property
    def args(self) -> dict[str, Any]:
        if self._attempt.chunk:  # its handler takes them as one item of a list
            return dict(msgspec.json.decode(self._attempt.armed.args, type=dict[str, Any]))
        return self._attempt.args

    @property
    def id(self) -> int:
        return self._attempt.armed.task

    @property
    def token(self) -> int:
        """The fencing token of this attempt: larger than that of any attempt before it."""
        return self._attempt.armed.token

    @property
    def job(self) -> str:
        return self._attempt.job.name

    @property
    def attempt(self) -> int:
        return self._attempt.armed.attempt

    @property
    def priority(self) -> int:
        """0 to 9: 2 is low, 5 normal, 7 high, 9 critical."""
        return self._attempt.armed.priority

    @property
    def agent(self) -> str:
        """The name of the agent that runs it."""
        return self._attempt.agent

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that created this task; None without a schedule."""
        return self._attempt.armed.schedule

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts of this task."""
        return self._attempt.idempotency_key

    @property
    def plan_time(self) -> datetime | None:
        """The plan time of the schedule that created this task; None without a schedule."""
        at = self._attempt.armed.plan_time
        return None if at is None else datetime.fromtimestamp(at, UTC)

    @property
    def scope(self) -> str | None:
        """Its scope, such as a tenant, where its schedule has scopes."""
        return self._attempt.armed.scope or None

    @property
    def parents(self) -> list[Parent]:
        """The tasks that it ran after, by number: how each has ended, and what its handler returned."""
        told = self._attempt.armed.parents
        return [] if told is None else [Parent(outcome, self._attempt.decoders) for outcome in read(told)]

    @property
    def batch(self) -> TaskBatch | None:
        """The batch that it is a member of, to add tasks by `using(batch=…)`; or whose callback it is, with counts."""
        options = read_options(self._attempt.armed.options)
        if (of := options.callback) is not None:
            counts = Counts(**{name: getattr(of, name) for name in Counts.__struct_fields__})
            return TaskBatch(of.batch, of.event, of.name, counts, of.failed_ids)
        return None if options.batch is None else TaskBatch(options.batch)

    @property
    def lateness(self) -> float:
        """Seconds between the planned instant and the start of this attempt."""
        return self._attempt.started_at - self._attempt.armed.fire_at

    def progress(self, value: Any) -> None:
        """Show how far the task is: a fraction, or any JSON, such as {"done": 3, "of": 10}."""
        self._attempt.note(encode(value, "progress"), None)

    def heartbeat(self) -> None:
        """Say that the task lives, for a job with `stalls_after`; output and progress say it too."""
        self._attempt.heartbeat()

    @property
    def tags(self) -> tuple[str, ...]:
        """The words that its submission gave it."""
        return self._attempt.options.tags

    @property
    def checkpoint(self) -> Any:
        """The value last set by this attempt or an earlier one; None at first. Kept across attempts."""
        checkpoint = self._attempt.armed.checkpoint
        return None if checkpoint is None else msgspec.json.decode(checkpoint)

    @checkpoint.setter
    def checkpoint(self, value: Any) -> None:
        self._attempt.armed.checkpoint = encode(value, "checkpoint")
        self._attempt.note(None, self._attempt.armed.checkpoint)

    @property
    def cancelled(self) -> bool:
        """True once the agent has asked this attempt to stop."""
        return self._attempt.stopping is not None

    def raise_if_cancelled(self) -> None:
        """For handlers that cannot be interrupted: ends the attempt if the agent has asked it to stop."""
        if self._attempt.stopping is not None:
            raise TaskCancelled

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """`async with current_task().transaction() as conn:` commits your writes and the completion together.

        If another attempt has taken the task over, nothing is committed and StaleAttempt is raised.
        """
        if self._attempt.armed.daemon:
            raise ValidationError(
                "transaction() completes a task; a daemon's never is, so use a connection of your own",
                field="transaction",
            )
        return _transaction([self._attempt])


class CurrentTasks(tuple[CurrentTask, ...]):
    """The running tasks of a chunk, in the order of the handler's list."""

    __slots__ = ()

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """`async with current_tasks().transaction() as conn:` commits your writes and all completions together.

        If another attempt has taken one of the tasks over, nothing is committed and StaleAttempt is raised.
        `task.transaction()` of one of them completes that one alone; what it has completed is left out here.
        """
        return _transaction([attempt for task in self if not (attempt := task._attempt).committed])


def _transaction(attempts: Sequence[Attempt]) -> AbstractAsyncContextManager[Any]:
    transactions = attempts[0].transactions if attempts else None
    if transactions is None:
        raise ValidationError(
            "transaction() needs a database: start the agent with --dsn, or run the handler in `mainspring worker`"
            if attempts
            else "transaction(): all tasks of this chunk are completed already",
            field="dsn" if attempts else "transaction",
        )
    return transactions(attempts)


def current_task() -> CurrentTask:
    """The task that the calling handler runs for."""
    try:
        return CurrentTask(running.get())
    except LookupError:
        if running_chunk.get(None) is not None:
            raise RuntimeError(
                "this handler runs for a chunk of tasks; current_tasks() gives them in the order of its list"
            ) from None
        raise RuntimeError("current_task() is for handlers; no task is running here") from None


def current_tasks() -> CurrentTasks:
    """The tasks that the calling handler runs for: those of its chunk, in the order of its list, or its one task."""
    chunk = running_chunk.get(None)
    return CurrentTasks([current_task()] if chunk is None else map(CurrentTask, chunk))


def attempt_of_handler() -> Attempt | None:
    """The attempt that the calling handler runs for; of a chunk, one that is not stopped. None outside handlers."""
    chunk = running_chunk.get(None)
    if not chunk:
        return running.get(None)
    return next((attempt for attempt in chunk if attempt.stopping is None), chunk[0])


class LogContext(logging.Filter):
    """A logging filter, for handlers of the logging module: puts `job`, `task` and `attempt` on every record.

    Within a handler of Mainspring's, also in its thread, they are its own; elsewhere they are None. One that takes a
    chunk of tasks has the job only. What a record brings along by `extra` stays.

        handler.addFilter(mainspring.LogContext())
    """

    def filter(self, record: logging.LogRecord) -> bool:
        known: tuple[str | int | None, ...] = (None, None, None)
        if (attempt := running.get(None)) is not None:
            known = (attempt.job.name, attempt.armed.task, attempt.armed.attempt)
        elif chunk := running_chunk.get(None):
            known = (chunk[0].job.name, None, None)
        for name, value in zip(("job", "task", "attempt"), known, strict=True):
            record.__dict__.setdefault(name, value)
        return True
