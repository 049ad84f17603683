"""One attempt while the agent has it: what it is, why it is being stopped, where its output goes.

Next: agent/run/runner.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from mainspring.agent.connection.submissions import Submissions
from mainspring.agent.timing.wheel import Timer
from mainspring.model.messages import Armed
from mainspring.model.tasks.jobs import Job

Transactions = Callable[["Attempt"], AbstractAsyncContextManager[Any]]
StopReason = Literal["timeout", "cancelled", "lost", "shutdown", "restart", "unhealthy"]


_NO_ARGS: dict[str, Any] = {}


class Reports(Protocol):
    """Where an attempt reports to while it runs (the outbox)."""

    def output(self, attempt: Attempt, stream: int, data: bytes) -> None: ...

    def note(
        self, attempt: Attempt, progress: str | None, checkpoint: str | None, healthy: bool | None = None
    ) -> None: ...


class Attempt:
    """`stopping` is set once, before the executor's coroutine is cancelled."""

    __slots__ = (
        "args",
        "armed",
        "chunks",
        "committed",
        "database",
        "grace",
        "handle",
        "job",
        "lead",
        "left",
        "paused",
        "prepared",
        "reports",
        "started_at",
        "stopping",
        "submissions",
        "timer",
        "transactions",
        "waiting_since",
    )

    def __init__(self, armed: Armed, job: Job, reports: Reports, database: str = "") -> None:
        self.armed = armed
        self.database = database  # its id: task 1 of another database is another task
        self.job = job
        self.reports = reports
        self.prepared: Any = None  # what its executor found before the instant
        self.args: dict[str, Any] = _NO_ARGS  # of a handler
        self.transactions: Transactions | None = None
        self.submissions: Submissions | None = None  # through the server
        self.lead = 0.0  # seconds to its instant when it was armed
        self.left: float | None = None  # of its timeout, while it is paused
        self.paused = False
        self.committed = False  # by transaction(): the task has succeeded, whatever its handler does now
        self.waiting_since = 0.0  # for a slot, in boot time
        self.started_at = 0.0  # zero until it runs
        self.stopping: StopReason | None = None
        self.handle: asyncio.Task[None] | None = None
        self.timer: Timer | None = None  # of its instant, then of its timeout
        self.chunks = 0  # of output, so far
        self.grace = job.definition.grace  # that it has to end once it is told to

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its instant or for a slot."""
        return self.handle is None

    @property
    def idempotency_key(self) -> str:
        """Stable across the attempts of a task, and of no other task in any database."""
        return f"mainspring-{self.database}-{self.armed.task}"

    def stop(self, reason: StopReason) -> None:
        """Ask the executor to end what it runs. The first reason stands."""
        if self.stopping is None:
            self.stopping = reason
            if self.handle is not None and self.started_at:  # one that has not begun looks before it does
                self.handle.cancel()

    def output(self, stream: int, data: bytes) -> None:
        self.reports.output(self, stream, data)

    def note(self, progress: str | None, checkpoint: str | None) -> None:
        self.reports.note(self, progress, checkpoint)

    def report_health(self, healthy: bool) -> None:
        self.reports.note(self, None, None, healthy)
