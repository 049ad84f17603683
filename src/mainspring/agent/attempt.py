"""Attempt: one try at a task while the agent holds it; Executor: the contract of whatever runs it.

Next: agent/run/runner.py
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from msgspec import Struct

from mainspring.agent.timing.wheel import Timer
from mainspring.model.messages import Armed, Submit
from mainspring.model.tasks.jobs import Job

AHEAD = 0.1  # seconds before its time from which on an attempt counts as armed ahead

Transactions = Callable[["Attempt"], AbstractAsyncContextManager[Any]]
StopReason = Literal["timeout", "cancelled", "lost", "shutdown", "restart", "unhealthy"]


class Reports(Protocol):
    """Where an attempt reports to while it runs (the outbox)."""

    def output(self, attempt: Attempt, stream: int, data: bytes) -> None: ...

    def note(
        self, attempt: Attempt, progress: str | None, checkpoint: str | None, healthy: bool | None = None
    ) -> None: ...


class Submitter(Protocol):
    """Submits tasks through the server (connection/submissions.py)."""

    loop: asyncio.AbstractEventLoop

    async def submit(self, request: Submit) -> list[int]: ...


class Attempt(Struct, eq=False):
    """`stopping` is set once, before the executor's coroutine is cancelled."""

    armed: Armed
    job: Job
    reports: Reports
    database: str = ""  # its id: task 1 of another database is another task
    agent: str = ""  # the name of the agent that runs it
    submissions: Submitter | None = None
    transactions: Transactions | None = None
    prepared: Any = None  # set by Executor.prepare, read by Executor.run
    args: dict[str, Any] = {}  # of a handler
    lead: float = 0.0  # seconds from arming to its instant
    timeout_left: float | None = None  # seconds, while it is paused
    paused: bool = False
    committed: bool = False  # by transaction(): the task has succeeded, whatever its handler does afterwards
    waiting_since: float = 0.0  # for a slot, in boot time
    started_at: float = 0.0  # zero until it runs
    stopping: StopReason | None = None
    handle: asyncio.Task[None] | None = None  # the worker that runs it
    timer: Timer | None = None  # of its instant, then of its timeout
    chunks: int = 0  # of output, so far
    grace: float = 0.0  # of its job: seconds between the request to stop and the kill

    def __post_init__(self) -> None:
        self.grace = self.job.definition.grace

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its instant or for a slot."""
        return self.handle is None

    @property
    def idempotency_key(self) -> str:
        """Stable across the attempts of a task, unique across tasks and databases."""
        return f"mainspring-{self.database}-{self.armed.task}"

    @property
    def was_armed_ahead(self) -> bool:
        """Whether it was armed before its time, under no limit: few wait for the end of what time alone starts."""
        definition = self.job.definition
        return self.lead > AHEAD and definition.gate is None and definition.delivery == "at_least_once"

    def stop(self, reason: StopReason) -> None:
        """Cancel the executor. The first reason stands."""
        if self.stopping is None:
            self.stopping = reason
            if self.handle is not None and self.started_at:  # the runner checks `stopping` before the first step
                self.handle.cancel()

    def output(self, stream: int, data: bytes) -> None:
        self.reports.output(self, stream, data)

    def note(self, progress: str | None, checkpoint: str | None, healthy: bool | None = None) -> None:
        self.reports.note(self, progress, checkpoint, healthy)


class AttemptFailed(Exception):
    """The attempt failed; `code` names the cause, `labels` are matched by retry_on and abort_on."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        labels: tuple[str, ...] = (),
        final: bool = False,
        retry_after: float | None = None,  # seconds, in place of the delay of the job's retry policy
        exit_code: int | None = None,  # of a command; negative: the signal that ended it
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.labels = (code, *labels)
        self.final = final
        self.retry_after = retry_after
        self.exit_code = exit_code


class Exhausted(Exception):
    """The agent has no descriptor, process or memory left to start the attempt. Nothing of it has run: it is given
    back, at no cost."""


# Of the machine or the agent, whatever the job is.
EXHAUSTED = frozenset([errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS])


class Executor(Protocol):
    def prepare(self, attempt: Attempt) -> None:
        """Do ahead of time what need not wait for the instant, which is `attempt.lead` seconds away."""

    async def run(self, attempt: Attempt) -> str | None:
        """Run the attempt; returns its result as JSON. Raises AttemptFailed, Exhausted, or a `Control` of the handler.

        When cancelled: stop what runs, wait until it has ended, then let CancelledError propagate.
        """

    def forget(self, attempt: Attempt) -> None:
        """Undo `prepare` for an attempt that will not run, or has ended."""
        return

    def pause(self, attempt: Attempt, *, resume: bool) -> bool:
        """Pause or resume a running attempt; False if this kind of job cannot be paused."""
        return False
